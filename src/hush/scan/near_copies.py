"""Near copies, between the finders and the numbering of secrets: copies of an example inherit its secrets.

A text is the set of its runs of ``shingle`` consecutive words; two texts are as similar as their sets: shared runs over
all runs (Jaccard). MinHash (the rensa library) turns a set into K slots, each of which agrees for two texts with
probability equal to their similarity; one byte of each slot is kept. Texts that agree in all slots of some band are
compared slot by slot, and those that agree in enough slots are joined; groups are what is connected by joins.

Words: after Unicode normalisation (NFKC) and lower-casing, what stands between white space, controls and punctuation
(of ASCII, Latin-1, U+2000 to U+206F and East Asia). A character of a script without spaces (Thai, Lao, Burmese, Khmer,
and all from U+2E80 on) is a word by itself. A text with fewer words than a shingle has one shingle, all its words, so
its copies are those that equal it but for case and punctuation; a text without words is a copy of the texts with the
same characters only. Equal texts are always joined.

Signatures are hashes without a key: they stay in memory and between our own processes, and never go into a file.
Shapes: N examples, K slots, P pairs of examples, H shingles of a block, M members of buckets.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.data.parts import Block
from hush.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Copies", "CopyGroups"]


SEED = 42  # of the MinHash; any one, but the same in every process
CHANCE = 1 / 256  # that one kept byte of two different slots agrees
MOST_ROWS = 8  # bytes in the 64-bit key of a band


@final
@dataclass(frozen=True, kw_only=True)
class Copies:
    """Which examples count as copies of each other.

    similarity: pairs at least this similar are joined. shingle: words in a run; an edit of one word changes that many.
    permutations: slots of a signature and bytes kept for each example. missed: the chance, at most, that a pair of
    exactly that similarity is not joined by its own signatures; more similar pairs are missed less often.

    Guarantee: equal texts are always joined. The chance is over the hash functions and for slots that agree
    independently; those of rensa vary less than that (its slots share the shingles out among them).

    >>> copies = Copies()
    >>> copies.bands, copies.rows, copies.needed
    (25, 5, 87)
    >>> copies.missed_at(0.8) < 1e-3 and copies.missed_at(0.9) < 1e-9
    True
    """

    similarity: float = 0.8
    shingle: int = 5
    permutations: int = 128
    missed: float = 1e-3

    def __post_init__(self) -> None:
        if not 0 < self.similarity <= 1:
            raise InvalidInput(f"similarity={self.similarity!r} is not in (0, 1]; 0.8 is usual")
        if not 1 <= self.shingle <= 1000:
            raise InvalidInput(f"shingle={self.shingle!r} is not a number of words from 1 to 1,000; 5 is usual")
        if self.permutations % 8 or not 8 <= self.permutations <= 4096:
            raise InvalidInput(f"permutations={self.permutations!r} is not a multiple of 8 from 8 to 4,096; take 128")
        if not 0 < self.missed < 1:
            raise InvalidInput(f"missed={self.missed!r} is not a probability between 0 and 1; 1e-3 is usual")
        if self._missed_by_bands(self.similarity, rows=1) > self.missed / 2:
            raise InvalidInput(
                f"permutations={self.permutations} cannot find pairs of similarity {self.similarity} with a chance of "
                f"{self.missed} to miss one; raise permutations, similarity or missed"
            )

    @cached_property
    def rows(self) -> int:
        """Slots in a band: as many as keep the chance of no common band, at the similarity, within half of missed."""
        fits = [r for r in range(1, MOST_ROWS + 1) if self._missed_by_bands(self.similarity, r) <= self.missed / 2]
        return max(fits)

    @property
    def bands(self) -> int:
        """Bands of ``rows`` slots each; the last few slots may be in none."""
        return self.permutations // self.rows

    @cached_property
    def needed(self) -> int:
        """Slots that must agree to join a pair: as many as a pair of the similarity has but for half of missed."""
        from scipy.special import bdtr

        below = bdtr(np.arange(self.permutations, dtype=float), self.permutations, self.similarity)
        return max(int(np.count_nonzero(below <= self.missed / 2)), 1)

    def missed_at(self, similarity: float) -> float:
        """The chance, at most, that a pair of this similarity is not joined: no common band, or too few slots agree.

        (1 - s^rows)^bands + P[Binomial(K, s) < needed]; falls as the similarity rises. Rounded to nearest.
        """
        from scipy.special import bdtr

        few = float(bdtr(float(self.needed - 1), self.permutations, similarity))
        return min(self._missed_by_bands(similarity, self.rows) + few, 1.0)

    def joined_at(self, similarity: float) -> float:
        """The chance, at most, that a pair of this lower similarity is joined all the same, by its own signatures.

        min(1 - (1 - p^rows)^bands, P[Binomial(K, p) >= needed]) where p counts bytes that agree by chance.
        """
        from scipy.special import bdtrc

        agree = similarity + (1 - similarity) * CHANCE
        enough = float(bdtrc(float(self.needed - 1), self.permutations, agree))
        return min(1 - self._missed_by_bands(agree, self.rows), enough)

    def _missed_by_bands(self, similarity: float, rows: int) -> float:
        return float((1 - similarity**rows) ** (self.permutations // rows))

    def signatures(self, block: Block) -> NDArray[np.uint8]:
        """One row of K bytes for each example; it depends on that example's text alone."""
        from hush.scan.near_copies_kernels import shingle_hashes, shingle_offsets

        if not len(block):
            return np.empty((0, self.permutations), dtype=np.uint8)
        data, offset_N = _normalised(block.texts)
        start_N = shingle_offsets(data, offset_N, self.shingle)
        value_H = shingle_hashes(data, offset_N, self.shingle, start_N)
        matrix = _minhash().digest_matrix_from_flat_token_hashes(value_H, start_N, self.permutations, SEED)
        slot_NK = np.array(matrix.to_rows(), dtype=np.uint32)
        # Minima are small numbers: the product spreads them before one byte is kept.
        return ((slot_NK * np.uint32(0x9E3779B1)) >> np.uint32(24)).astype(np.uint8)

    def groups(self, signature_NK: NDArray[np.uint8]) -> "CopyGroups":
        """Who is a copy of whom, from the signatures of all examples in order. Needs about K + 32 bytes for each."""
        from hush.scan.near_copies_kernels import flatten, join_buckets

        signature_NK = np.ascontiguousarray(signature_NK)
        if signature_NK.dtype != np.uint8 or signature_NK.shape[1:] != (self.permutations,):
            raise InvalidInput(
                f"expected signatures of {self.permutations} bytes, got {signature_NK.dtype} {signature_NK.shape}; "
                "make them with the same Copies"
            )
        first_N = np.arange(len(signature_NK))
        # Equal signatures first: what follows sees one of each, so that many equal texts cost no more than one.
        digest_N = _digest(signature_NK)
        order_N = np.argsort(digest_N)
        join_buckets(signature_NK, order_N, digest_N[order_N], self.permutations, first_N)
        flatten(first_N)
        distinct_M = np.flatnonzero(first_N == np.arange(len(first_N)))
        for band in range(self.bands):
            key_M = _key(signature_NK[distinct_M, band * self.rows : (band + 1) * self.rows])
            order_M = np.argsort(key_M)
            join_buckets(signature_NK, distinct_M[order_M], key_M[order_M], self.needed, first_N)
        flatten(first_N)
        return CopyGroups(first_N=first_N, signature_NK=signature_NK, needed=self.needed)


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CopyGroups:
    """The groups of near copies. first_N: for each example the first example of its group, itself where it is alone."""

    first_N: NDArray[np.int64]
    signature_NK: NDArray[np.uint8]
    needed: int

    @property
    def num_groups(self) -> int:
        """Groups of two examples or more."""
        return int(np.count_nonzero(np.bincount(self.first_N) > 1)) if len(self.first_N) else 0

    @property
    def num_copies(self) -> int:
        """Examples that are not the first of their group."""
        return int(np.count_nonzero(self.first_N != np.arange(len(self.first_N))))

    def similarity(self, one: ArrayLike, other: ArrayLike) -> NDArray[np.float64]:
        """Estimated similarity of pairs of examples; its standard error is at most 0.5 / sqrt(K)."""
        one_P, other_P = np.asarray(one, dtype=np.int64), np.asarray(other, dtype=np.int64)
        agree_P = self._agreeing(one_P, other_P) / self.signature_NK.shape[1]
        return np.clip((agree_P - CHANCE) / (1 - CHANCE), 0.0, 1.0)

    def _agreeing(self, one_P: NDArray[np.int64], other_P: NDArray[np.int64]) -> NDArray[np.int64]:
        agree_P = np.empty(one_P.shape, dtype=np.int64)
        for begin in range(0, len(one_P), 65536):  # two copies of that many signatures at a time
            part = slice(begin, begin + 65536)
            agree_P[part] = (self.signature_NK[one_P[part]] == self.signature_NK[other_P[part]]).sum(axis=1)
        return agree_P

    def reasons(self, example: ArrayLike, origin: ArrayLike) -> list[str]:
        """Why each example has what the origin, of its group, contains; sentences without any text of either."""
        one_P, other_P = np.asarray(example, dtype=np.int64), np.asarray(origin, dtype=np.int64)
        linked_P = self._agreeing(one_P, other_P) >= self.needed
        how = ("in a chain of near copies with", "near copy of")  # alike only through others of the group, or directly
        columns = zip(linked_P.tolist(), other_P.tolist(), self.similarity(one_P, other_P).tolist(), strict=True)
        return [f"{how[linked]} example {k} (similarity about {similar:.2f})" for linked, k, similar in columns]

    def __repr__(self) -> str:
        return f"CopyGroups({len(self.first_N)} examples, {self.num_groups} groups, {self.num_copies} copies)"


def _minhash() -> Any:
    try:
        from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as error:
        raise InvalidInput('near copies need rensa; pip install "hush[copies]"') from error
    return RMinHash


def _normalised(texts: "pa.LargeStringArray") -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The texts' UTF-8 bytes, normalised, and where each begins and ends."""
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made at run time
    if not pc.all(pc.string_is_ascii(texts)).as_py():  # normalising changes nothing in ASCII; the loops lower it
        texts = pc.utf8_lower(pc.utf8_normalize(texts, form="NFKC"))
    _, offsets, data = texts.buffers()
    offset_N = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(data or b"", dtype=np.uint8), offset_N


def _key(byte_MR: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The bytes of a band as one number; equal exactly for equal bytes."""
    padded = np.zeros((len(byte_MR), MOST_ROWS), dtype=np.uint8)
    padded[:, : byte_MR.shape[1]] = byte_MR
    return padded.view("<u8").reshape(-1)


def _digest(signature_NK: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """A number that is equal for equal signatures and almost never for others."""
    digest_N = np.zeros(len(signature_NK), dtype=np.uint64)
    for column in signature_NK.view("<u8").T:
        digest_N ^= column
        digest_N *= np.uint64(0x9E3779B97F4A7C15)
        digest_N ^= digest_N >> np.uint64(29)
    return digest_N
