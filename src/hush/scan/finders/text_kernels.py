"""Inner loops over the UTF-8 of texts, compiled by Numba on first use.

Import only inside functions: loading the compiler is slow. Every loop releases the interpreter lock and none uses
Numba's own threads. What was compiled is kept until its own file changes: after a change to a function that is called
from another file, remove ``__pycache__``. The bytes are valid UTF-8. Offsets of characters count code points from the
start of the text.
Shapes: N texts, H hits.
"""

# pyright: basic

from typing import Any

import numpy as np
from numba import njit


def compiled(function: Any) -> Any:
    """Compiled once per machine and kept beside the source."""
    return njit(cache=True, nogil=True)(function)


@compiled
def longer(array, needed):
    """The array with room for at least this many entries, and for as many again."""
    out = np.empty(2 * needed, array.dtype)
    out[: array.size] = array
    return out


@compiled
def code_point(data, position):
    """The code point that begins here, and how many bytes it takes."""
    lead = np.int64(data[position])
    if lead < 0x80:
        return lead, 1
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | (data[position + 1] & 0x3F), 2
    low = (np.int64(data[position + 1]) & 0x3F) << 6 | (data[position + 2] & 0x3F)
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | low, 3
    return (lead & 0x07) << 18 | low << 6 | (data[position + 3] & 0x3F), 4


@compiled
def write_code_point(out, at, point):
    """Writes a code point as UTF-8; returns the position behind it."""
    if point < 0x80:
        out[at] = point
        return at + 1
    if point < 0x800:
        out[at] = 0xC0 | point >> 6
    else:
        if point < 0x10000:
            out[at] = 0xE0 | point >> 12
        else:
            out[at] = 0xF0 | point >> 18
            at += 1
            out[at] = 0x80 | (point >> 12 & 0x3F)
        at += 1
        out[at] = 0x80 | (point >> 6 & 0x3F)
    out[at + 1] = 0x80 | (point & 0x3F)
    return at + 2


@compiled
def characters_between(data, begin, end):
    """How many characters begin in these bytes."""
    count = 0
    for position in range(begin, end):
        count += (data[position] & 0xC0) != 0x80
    return count


@compiled
def fold_texts(data, offset_N, lower):
    """The texts with each code point folded, and their new offsets."""
    out = np.empty(2 * (offset_N[-1] - offset_N[0]) + 4, np.uint8)  # no code point doubles its bytes
    new_N = np.empty(offset_N.size, np.int64)
    at = 0
    for i in range(offset_N.size - 1):
        new_N[i] = at
        position = offset_N[i]
        while position < offset_N[i + 1]:
            if data[position] < 0x80:
                out[at] = lower[data[position]]
                at += 1
                position += 1
            else:
                point, width = code_point(data, position)
                position += width
                at = write_code_point(out, at, np.int64(lower[point]) if point < lower.size else point)
    new_N[-1] = at
    return out[:at], new_N


@compiled
def place_matches(data, offset_N, end_H, bytes_H, characters_H, word):
    """Which text each match lies in (-1 for none) and its first character there.

    Matches come by ascending end, each with its length in bytes and in characters. ``word``: the code points that must
    not stand on either side of a match; empty if any may.
    """
    example_H, begin_H = np.empty(end_H.size, np.int64), np.empty(end_H.size, np.int64)
    i, counted_to, characters = 0, offset_N[0], 0
    for match in range(end_H.size):
        end = end_H[match]
        while end > offset_N[i + 1]:
            i += 1
            counted_to, characters = offset_N[i], 0
        characters += characters_between(data, counted_to, end)
        counted_to = end
        begin = end - bytes_H[match]
        begin_H[match] = characters - characters_H[match]
        example_H[match] = i
        if begin < offset_N[i]:
            example_H[match] = -1  # it began in the text before
        elif word.size:
            if begin > offset_N[i]:
                before = begin - 1
                while data[before] & 0xC0 == 0x80:
                    before -= 1
                point = code_point(data, before)[0]
                if point < word.size and word[point]:
                    example_H[match] = -1
            if end < offset_N[i + 1]:
                point = code_point(data, end)[0]
                if point < word.size and word[point]:
                    example_H[match] = -1
    return example_H, begin_H
