"""Inner loops over the UTF-8 of texts: folding, tokenising, counting and finding; compiled by Numba on first use.

Import only inside functions: loading the compiler is slow. Every loop releases the interpreter lock, and none uses
Numba's own threads. Compiled code is cached until this file changes. The bytes are valid UTF-8; offsets of characters
count code points from the start of the text.

A word list is the concatenated UTF-8 of its distinct words (``letters``) and the offset of each (``offset_W``). A hash
table with open addressing finds a word: ``slots`` holds word numbers, -1 if free, and words are compared byte by byte,
so equal hashes do no harm.
Shapes: N texts, W words, H hits.
"""

from typing import Any

import numpy as np
from numba import njit

from hush.scan.finders.unicode import BREAK, FORMULA, JOINER, KIND_SHIFT, LETTER, LETTER_AT_END, MARK

# pyright: basic


POINT_MASK = (1 << KIND_SHIFT) - 1
DOLLAR = ord("$")


def compiled(function: Any) -> Any:
    """Compiled once per machine and cached next to the source."""
    return njit(cache=True, nogil=True)(function)


@compiled
def grown(array, needed):
    """A copy of the array with room for twice as many entries as needed."""
    out = np.empty(2 * needed, array.dtype)
    out[: array.size] = array
    return out


@compiled
def code_point(data, position):
    """The code point at this byte, and its length in bytes."""
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
    """Writes a code point as UTF-8; returns the position after it."""
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
    """The number of characters that begin in these bytes."""
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
def place_matches(data, offset_N, end_H, bytes_H, characters_H, is_bounded_H, word, escapes):
    """The text of each match (-1 if it lies in none) and its first character there.

    Matches are sorted by end, each with its length in bytes and in characters. ``word``: code points that must not
    occur on either side of a match that is bounded. ``escapes``: the letter of an escaped line break or tab, as in
    JSON, may precede it.
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
        elif is_bounded_H[match]:
            if begin > offset_N[i]:
                before = begin - 1
                while data[before] & 0xC0 == 0x80:
                    before -= 1
                point = code_point(data, before)[0]
                is_escape = (
                    escapes and before > offset_N[i] and data[before - 1] == 0x5C and point in (0x6E, 0x72, 0x74)
                )
                if point < word.size and word[point] and not is_escape:
                    example_H[match] = -1
            if end < offset_N[i + 1]:
                point = code_point(data, end)[0]
                if point < word.size and word[point]:
                    example_H[match] = -1
    return example_H, begin_H


@compiled
def next_word(data, position, end, character, table, word):
    """The next word from this byte on, written folded into ``word``.

    Returns the byte and the character from which to continue, the word's first character and the one after its last,
    and its length in bytes, which is 0 at the end of the text.
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
    """All words in order, folded: their letters, and the offset of each."""
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
                letters = grown(letters, at + length)
            if num_words + 1 == offset_W.size:
                offset_W = grown(offset_W, num_words + 1)
            letters[at : at + length] = word[:length]
            offset_W[num_words + 1] = at + length
            num_words += 1
    return letters[: offset_W[num_words]].copy(), offset_W[: num_words + 1].copy()


@compiled
def hash_of(letters, begin, end):
    """FNV-1a with its high bits mixed into the low ones."""
    value = np.uint64(0xCBF29CE484222325)
    for position in range(begin, end):
        value = (value ^ np.uint64(letters[position])) * np.uint64(0x100000001B3)
    return value ^ (value >> np.uint64(29))


@compiled
def find_slot(slots, hash_W, letters, offset_W, source, begin, end, value):
    """The slot of a word and the word's number; the number is -1 if the word is not listed, and the slot then free."""
    mask = np.uint64(slots.size - 1)
    slot = value & mask
    while True:
        word = slots[slot]
        if word < 0:
            return slot, word
        if hash_W[word] == value and offset_W[word + 1] - offset_W[word] == end - begin:
            first, k = offset_W[word], 0
            while k < end - begin and letters[first + k] == source[begin + k]:
                k += 1
            if k == end - begin:
                return slot, word
        slot = (slot + np.uint64(1)) & mask


@compiled
def slots_for(hash_W, num_words, size):
    """The hash table of these distinct words."""
    slots = np.full(size, -1, np.int32)
    mask = np.uint64(size - 1)
    for word in range(num_words):
        slot = hash_W[word] & mask
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        slots[slot] = word
    return slots


@compiled
def word_index(letters, offset_W):
    """The hashes and the hash table of a word list."""
    num_words = offset_W.size - 1
    hash_W = np.empty(num_words, np.uint64)
    for word in range(num_words):
        hash_W[word] = hash_of(letters, offset_W[word], offset_W[word + 1])
    size = 16
    while size < 2 * num_words:
        size *= 2
    return hash_W, slots_for(hash_W, num_words, size)


@compiled
def append_word(letters, offset_W, count_W, hash_W, slots, num_words, source, begin, end, value, slot):
    """Adds a word that is not listed; returns the arrays, which may have been replaced by larger ones."""
    at = offset_W[num_words]
    if at + end - begin > letters.size:
        letters = grown(letters, at + end - begin)
    if num_words + 1 >= offset_W.size:
        offset_W, count_W, hash_W = (
            grown(offset_W, num_words + 2),
            grown(count_W, num_words + 2),
            grown(hash_W, num_words + 2),
        )
    letters[at : at + end - begin] = source[begin:end]
    offset_W[num_words + 1] = at + end - begin
    count_W[num_words] = 0
    hash_W[num_words] = value
    slots[slot] = num_words
    if 2 * (num_words + 1) > slots.size:
        slots = slots_for(hash_W, num_words + 1, 2 * slots.size)
    return letters, offset_W, count_W, hash_W, slots


@compiled
def count_words(data, offset_N, table):
    """The distinct words of these texts, and the number of texts with each: letters, offsets, counts."""
    longest = 0
    for i in range(offset_N.size - 1):
        longest = max(longest, offset_N[i + 1] - offset_N[i])
    word = np.empty(2 * longest + 4, np.uint8)  # no code point doubles its bytes when folded
    room = 1 << 12
    letters, offset_W, count_W = np.empty(8 * room, np.uint8), np.zeros(room, np.int64), np.empty(room, np.int64)
    hash_W, slots, num_words = np.empty(room, np.uint64), np.full(2 * room, -1, np.int32), 0
    last_W = np.empty(room, np.int64)  # the last text in which each word was counted
    for i in range(offset_N.size - 1):
        position, character = offset_N[i], 0
        while True:
            position, character, _, _, length = next_word(data, position, offset_N[i + 1], character, table, word)
            if length == 0:
                break
            value = hash_of(word, 0, length)
            slot, number = find_slot(slots, hash_W, letters, offset_W, word, 0, length, value)
            if number < 0:
                number = num_words
                letters, offset_W, count_W, hash_W, slots = append_word(
                    letters, offset_W, count_W, hash_W, slots, num_words, word, 0, length, value, slot
                )
                num_words += 1
                if num_words > last_W.size:
                    last_W = grown(last_W, num_words)
                last_W[number] = -1
            if last_W[number] != i:
                last_W[number] = i
                count_W[number] += 1
    return letters[: offset_W[num_words]].copy(), offset_W[: num_words + 1].copy(), count_W[:num_words].copy()


@compiled
def merge_counts(letters, offset_W, count_W, others, other_offset, other_count):
    """The union of two word lists, with the counts of equal words added."""
    num_words = offset_W.size - 1
    hash_W, slots = word_index(letters, offset_W)
    all_letters, all_offset, all_count = (
        grown(letters, letters.size + 1),
        grown(offset_W, offset_W.size),
        grown(count_W, offset_W.size),
    )
    all_hash = grown(hash_W, offset_W.size)
    for k in range(other_offset.size - 1):
        begin, end = other_offset[k], other_offset[k + 1]
        value = hash_of(others, begin, end)
        slot, number = find_slot(slots, all_hash, all_letters, all_offset, others, begin, end, value)
        if number < 0:
            number = num_words
            all_letters, all_offset, all_count, all_hash, slots = append_word(
                all_letters, all_offset, all_count, all_hash, slots, num_words, others, begin, end, value, slot
            )
            num_words += 1
        all_count[number] += other_count[k]
    end = all_offset[num_words]
    return all_letters[:end].copy(), all_offset[: num_words + 1].copy(), all_count[:num_words].copy()


@compiled
def find_words(data, offset_N, table, letters, offset_W, hash_W, slots):
    """Every occurrence of the listed words: example, word, first character and the one after the last."""
    longest = 0
    for i in range(offset_N.size - 1):
        longest = max(longest, offset_N[i + 1] - offset_N[i])
    word = np.empty(2 * longest + 4, np.uint8)
    example_H, word_H, begin_H, end_H = (
        np.empty(1024, np.int64),
        np.empty(1024, np.int64),
        np.empty(1024, np.int64),
        np.empty(1024, np.int64),
    )
    num_hits = 0
    for i in range(offset_N.size - 1):
        position, character = offset_N[i], 0
        while True:
            position, character, begin, stop, length = next_word(
                data, position, offset_N[i + 1], character, table, word
            )
            if length == 0:
                break
            value = hash_of(word, 0, length)
            number = find_slot(slots, hash_W, letters, offset_W, word, 0, length, value)[1]
            if number < 0:
                continue
            if num_hits == example_H.size:
                example_H, word_H = grown(example_H, num_hits), grown(word_H, num_hits)
                begin_H, end_H = grown(begin_H, num_hits), grown(end_H, num_hits)
            example_H[num_hits], word_H[num_hits], begin_H[num_hits], end_H[num_hits] = i, number, begin, stop
            num_hits += 1
    return example_H[:num_hits].copy(), word_H[:num_hits].copy(), begin_H[:num_hits].copy(), end_H[:num_hits].copy()
