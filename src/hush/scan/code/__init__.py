"""Secrets in code: from a repository's files, history, owners and imports to the chunks that contain each secret.

settings.py: what the owner declares. repository.py: the files of a repository, and how git is called. chunks.py: files
cut into examples. history.py: git history and CODEOWNERS. imports/: the import graph, by language. spread.py: which
file contains which secret, and the finder ``CodeSecrets`` that applies this to chunks. For rules that hide definitions
or lines, hiding.py says what of each file is hidden; definitions.py and definitions_tree_sitter.py read the languages,
python_names.py and python_lines.py what the former needs of a Python file.
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
