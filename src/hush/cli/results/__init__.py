"""How the command line shows results: each result is one record, printed as JSON or as tables.

Separate from the commands, so that `hush --help` loads no numerical library.
"""
