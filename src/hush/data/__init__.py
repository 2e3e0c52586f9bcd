"""The owner's data, below every stage that reads it: files, folders and data sets as one ordered table of examples.

table: the table, and which column holds the text; names: paths told from names of data sets; parts: what every kind
of data looks like; formats, parquet, hub, lines: readers for each; shards: the table cut for several processes; blocks,
filling: a few megabytes of it in memory.
"""

from hush.data.corpus import Corpus, read_corpus

__all__ = ["Corpus", "read_corpus"]
