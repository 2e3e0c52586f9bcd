"""The table of secrets: an id and a promise for each, and optionally their texts.

hush must never show the text of a secret. Texts are optional here, and no repr, error, pickle or public file holds
them.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self, final

import numpy as np
from numpy.typing import ArrayLike

from hush.arrays import Array, chosen_indices
from hush.errors import InvalidInput
from hush.protection import Protection
from hush.storage import read_table, write_table

__all__ = ["Secrets"]


_SURROGATE = re.compile("[\ud800-\udfff]")


@final
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Secrets:
    """A stable id and a Protection for each secret, and their texts if the owner gives them.

    Ids are public: they appear in certificates and reports, so they are never made from the text (by default they
    count: ``secret-000000``, …). Two tables are equal when ids and protections are; texts are not part of the public
    identity. A pickled table leaves its texts behind, so they reach no cache and no other process by accident.

    >>> Secrets([Protection(1e-10, 1e-3)] * 2, texts=["hunter2", "swordfish"])
    Secrets(2 secrets)
    """

    ids: tuple[str, ...]
    protections: tuple[Protection, ...]
    texts: tuple[str, ...] | None = field(compare=False)

    def __init__(
        self,
        protections: Iterable[Protection],
        *,
        ids: Iterable[str] | None = None,
        texts: Iterable[str] | None = None,
    ) -> None:
        protections = tuple(protections)
        _check_protections(protections)
        ids = tuple(f"secret-{index:06d}" for index in range(len(protections))) if ids is None else tuple(ids)
        _check_ids(ids, len(protections))
        texts = None if texts is None else tuple(texts)
        _check_texts(texts, ids)
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "protections", protections)
        object.__setattr__(self, "texts", texts)

    @property
    def prior(self) -> Array:
        """Priors for the accountant: shape (m,) where every secret has one point, else (m, q).

        Rows with fewer points repeat their last one; all points must hold, so this adds no promise.
        """
        return _padded([protection.priors for protection in self.protections])

    @property
    def ceiling(self) -> Array:
        """Ceilings that match ``prior`` entry by entry."""
        return _padded([protection.ceilings for protection in self.protections])

    def select(self, indices: ArrayLike) -> Self:
        """The secrets at these indices (or under this boolean mask), in that order, with their ids unchanged."""
        chosen = chosen_indices("indices", indices, len(self)).tolist()
        return type(self)(
            [self.protections[index] for index in chosen],
            ids=[self.ids[index] for index in chosen],
            texts=None if self.texts is None else [self.texts[index] for index in chosen],
        )

    def to_parquet(self, path: str | os.PathLike[str], *, texts_path: str | os.PathLike[str] | None = None) -> None:
        """Write ids and points to ``path``; texts are written only to a separate file, and only if it is named here.

        Guarantee: the file at ``path`` holds no text. Only its owner can read the file at ``texts_path``.
        """
        import pyarrow as pa

        if texts_path is not None and self.texts is None:
            raise InvalidInput(f"texts_path={texts_path} was given but this table holds no texts; leave it out")
        if texts_path is not None and os.path.realpath(texts_path) == os.path.realpath(path):
            raise InvalidInput(f"path and texts_path are both {path}; texts need a file of their own")
        ids = pa.array(self.ids, pa.string())
        prior = pa.array([protection.priors for protection in self.protections], pa.list_(pa.float64()))
        ceiling = pa.array([protection.ceilings for protection in self.protections], pa.list_(pa.float64()))
        write_table(pa.table({"id": ids, "prior": prior, "ceiling": ceiling}), path, kind="secrets")
        if texts_path is not None:
            text = pa.array(self.texts, pa.string())
            write_table(pa.table({"id": ids, "text": text}), texts_path, kind="secret-texts", owner_only=True)

    @classmethod
    def from_parquet(cls, path: str | os.PathLike[str], *, texts_path: str | os.PathLike[str] | None = None) -> Self:
        """Read a table that ``to_parquet`` wrote; texts only if their file is named, matched to secrets by id."""
        table, _ = read_table(path, kind="secrets", columns=("id", "prior", "ceiling"))
        ids, priors, ceilings = (table.column(name).to_pylist() for name in ("id", "prior", "ceiling"))
        protections: list[Protection] = []
        for index, (prior, ceiling) in enumerate(zip(priors, ceilings, strict=True)):
            if len(prior) != len(ceiling):
                raise InvalidInput(f"{path}: secret {index} has {len(prior)} priors and {len(ceiling)} ceilings")
            protections.append(Protection.of(*zip(prior, ceiling, strict=True)))
        if texts_path is None:
            return cls(protections, ids=ids)
        named, _ = read_table(texts_path, kind="secret-texts", columns=("id", "text"))
        text_of = dict(zip(named.column("id").to_pylist(), named.column("text").to_pylist(), strict=True))
        if set(text_of) != set(ids) or named.num_rows != len(ids):
            raise InvalidInput(f"{texts_path} does not name the same secrets as {path}; pass the pair written together")
        return cls(protections, ids=ids, texts=[text_of[name] for name in ids])

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Secrets({len(self)} secrets)"

    def __reduce__(self) -> tuple[object, ...]:
        return _without_texts, (self.protections, self.ids)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self  # immutable all the way down; a copy through pickling would lose the texts


def _without_texts(protections: tuple[Protection, ...], ids: tuple[str, ...]) -> Secrets:
    return Secrets(protections, ids=ids)


def _padded(rows: list[tuple[float, ...]]) -> Array:
    width = max(map(len, rows), default=1)
    array = np.array([row + row[-1:] * (width - len(row)) for row in rows], dtype=np.float64)
    return array.reshape(len(rows)) if width == 1 else array


def _check_protections(protections: tuple[object, ...]) -> None:
    for index, protection in enumerate(protections):
        if not isinstance(protection, Protection):
            # Only its type: a value passed by mistake may hold text.
            raise InvalidInput(
                f"protections[{index}] is a {type(protection).__name__}; pass Protection(prior, ceiling)"
            )


def _check_ids(ids: tuple[object, ...], count: int) -> None:
    if len(ids) != count:
        raise InvalidInput(f"there are {count} protections but {len(ids)} ids; pass one id per secret")
    first: dict[object, int] = {}
    for index, name in enumerate(ids):
        if not isinstance(name, str) or not name:
            raise InvalidInput(f"ids[{index}] is empty or a {type(name).__name__}; pass non-empty strings")
        if first.setdefault(name, index) != index:
            raise InvalidInput(f"ids[{first[name]}] and ids[{index}] are the same; make every id unique")


def _check_texts(texts: tuple[object, ...] | None, ids: tuple[str, ...]) -> None:
    """Errors name only the index: no part of a text may be shown."""
    if texts is None:
        return
    if len(texts) != len(ids):
        raise InvalidInput(f"there are {len(ids)} secrets but {len(texts)} texts; pass one text per secret")
    public = set(ids)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidInput(f"texts[{index}] is a {type(text).__name__}; pass strings")
        if text in public:
            raise InvalidInput(f"texts[{index}] is also used as an id, and ids are public; choose ids without the text")
        if not text.isascii() and _SURROGATE.search(text):
            raise InvalidInput(f"texts[{index}] holds lone surrogates, which no file can store; decode it properly")
