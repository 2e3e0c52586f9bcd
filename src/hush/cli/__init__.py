"""The command line, above every stage: each command parses, calls the library and prints."""

from hush.cli.commands import app, main

__all__ = ["app", "main"]
