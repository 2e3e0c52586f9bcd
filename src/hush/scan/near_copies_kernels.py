"""Inner loops of near_copies.py, compiled by Numba on first use.

Import only inside functions: loading the compiler is slow. Every loop releases the interpreter lock, and none uses
Numba's own threads. Shapes: N examples, K slots of a signature, M members of buckets, H shingles.
"""

from typing import Any

import numpy as np
from numba import njit

# pyright: basic


WORD_START = np.uint64(0xCBF29CE484222325)  # FNV-1a, 64 bits
WORD_STEP = np.uint64(0x100000001B3)
BYTES_START = np.uint64(
    0x84222325CBF29CE4
)  # another start than for words, so that a text without words never equals a word
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)  # the finaliser of SplitMix64
MIX_2 = np.uint64(0x94D049BB133111EB)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)

SEPARATOR, LETTER, ALONE = 0, 1, 2


def compiled(function: Any) -> Any:
    """Compiled once per machine and cached next to the source."""
    return njit(cache=True, nogil=True)(function)


@compiled
def splitmix64(value):
    """The finaliser of SplitMix64: a bijection that mixes 64 bits."""
    value = (value ^ (value >> np.uint64(30))) * MIX_1
    value = (value ^ (value >> np.uint64(27))) * MIX_2
    return value ^ (value >> np.uint64(31))


@compiled
def character(data, position, end):
    """The kind of the UTF-8 character at ``position``, and its length in bytes."""
    first = data[position]
    if first < 0x80:
        letter = 97 <= first <= 122 or 65 <= first <= 90 or 48 <= first <= 57
        return (LETTER if letter else SEPARATOR), 1
    length = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    length = min(length, end - position)
    code = np.int64(first) & (0xFF >> (length + 1))
    for k in range(1, length):
        code = (code << 6) | (np.int64(data[position + k]) & 0x3F)
    if code < 0xC0 or code == 0xD7 or code == 0xF7 or 0x2000 <= code < 0x2070:
        return SEPARATOR, length  # Latin signs, × and ÷, spaces, dashes and quotation marks
    if 0x3000 <= code <= 0x3004 or 0x3008 <= code <= 0x3020:
        return SEPARATOR, length  # East Asian punctuation
    # Scripts that put no space between words: Thai and Lao, Burmese, Khmer, and everything from the Han radicals on.
    if code >= 0x2E80 or 0xE00 <= code < 0xF00 or 0x1000 <= code < 0x10A0 or 0x1780 <= code < 0x1800:
        return ALONE, length
    return LETTER, length


@compiled
def next_word(data, position, end):
    """The hash of the next word at or after ``position``, and its end; the end is -1 if no word is left."""
    value = WORD_START
    inside = False
    while position < end:
        kind, length = character(data, position, end)
        if kind != LETTER and inside:
            return value, position
        if kind != SEPARATOR:
            for k in range(length):
                byte = data[position + k]
                if 65 <= byte <= 90:
                    byte += np.uint8(32)
                value = (value ^ np.uint64(byte)) * WORD_STEP
            inside = True
        position += length
        if kind == ALONE:
            return value, position
    return value, (position if inside else -1)


@compiled
def shingle_offsets(data, offset_N, size):
    """The index of each text's first shingle among those of all texts; the last entry is the total."""
    start_N = np.zeros(offset_N.size, np.uint64)
    for n in range(offset_N.size - 1):
        words = 0
        _, position = next_word(data, offset_N[n], offset_N[n + 1])
        while position >= 0:
            words += 1
            _, position = next_word(data, position, offset_N[n + 1])
        start_N[n + 1] = start_N[n] + np.uint64(max(words - size + 1, 1))
    return start_N


@compiled
def shingle_hashes(data, offset_N, size, start_N):
    """A hash of every run of ``size`` words; of all words if there are fewer, of the bytes if there are no words.

    Every text has at least one shingle, so equal texts always have equal, non-empty sets.
    """
    value_H = np.empty(np.int64(start_N[-1]), np.uint64)
    ring = np.empty(size, np.uint64)  # hashes of the last ``size`` words; word w is at w % size
    for n in range(offset_N.size - 1):
        end = offset_N[n + 1]
        out = np.int64(start_N[n])
        words = 0
        word, position = next_word(data, offset_N[n], end)
        while position >= 0:
            ring[words % size] = word
            words += 1
            if words >= size:
                value = np.uint64(0)
                for k in range(words - size, words):
                    value = splitmix64(value + ring[k % size] + GOLDEN)
                value_H[out] = value
                out += 1
            word, position = next_word(data, position, end)
        if words < size:
            value = np.uint64(0)
            for k in range(words):
                value = splitmix64(value + ring[k] + GOLDEN)
            if words == 0:
                value = BYTES_START
                for position in range(offset_N[n], end):
                    value = (value ^ np.uint64(data[position])) * WORD_STEP
                value = splitmix64(value)
            value_H[out] = value
    return value_H


@compiled
def root_of(parent_N, n):
    """The first member of n's group so far (union-find with path halving)."""
    while parent_N[n] != n:
        parent_N[n] = parent_N[parent_N[n]]
        n = parent_N[n]
    return n


@compiled
def join_if_similar(signature_NK, first, second, needed, parent_N):
    """Joins the groups of two examples if at least ``needed`` slots agree; the lower first member becomes the root."""
    a, b = root_of(parent_N, first), root_of(parent_N, second)
    if a == b:
        return
    agree = 0
    for k in range(signature_NK.shape[1]):
        agree += signature_NK[first, k] == signature_NK[second, k]
    if agree >= needed:
        parent_N[max(a, b)] = min(a, b)


@compiled
def join_buckets(signature_NK, member_M, key_M, needed, parent_N):
    """Joins all pairs in the same bucket (adjacent equal keys) that agree in ``needed`` slots.

    Pairs that are already in one group are skipped, so a bucket of copies costs one comparison per member, and a bucket
    of dissimilar texts costs all pairs. ``member_M`` is reordered within buckets.
    """
    start = 0
    while start < member_M.size:
        end = start + 1
        while end < member_M.size and key_M[end] == key_M[start]:
            end += 1
        pivot = member_M[start]
        for m in range(start + 1, end):
            join_if_similar(signature_NK, pivot, member_M[m], needed, parent_N)
        # Members outside the pivot's group move to the front, and each is compared with all members after it.
        apart = start
        for m in range(start, end):
            if root_of(parent_N, member_M[m]) != root_of(parent_N, pivot):
                member_M[apart], member_M[m] = member_M[m], member_M[apart]
                apart += 1
        for m in range(start, apart):
            for other in range(m + 1, end):
                join_if_similar(signature_NK, member_M[m], member_M[other], needed, parent_N)
        start = end


@compiled
def flatten(parent_N):
    """Makes every example point at its group's first member; a parent never comes after its children."""
    for n in range(parent_N.size):
        parent_N[n] = parent_N[parent_N[n]]
