"""Paths told from names on the hub, for whoever loads either: a misspelt path is not asked for over the network."""

from pathlib import Path

from hush.corpus.formats import kind_of

__all__ = ["means_path"]


def means_path(name: str, *, folder: Path = Path()) -> bool:
    """Whether what is not here was meant to be: no NAME or OWNER/NAME of the hub looks so, or its folder is here.

    folder: where a path that is not absolute begins.

    >>> [name for name in ("imdb", "stanfordnlp/imdb", "./imdb", "~/imdb", "a/b/imdb", "imdb.csv") if means_path(name)]
    ['./imdb', '~/imdb', 'a/b/imdb', 'imdb.csv']
    """
    path = Path(name)
    return (
        path.is_absolute()
        or name.startswith((".", "~"))
        or name.endswith("/")
        or "\\" in name
        or name.count("/") > 1
        or kind_of(path) is not None
        or ("/" in name and (folder / path.parent).is_dir())
    )
