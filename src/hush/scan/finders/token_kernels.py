"""Inner loops of tokenising, compiled by Numba on first use.

Import only inside functions: loading the compiler is slow. Shapes: N texts, W words.
"""

# pyright: basic

import numpy as np

from hush.scan.finders.characters import BREAK, FORMULA, JOINER, KIND_SHIFT, LETTER, LETTER_AT_END, MARK
from hush.scan.finders.text_kernels import code_point, compiled, longer, write_code_point

POINT_MASK = (1 << KIND_SHIFT) - 1
DOLLAR = ord("$")


@compiled
def next_word(data, position, end, character, table, word):
    """The next word from this byte on, written folded into ``word``.

    Returns the byte and the character to go on from, the word's first character and the one behind it, and its length
    in bytes: 0 when the text is over.
    """
    length, begin, stop, joiner = 0, 0, 0, 0
    while position < end:
        point, width = code_point(data, position)
        entry = np.int64(table[point]) if point < table.size else BREAK << KIND_SHIFT
        kind = entry >> KIND_SHIFT
        if kind in (LETTER, LETTER_AT_END) or (kind == MARK and length and not joiner):
            if length == 0:
                begin = character
            elif joiner:
                length = write_code_point(word, length, joiner)
                joiner = 0
            length = write_code_point(word, length, entry & POINT_MASK)
            stop = character + 1
            if kind == LETTER_AT_END:
                return position + width, character + 1, begin, stop, length
        elif length:
            if kind != JOINER or joiner:
                break
            joiner = entry & POINT_MASK  # counts only if a letter follows
        elif kind == FORMULA:
            closing, skipped = position + 1, 1
            while closing < end and data[closing] != DOLLAR:
                skipped += (data[closing] & 0xC0) != 0x80
                closing += 1
            if closing < end:
                position, character = closing, character + skipped
        position += width
        character += 1
    return position, character, begin, stop, length


@compiled
def split_words(data, offset_N, table):
    """All words one after another, folded: letters, and where each begins."""
    word = np.empty(2 * (offset_N[-1] - offset_N[0]) + 4, np.uint8)
    letters, offset_W, num_words = np.empty(64, np.uint8), np.zeros(64, np.int64), 0
    for i in range(offset_N.size - 1):
        position, character = offset_N[i], 0
        while True:
            position, character, _, _, length = next_word(data, position, offset_N[i + 1], character, table, word)
            if length == 0:
                break
            at = offset_W[num_words]
            if at + length > letters.size:
                letters = longer(letters, at + length)
            if num_words + 1 == offset_W.size:
                offset_W = longer(offset_W, num_words + 1)
            letters[at : at + length] = word[:length]
            offset_W[num_words + 1] = at + length
            num_words += 1
    return letters[: offset_W[num_words]].copy(), offset_W[: num_words + 1].copy()
