"""The incidence: which example contains which secret, as a sparse 0/1 matrix. The scan makes it for all later stages.

The graph is public in the threat model (it is not hidden that a secret exists, and where), so it may be stored, hashed
and printed. Shapes: N examples, S secrets.
"""

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.arrays import checked_indices, chosen_indices
from hush.errors import InvalidInput
from hush.numbers import checked_size
from hush.storage import read_table, table_digest, write_table

if TYPE_CHECKING:
    import pyarrow as pa
    from scipy.sparse import csr_array

__all__ = ["Incidence"]


_BLOCK = 2**20  # entries that are hashed at once, to bound the memory
MAX_UNLISTED = 10**7  # secrets in no example: a wrong number in a file must not use up the memory


@final
@dataclass(frozen=True, eq=False, repr=False)
class Incidence:
    """A frozen sparse 0/1 matrix, examples × secrets, stored by secret.

    The examples of secret j are ``example_of_entry[offset_S[j]:offset_S[j + 1]]``, strictly increasing; the arrays
    are read-only. Build one with ``from_pairs``, ``from_scipy`` or ``from_parquet``.

    >>> incidence = Incidence.from_pairs([0, 2, 2], [0, 0, 1], num_examples=3, num_secrets=2)
    >>> incidence
    Incidence(3 examples, 2 secrets, 3 entries)
    >>> incidence.examples_of(0).tolist()
    [0, 2]
    """

    num_examples: int
    offset_S: NDArray[np.int64]
    example_of_entry: NDArray[np.integer]

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_examples", checked_size("num_examples", self.num_examples))
        example_of_entry = checked_indices("example_of_entry", self.example_of_entry, self.num_examples)
        entries = len(example_of_entry)
        offset_S = checked_indices("offset_S", self.offset_S, entries + 1)
        if len(offset_S) == 0 or offset_S[0] != 0 or offset_S[-1] != entries or (np.diff(offset_S) < 0).any():
            raise InvalidInput(f"offset_S must rise from 0 to the {entries} entries; build with Incidence.from_pairs")
        falls = np.flatnonzero(example_of_entry[1:] <= example_of_entry[:-1]) + 1
        if not np.isin(falls, offset_S).all():  # an entry may be below the one before it only where a secret begins
            raise InvalidInput("the examples of a secret must be sorted and distinct; build with Incidence.from_pairs")
        for name, array, dtype in (
            ("offset_S", offset_S, np.int64),
            ("example_of_entry", example_of_entry, _index_type(self.num_examples)),
        ):
            frozen = np.array(array, dtype=dtype)  # a copy, so that the caller cannot change it
            frozen.flags.writeable = False
            object.__setattr__(self, name, frozen)

    @classmethod
    def from_pairs(
        cls,
        example_index: ArrayLike,
        secret_index: ArrayLike,
        *,
        num_examples: SupportsIndex,
        num_secrets: SupportsIndex,
    ) -> Self:
        """Entry k says that example ``example_index[k]`` contains secret ``secret_index[k]``; duplicates are merged."""
        n, m = checked_size("num_examples", num_examples), checked_size("num_secrets", num_secrets)
        example = checked_indices("example_index", example_index, n)
        secret = checked_indices("secret_index", secret_index, m)
        if len(example) != len(secret):
            raise InvalidInput(
                f"example_index has {len(example)} entries and secret_index {len(secret)}; pass them pairwise"
            )
        if n * m >= 2**63:
            raise InvalidInput(f"{n} examples × {m} secrets exceed 2**63 cells; split the secrets into several graphs")
        if m > len(secret) + MAX_UNLISTED:
            raise InvalidInput(
                f"num_secrets={m}, but there are only {len(secret)} pairs: more than {MAX_UNLISTED} secrets would be "
                "in no example, which is probably a mistake; leave those out"
            )
        # One number per pair, so that a single sort orders the pairs and makes equal ones adjacent.
        key = secret * n
        key += example
        key.sort()
        key = key[np.diff(key, prepend=-1) > 0]
        offset_S = np.searchsorted(key, np.arange(m + 1) * n)
        key %= max(n, 1)
        return cls(n, offset_S, key)

    @classmethod
    def from_scipy(cls, matrix: Any) -> Self:
        """From any scipy.sparse matrix or array, examples × secrets: a positive value means "contains".

        Duplicates are merged, not added up: 256 ones of type uint8 would make a 0.
        """
        from scipy.sparse import sparray, spmatrix

        if not issubclass(type(matrix), sparray | spmatrix) or matrix.ndim != 2:
            raise InvalidInput(f"expected a 2-D scipy.sparse matrix, got {type(matrix).__name__}; wrap it in csr_array")
        coo = matrix.tocoo()
        if coo.dtype.kind not in "biuf" or not (np.isfinite(coo.data) & (coo.data >= 0)).all():
            raise InvalidInput("the matrix holds negative or non-finite values; use 1 where an example has the secret")
        present = coo.data > 0
        num_examples, num_secrets = coo.shape
        return cls.from_pairs(coo.row[present], coo.col[present], num_examples=num_examples, num_secrets=num_secrets)

    def to_scipy(self) -> "csr_array":
        """The same matrix as a scipy.sparse CSR array of int8 ones, examples × secrets."""
        from scipy.sparse import csc_array

        ones = np.ones(self.num_entries, dtype=np.int8)
        csc = csc_array((ones, self.example_of_entry, self.offset_S), shape=(self.num_examples, self.num_secrets))
        return csc.tocsr()

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write the pairs (columns example, secret), sizes and fingerprint; the file appears complete or not at all."""
        table, labels = self._stored()
        write_table(table, path, kind="incidence", metadata=labels)

    @property
    def parquet_digest(self) -> str:
        """SHA-256, in hex, of the file that ``to_parquet`` writes with this version of Arrow."""
        table, labels = self._stored()
        return table_digest(table, kind="incidence", metadata=labels)

    def _stored(self) -> "tuple[pa.Table, dict[str, str]]":
        import pyarrow as pa

        sizes = {"num_examples": str(self.num_examples), "num_secrets": str(self.num_secrets)}
        columns = {"example": self.example_of_entry, "secret": self._secret_of_entry()}
        return pa.table(columns), sizes | {"fingerprint": self.fingerprint}

    @classmethod
    def from_parquet(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that ``to_parquet`` wrote. Guarantee: the graph has the fingerprint that was stored with it."""
        import pyarrow as pa

        table, labels = read_table(path, kind="incidence", columns=("example", "secret"))
        try:
            sizes = {name: int(labels[name]) for name in ("num_examples", "num_secrets")}
        except (KeyError, ValueError) as error:
            raise InvalidInput(f"{path} does not state its sizes; write it again with Incidence.to_parquet") from error
        example, secret = (table.column(name).to_numpy() for name in ("example", "secret"))
        del table
        incidence = cls._from_sorted(example, secret, **sizes) or cls.from_pairs(example, secret, **sizes)
        del example, secret
        pa.default_memory_pool().release_unused()  # Arrow keeps what it frees: three times the size of the graph
        if incidence.fingerprint != labels.get("fingerprint"):
            raise InvalidInput(
                f"{path} has fingerprint {incidence.fingerprint} but says {labels.get('fingerprint')}: it was changed "
                "after it was written; write it again with Incidence.to_parquet"
            )
        return incidence

    @classmethod
    def _from_sorted(
        cls, example: NDArray[Any], secret: NDArray[Any], *, num_examples: int, num_secrets: int
    ) -> Self | None:
        """The graph of pairs in the order of ``to_parquet``, without sorting, which takes most of the memory; or None.

        None is also the answer to what ``from_pairs`` would refuse.
        """
        integers = example.dtype.kind in "iu" and secret.dtype.kind in "iu" and len(example) == len(secret)
        if not integers or not len(secret) or not 0 <= num_secrets <= len(secret):
            return None
        if secret[0] < 0 or secret[-1] >= num_secrets or (secret[1:] < secret[:-1]).any():
            return None
        offset_S = np.searchsorted(secret, np.arange(num_secrets, dtype=secret.dtype))
        try:
            return cls(num_examples, np.append(offset_S, len(secret)), example)
        except InvalidInput:
            return None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of the sizes and the sorted pairs: equal exactly for equal graphs.

        A plain hash is enough because the graph is public and holds no text. Private content needs a keyed hash
        (HMAC): against a plain one, anybody could test guesses of a secret.
        """
        digest = hashlib.sha256(b"hush incidence 1\n")
        sizes = np.array([self.num_examples, self.num_secrets, self.num_entries])
        for array in (sizes, self.offset_S, self.example_of_entry):
            for begin in range(0, len(array), _BLOCK):
                block = np.ascontiguousarray(array[begin : begin + _BLOCK], dtype="<i8")
                digest.update(block.data)  # the same bytes on every machine
        return digest.hexdigest()

    @property
    def num_secrets(self) -> int:
        """Columns of the matrix."""
        return len(self.offset_S) - 1

    @property
    def num_entries(self) -> int:
        """Pairs (example, secret)."""
        return len(self.example_of_entry)

    @property
    def density(self) -> float:
        """The share of all cells that are 1; 0 for a matrix without cells."""
        return self.num_entries / max(self.num_examples * self.num_secrets, 1)

    @property
    def examples_per_secret(self) -> NDArray[np.int64]:
        """The number of examples that contain each secret, shape (S,)."""
        return np.diff(self.offset_S)

    @property
    def secrets_per_example(self) -> NDArray[np.int64]:
        """The number of secrets in each example, shape (N,)."""
        return np.bincount(self.example_of_entry, minlength=self.num_examples)

    def examples_of(self, secret: SupportsIndex) -> NDArray[np.integer]:
        """The examples that contain this secret, ascending; a read-only view."""
        index = checked_size("secret", secret)
        if index >= self.num_secrets:
            raise InvalidInput(f"secret={index} is outside [0, {self.num_secrets}); indices count from 0")
        return self.example_of_entry[self.offset_S[index] : self.offset_S[index + 1]]

    def select(self, *, examples: ArrayLike | None = None, secrets: ArrayLike | None = None) -> Self:
        """The graph of these examples and secrets only, renumbered in the order given.

        Each argument is a boolean mask or distinct indices; ``None`` keeps all.
        """
        example, num_examples = _renumbered("examples", examples, self.example_of_entry, self.num_examples)
        secret, num_secrets = _renumbered("secrets", secrets, self._secret_of_entry(), self.num_secrets)
        kept = (example >= 0) & (secret >= 0)
        return self.from_pairs(example[kept], secret[kept], num_examples=num_examples, num_secrets=num_secrets)

    def _secret_of_entry(self) -> NDArray[np.integer]:
        return np.repeat(np.arange(self.num_secrets, dtype=_index_type(self.num_secrets)), self.examples_per_secret)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Incidence):
            return NotImplemented
        return (
            self.num_examples == other.num_examples
            and np.array_equal(self.offset_S, other.offset_S)
            and np.array_equal(self.example_of_entry, other.example_of_entry)
        )

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        sizes = f"{self.num_examples} examples, {self.num_secrets} secrets, {self.num_entries} entries"
        return f"Incidence({sizes})"

    def __reduce__(self) -> tuple[object, ...]:  # through the constructor, which makes the arrays read-only again
        return Incidence, (self.num_examples, self.offset_S, self.example_of_entry)


def _index_type(size: int) -> type[np.signedinteger]:
    return np.int32 if size <= np.iinfo(np.int32).max else np.int64


def _renumbered(
    name: str, chosen: ArrayLike | None, index: NDArray[np.integer], size: int
) -> tuple[NDArray[np.integer], int]:
    """New numbers for ``index`` under a selection, -1 for rows that it leaves out, and the number of rows it keeps."""
    if chosen is None:
        return index, size
    kept = chosen_indices(name, chosen, size)
    new_of_old = np.full(size, -1, dtype=np.int64)
    new_of_old[kept] = np.arange(len(kept))
    return new_of_old[index], len(kept)
