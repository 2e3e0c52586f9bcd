"""Ways to find secrets in text: words, literals, patterns, credentials, personal data, and fields beside the text.

tokens: what a word is; word_counts: how often each occurs. text_kernels, token_kernels and word_kernels:
compiled loops over UTF-8. utf8, characters: the bytes of a block, and what is known of characters. spans: hits gathered
one by one; private_keys: keys, whole or in pieces; pickles: what goes to other processes.
"""

from hush.scan.finders.credentials import Credentials
from hush.scan.finders.literals import Literals
from hush.scan.finders.patterns import Fields, Patterns
from hush.scan.finders.personal import PersonalData
from hush.scan.finders.words import Tokens, Words

__all__ = ["Credentials", "Fields", "Literals", "Patterns", "PersonalData", "Tokens", "Words"]
