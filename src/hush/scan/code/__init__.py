"""Secrets in code: from a repository's files, history, owners and imports to the chunks that contain each secret.

settings: what the owner declares; repository: the files; chunks: files as examples; history, owners, imports: what the
repository says; containment and spread: which file contains which secret, and why; finder: the same for chunks.
"""

from hush.scan.code.chunks import code_corpus
from hush.scan.code.repository import Repository
from hush.scan.code.settings import Chunks, CodeSecret, CodeSettings, Contributors, Imports
from hush.scan.code.spread import CodeSecrets

__all__ = [
    "Chunks",
    "CodeSecret",
    "CodeSecrets",
    "CodeSettings",
    "Contributors",
    "Imports",
    "Repository",
    "code_corpus",
]
