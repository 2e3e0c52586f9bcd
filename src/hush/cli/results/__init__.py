"""What the command line shows: one record per result, printed as JSON or as tables.

Apart from the commands, so that `hush --help` loads no numerical library.
"""
