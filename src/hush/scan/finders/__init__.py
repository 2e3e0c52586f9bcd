"""Finders of secrets in text: words, literals, patterns, credentials, personal data, and fields beside the text.

One file per kind: words.py, literals.py, patterns.py (and fields), credentials.py (with plausibility.py, which tells
credentials from what only looks like one), gitleaks.py (rules files of gitleaks), personal.py (with gliner.py, models
for it). Every finder is a frozen dataclass with the interface ``Finder`` of hits.py (columns, declared, find) and is
registered in the table ``FINDERS`` of scanner.py; ``Words`` is a ``Survey``, which makes its finder after counting.
unicode.py has the Unicode tables and text_kernels.py the compiled loops that words and literals share.
"""

from hush.scan.finders.credentials import Credentials
from hush.scan.finders.gitleaks import Gitleaks
from hush.scan.finders.literals import Literals
from hush.scan.finders.patterns import Fields, Patterns
from hush.scan.finders.personal import PersonalData
from hush.scan.finders.words import Tokens, Words

__all__ = ["Credentials", "Fields", "Gitleaks", "Literals", "Patterns", "PersonalData", "Tokens", "Words"]
