"""The owner's data, below every stage that reads it: files, folders and data sets as one ordered table of examples.

table: the table, and which column holds the text; formats: a reader for each kind of file; hub: the `datasets` library.
"""

from hush.corpus.table import Corpus, read_corpus

__all__ = ["Corpus", "read_corpus"]
