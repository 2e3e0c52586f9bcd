"""Inner loops of counting and finding words, compiled by Numba on first use.

Import only inside functions: loading the compiler is slow. A word list is the UTF-8 of its distinct words one after
another (``letters``) and where each begins (``offset_W``). It is looked up by a hash table of open addressing:
``slots`` holds word numbers, -1 where free, and a word is known by comparing its bytes, so that equal hashes do no
harm. Words are those of ``next_word``, which is compiled into these loops.
Shapes: N texts, W words, H hits.
"""

# pyright: basic

import numpy as np

from hush.scan.finders.text_kernels import compiled, longer
from hush.scan.finders.token_kernels import next_word


@compiled
def hash_of(letters, begin, end):
    """FNV-1a with its high bits mixed into the low ones."""
    value = np.uint64(0xCBF29CE484222325)
    for position in range(begin, end):
        value = (value ^ np.uint64(letters[position])) * np.uint64(0x100000001B3)
    return value ^ (value >> np.uint64(29))


@compiled
def located(slots, hash_W, letters, offset_W, source, begin, end, value):
    """The slot of a word, and its number, or -1 where that slot is free for it."""
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
def indexed(hash_W, num_words, size):
    """Slots for these words, which are distinct."""
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
    """Hashes and slots of a word list."""
    num_words = offset_W.size - 1
    hash_W = np.empty(num_words, np.uint64)
    for word in range(num_words):
        hash_W[word] = hash_of(letters, offset_W[word], offset_W[word + 1])
    size = 16
    while size < 2 * num_words:
        size *= 2
    return hash_W, indexed(hash_W, num_words, size)


@compiled
def appended(letters, offset_W, count_W, hash_W, slots, num_words, source, begin, end, value, slot):
    """Adds a word that is not there; returns the arrays, which may be new ones."""
    at = offset_W[num_words]
    if at + end - begin > letters.size:
        letters = longer(letters, at + end - begin)
    if num_words + 1 >= offset_W.size:
        offset_W, count_W, hash_W = (
            longer(offset_W, num_words + 2),
            longer(count_W, num_words + 2),
            longer(hash_W, num_words + 2),
        )
    letters[at : at + end - begin] = source[begin:end]
    offset_W[num_words + 1] = at + end - begin
    count_W[num_words] = 0
    hash_W[num_words] = value
    slots[slot] = num_words
    if 2 * (num_words + 1) > slots.size:
        slots = indexed(hash_W, num_words + 1, 2 * slots.size)
    return letters, offset_W, count_W, hash_W, slots


@compiled
def count_words(data, offset_N, table):
    """The distinct words of these texts, and in how many texts each occurs: letters, offsets, counts."""
    longest = 0
    for i in range(offset_N.size - 1):
        longest = max(longest, offset_N[i + 1] - offset_N[i])
    word = np.empty(2 * longest + 4, np.uint8)  # no code point doubles its bytes when folded
    room = 1 << 12
    letters, offset_W, count_W = np.empty(8 * room, np.uint8), np.zeros(room, np.int64), np.empty(room, np.int64)
    hash_W, slots, num_words = np.empty(room, np.uint64), np.full(2 * room, -1, np.int32), 0
    last_W = np.empty(room, np.int64)  # the text that counted a word last
    for i in range(offset_N.size - 1):
        position, character = offset_N[i], 0
        while True:
            position, character, _, _, length = next_word(data, position, offset_N[i + 1], character, table, word)
            if length == 0:
                break
            value = hash_of(word, 0, length)
            slot, number = located(slots, hash_W, letters, offset_W, word, 0, length, value)
            if number < 0:
                number = num_words
                letters, offset_W, count_W, hash_W, slots = appended(
                    letters, offset_W, count_W, hash_W, slots, num_words, word, 0, length, value, slot
                )
                num_words += 1
                if num_words > last_W.size:
                    last_W = longer(last_W, num_words)
                last_W[number] = -1
            if last_W[number] != i:
                last_W[number] = i
                count_W[number] += 1
    return letters[: offset_W[num_words]].copy(), offset_W[: num_words + 1].copy(), count_W[:num_words].copy()


@compiled
def merge_counts(letters, offset_W, count_W, others, other_offset, other_count):
    """Two word lists as one, the counts of equal words added."""
    num_words = offset_W.size - 1
    hash_W, slots = word_index(letters, offset_W)
    all_letters, all_offset, all_count = (
        longer(letters, letters.size + 1),
        longer(offset_W, offset_W.size),
        longer(count_W, offset_W.size),
    )
    all_hash = longer(hash_W, offset_W.size)
    for k in range(other_offset.size - 1):
        begin, end = other_offset[k], other_offset[k + 1]
        value = hash_of(others, begin, end)
        slot, number = located(slots, all_hash, all_letters, all_offset, others, begin, end, value)
        if number < 0:
            number = num_words
            all_letters, all_offset, all_count, all_hash, slots = appended(
                all_letters, all_offset, all_count, all_hash, slots, num_words, others, begin, end, value, slot
            )
            num_words += 1
        all_count[number] += other_count[k]
    end = all_offset[num_words]
    return all_letters[:end].copy(), all_offset[: num_words + 1].copy(), all_count[:num_words].copy()


@compiled
def find_words(data, offset_N, table, letters, offset_W, hash_W, slots):
    """Every occurrence of the listed words: example, word, first character and the one behind the last."""
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
    found = 0
    for i in range(offset_N.size - 1):
        position, character = offset_N[i], 0
        while True:
            position, character, begin, stop, length = next_word(
                data, position, offset_N[i + 1], character, table, word
            )
            if length == 0:
                break
            value = hash_of(word, 0, length)
            number = located(slots, hash_W, letters, offset_W, word, 0, length, value)[1]
            if number < 0:
                continue
            if found == example_H.size:
                example_H, word_H = longer(example_H, found), longer(word_H, found)
                begin_H, end_H = longer(begin_H, found), longer(end_H, found)
            example_H[found], word_H[found], begin_H[found], end_H[found] = i, number, begin, stop
            found += 1
    return example_H[:found].copy(), word_H[:found].copy(), begin_H[:found].copy(), end_H[:found].copy()
