"""The owner's data as one ordered table of examples, below every stage that reads it.

corpus.py: the ``Corpus``, and which column holds the text. parts.py: the interface of a file or data set (``Part``),
and blocks of examples in memory. text_readers.py: JSON lines, CSV and plain text. arrow_readers.py: Parquet, and data
sets of the datasets library. shards.py: the corpus cut into shards for several processes.
"""

from hush.data.corpus import Corpus, read_corpus

__all__ = ["Corpus", "read_corpus"]
