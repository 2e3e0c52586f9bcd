"""Near copies: MinHash signatures of examples, and the groups of similar examples that inherit each other's secrets.

A text is the set of its runs of ``shingle`` consecutive words (shingles); the similarity of two texts is the Jaccard
similarity of their sets: shared shingles divided by all shingles. MinHash (the rensa library) turns a set into K slots,
each of which agrees for two texts with probability equal to their similarity; one byte of each slot is kept. Texts that
agree in all slots of some band are compared slot by slot, and those that agree in enough slots are joined; groups are
the connected components.

Words: after Unicode normalisation (NFKC) and lower-casing, the text between white space, controls and punctuation (of
ASCII, Latin-1, U+2000 to U+206F and East Asia). A character of a script without spaces (Thai, Lao, Burmese, Khmer, and
all from U+2E80 on) is a word by itself. A text with fewer words than a shingle has one shingle, all its words, so its
copies equal it up to case and punctuation; a text without words is a copy only of texts with the same characters. Equal
texts are always joined.

Signatures are hashes without a key: they stay in memory and between the processes of a scan, and are never written to a
file. Shapes: N examples, K slots, P pairs of examples, H shingles of a block, M members of buckets.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.scan.finders.unicode import bytes_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Copies", "CopyGroups"]


MINHASH_SEED = 42  # any number, but the same in every process
CHANCE_AGREEMENT = 1 / 256  # probability that the kept bytes of two different slots agree
MAX_BAND_ROWS = 8  # bytes in the 64-bit key of a band
PAIRS_AT_ONCE = 65_536  # whose signatures are compared in one array operation


@final
@dataclass(frozen=True, kw_only=True)
class Copies:
    """Which examples count as copies of each other.

    similarity: pairs at least this similar are joined. shingle: words in a run; editing one word changes that many
    runs. permutations: slots of a signature, and bytes kept per example. missed: an upper bound for the probability
    that a pair of exactly that similarity is not joined by its own signatures; it falls with the similarity.

    Guarantee: equal texts are always joined. The probability is over the hash functions, for slots that agree
    independently; slots of rensa vary less than that (each shingle goes to one of them).

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
            raise InvalidInput(f"similarity={self.similarity!r} is not in (0, 1]; pass a number such as 0.8")
        if not 1 <= self.shingle <= 1000:
            raise InvalidInput(f"shingle={self.shingle!r} is not from 1 to 1,000; pass a number of words such as 5")
        if self.permutations % 8 or not 8 <= self.permutations <= 4096:
            raise InvalidInput(
                f"permutations={self.permutations!r} is not a multiple of 8 from 8 to 4,096; pass 128, for example"
            )
        if not 0 < self.missed < 1:
            raise InvalidInput(f"missed={self.missed!r} is not between 0 and 1; pass a probability, such as 1e-3")
        if self._missed_by_bands(self.similarity, rows=1) > self.missed / 2:
            raise InvalidInput(
                f"permutations={self.permutations} cannot find pairs of similarity {self.similarity} and miss one with "
                f"probability at most {self.missed}; raise permutations, similarity or missed"
            )

    @cached_property
    def rows(self) -> int:
        """Slots in a band: the most with which pairs of the similarity share no band with probability <= missed / 2."""
        fits = [r for r in range(1, MAX_BAND_ROWS + 1) if self._missed_by_bands(self.similarity, r) <= self.missed / 2]
        return max(fits)

    @property
    def bands(self) -> int:
        """The number of bands of ``rows`` slots; the last few slots may be in no band."""
        return self.permutations // self.rows

    @cached_property
    def needed(self) -> int:
        """Slots that must agree to join a pair: pairs of the similarity have fewer with probability <= missed / 2."""
        from scipy.special import bdtr

        below = bdtr(np.arange(self.permutations, dtype=float), self.permutations, self.similarity)
        return max(int(np.count_nonzero(below <= self.missed / 2)), 1)

    def missed_at(self, similarity: float) -> float:
        """An upper bound for the probability that a pair of this similarity is not joined.

        No common band, or too few slots that agree: (1 - s^rows)^bands + P[Binomial(K, s) < needed], which falls as the
        similarity rises. Rounded to nearest.
        """
        from scipy.special import bdtr

        few = float(bdtr(float(self.needed - 1), self.permutations, similarity))
        return min(self._missed_by_bands(similarity, self.rows) + few, 1.0)

    def joined_at(self, similarity: float) -> float:
        """An upper bound for the probability that a pair of this lower similarity is joined by its own signatures.

        min(1 - (1 - p^rows)^bands, P[Binomial(K, p) >= needed]) where p counts bytes that agree by chance.
        """
        from scipy.special import bdtrc

        agree = similarity + (1 - similarity) * CHANCE_AGREEMENT
        enough = float(bdtrc(float(self.needed - 1), self.permutations, agree))
        return min(1 - self._missed_by_bands(agree, self.rows), enough)

    def _missed_by_bands(self, similarity: float, rows: int) -> float:
        return float((1 - similarity**rows) ** (self.permutations // rows))

    def signatures(self, block: Block) -> NDArray[np.uint8]:
        """One row of K bytes for each example, which depends on the text of that example alone."""
        from hush.scan.near_copies_kernels import shingle_hashes, shingle_offsets

        if not len(block):
            return np.empty((0, self.permutations), dtype=np.uint8)
        data, offset_N = _normalised(block.texts)
        start_N = shingle_offsets(data, offset_N, self.shingle)
        value_H = shingle_hashes(data, offset_N, self.shingle, start_N)
        matrix = _minhash().digest_matrix_from_flat_token_hashes(value_H, start_N, self.permutations, MINHASH_SEED)
        slot_NK = np.array(matrix.to_rows(), dtype=np.uint32)
        # Minima are small numbers: the product mixes their bits before one byte is kept.
        return ((slot_NK * np.uint32(0x9E3779B1)) >> np.uint32(24)).astype(np.uint8)

    def groups(self, signature_NK: NDArray[np.uint8]) -> "CopyGroups":
        """The groups of copies, from the signatures of all examples in order. Needs about K + 32 bytes per example."""
        from hush.scan.near_copies_kernels import flatten, join_buckets

        signature_NK = np.ascontiguousarray(signature_NK)
        if signature_NK.dtype != np.uint8 or signature_NK.shape[1:] != (self.permutations,):
            raise InvalidInput(
                f"expected signatures of {self.permutations} bytes, got {signature_NK.dtype} {signature_NK.shape}; "
                "make them with the same Copies"
            )
        first_N = np.arange(len(signature_NK))
        # Join equal signatures first: the bands then see one of each, so many equal texts cost no more than one.
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
    """The groups of near copies. first_N: the first example of each example's group."""

    first_N: NDArray[np.int64]
    signature_NK: NDArray[np.uint8]
    needed: int

    @property
    def num_groups(self) -> int:
        """The number of groups of two or more examples."""
        return int(np.count_nonzero(np.bincount(self.first_N) > 1)) if len(self.first_N) else 0

    @property
    def num_copies(self) -> int:
        """The number of examples that are not the first of their group."""
        return int(np.count_nonzero(self.first_N != np.arange(len(self.first_N))))

    def similarity(self, first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
        """Estimated similarity of pairs of examples; its standard error is at most 0.5 / sqrt(K)."""
        first_P, second_P = np.asarray(first, dtype=np.int64), np.asarray(second, dtype=np.int64)
        agree_P = self._agreeing(first_P, second_P) / self.signature_NK.shape[1]
        return np.clip((agree_P - CHANCE_AGREEMENT) / (1 - CHANCE_AGREEMENT), 0.0, 1.0)

    def _agreeing(self, first_P: NDArray[np.int64], second_P: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of slots in which each pair agrees."""
        agree_P = np.empty(first_P.shape, dtype=np.int64)
        for begin in range(0, len(first_P), PAIRS_AT_ONCE):
            part = slice(begin, begin + PAIRS_AT_ONCE)
            agree_P[part] = (self.signature_NK[first_P[part]] == self.signature_NK[second_P[part]]).sum(axis=1)
        return agree_P

    def reasons(self, example: ArrayLike, origin: ArrayLike) -> list[str]:
        """Why each example inherits the secrets of its origin, in the same group; sentences without any text."""
        example_P, origin_P = np.asarray(example, dtype=np.int64), np.asarray(origin, dtype=np.int64)
        linked_P = self._agreeing(example_P, origin_P) >= self.needed
        relation = (
            "in a chain of near copies with",
            "near copy of",
        )  # similar through others of the group, or directly
        columns = zip(linked_P.tolist(), origin_P.tolist(), self.similarity(example_P, origin_P).tolist(), strict=True)
        return [f"{relation[linked]} example {k} (similarity about {similar:.2f})" for linked, k, similar in columns]

    def __repr__(self) -> str:
        return f"CopyGroups({len(self.first_N)} examples, {self.num_groups} groups, {self.num_copies} copies)"


def _minhash() -> Any:
    try:
        from rensa import RMinHash  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as error:
        raise InvalidInput('near copies need rensa; pip install "hush[copies]"') from error
    return RMinHash


def _normalised(texts: "pa.LargeStringArray") -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The normalised UTF-8 bytes of the texts, and their offsets."""
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are made at run time
    if not pc.all(pc.string_is_ascii(texts)).as_py():  # normalising does not change ASCII, and the kernels lower it
        texts = pc.utf8_lower(pc.utf8_normalize(texts, form="NFKC"))
    return bytes_of(texts)


def _key(byte_MR: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """The bytes of a band as one 64-bit number."""
    padded = np.zeros((len(byte_MR), MAX_BAND_ROWS), dtype=np.uint8)
    padded[:, : byte_MR.shape[1]] = byte_MR
    return padded.view("<u8").reshape(-1)


def _digest(signature_NK: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """A 64-bit hash of each signature."""
    digest_N = np.zeros(len(signature_NK), dtype=np.uint64)
    for column in signature_NK.view("<u8").T:
        digest_N ^= column
        digest_N *= np.uint64(0x9E3779B97F4A7C15)
        digest_N ^= digest_N >> np.uint64(29)
    return digest_N
