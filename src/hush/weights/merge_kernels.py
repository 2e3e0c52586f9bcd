"""Inner loops that make equal columns one, and take values both ways, compiled by Numba on first use.

Import only inside functions. Columns of equal row lists may be one column of their joint upper bound: however its value
is split among them, every row holds the same. Shapes: N columns, S rows; ``open_N`` marks columns not decided yet.
"""

# pyright: basic

import numpy as np

from hush.weights.kernels import compiled

LENGTHS = 64  # columns are kept apart by length up to this


@compiled
def arranged(offset_N, row, num_rows):
    """An order of the columns, by length and then by first row, and their lists in this order.

    Loops over columns in this order run a third faster: equal lengths in a row, and rows that are near.
    """
    size = offset_N.size - 1
    by_row, by_length = np.zeros(num_rows + 2, np.int64), np.zeros(LENGTHS + 1, np.int64)
    for i in range(size):
        length = offset_N[i + 1] - offset_N[i]
        by_length[min(length, LENGTHS - 1) + 1] += 1
        by_row[row[offset_N[i]] + 2 if length > 0 else 1] += 1
    for j in range(num_rows + 1):
        by_row[j + 1] += by_row[j]
    for length in range(LENGTHS):
        by_length[length + 1] += by_length[length]
    near, order = np.empty(size, np.int32), np.empty(size, np.int32)
    for i in range(size):
        first = row[offset_N[i]] + 1 if offset_N[i + 1] > offset_N[i] else 0
        near[by_row[first]] = i
        by_row[first] += 1
    for k in range(size):
        i = near[k]
        length = min(offset_N[i + 1] - offset_N[i], LENGTHS - 1)
        order[by_length[length]] = i
        by_length[length] += 1
    offset, lists = np.zeros(size + 1, np.int64), np.empty(row.size, np.int32)
    at = 0
    for k in range(size):
        for entry in range(offset_N[order[k]], offset_N[order[k] + 1]):
            lists[at] = row[entry]
            at += 1
        offset[k + 1] = at
    return order, offset, lists


@compiled
def compacted(order, offset_N, row, open_N, number_S):
    """The open columns with their open rows only, renumbered, by length and then in ``order``; and which they are.

    ``number_S`` is the new number of a row, or -1; ``offset_N`` and ``row`` hold the columns in ``order``.
    """
    length = np.full(order.size, -1, np.int32)
    first, begin = np.zeros(LENGTHS + 1, np.int64), np.zeros(LENGTHS + 1, np.int64)
    for k in range(order.size):
        if open_N[order[k]]:
            count = 0
            for entry in range(offset_N[k], offset_N[k + 1]):
                count += number_S[row[entry]] >= 0
            length[k] = count
            first[min(count, LENGTHS - 1) + 1] += 1
            begin[min(count, LENGTHS - 1) + 1] += count
    for c in range(LENGTHS):
        first[c + 1] += first[c]
        begin[c + 1] += begin[c]
    source = np.empty(first[-1], np.int32)
    offset = np.empty(first[-1] + 1, np.int64)
    lists = np.empty(begin[-1], np.int32)
    offset[-1] = begin[-1]
    for k in range(order.size):
        if length[k] >= 0:
            c = min(length[k], LENGTHS - 1)
            source[first[c]], offset[first[c]] = order[k], begin[c]
            first[c] += 1
            at = begin[c]
            for entry in range(offset_N[k], offset_N[k + 1]):
                number = number_S[row[entry]]
                if number >= 0:
                    lists[at] = number
                    at += 1
            begin[c] = at
    return source, offset, lists


@compiled
def merged(source, offset, row, upper_N, column_N):
    """Columns of equal row lists become one, with their upper bounds added up; ``offset`` and ``row`` are spoilt.

    Returns the lists and upper bounds of what is left, and writes for each column which of these it is. Lists count as
    equal only when compared entry by entry; a hash says which to compare.
    """
    bits = 4
    while (1 << bits) < 2 * source.size:
        bits += 1
    table, mask = np.full(1 << bits, -1, np.int64), (1 << bits) - 1
    total = np.empty(source.size)
    size, end = 0, 0
    for k in range(source.size):
        begin, length = offset[k], offset[k + 1] - offset[k]
        code = np.uint64(0x9E3779B97F4A7C15)
        for entry in range(begin, begin + length):
            code = (code ^ np.uint64(row[entry] + 1)) * np.uint64(0xBF58476D1CE4E5B9)
            code ^= code >> np.uint64(29)
        tag, at, group = np.int64(code >> np.uint64(33)), np.int64(code & np.uint64(mask)), -1
        while table[at] >= 0:
            if table[at] >> 32 == tag:
                other = table[at] & 0xFFFFFFFF
                same = offset[other + 1] - offset[other] == length
                for entry in range(length):
                    same = same and row[offset[other] + entry] == row[begin + entry]
                if same:
                    group = other
                    break
            at = (at + 1) & mask
        i = source[k]
        if group < 0:
            group = size
            table[at] = tag << 32 | group
            total[group] = 0.0
            for entry in range(length):  # never ahead of what is read
                row[end + entry] = row[begin + entry]
            end += length
            size += 1
            offset[size] = end
        total[group] += upper_N[i]
        column_N[i] = group
    return offset[: size + 1].copy(), row[:end].copy(), total[:size].copy()


@compiled
def split(value, total, upper_N, column_N, fixed_N):
    """The values of merged columns, of joint upper bounds ``total``, split among the columns they were merged from."""
    value_N = fixed_N.copy()
    for i in range(value_N.size):
        k = column_N[i]
        if k >= 0:
            value_N[i] = upper_N[i] / total[k] * value[k]  # evenly, where their bounds are equal
    return value_N


@compiled
def joined(value_N, column_N, size):
    """The other way round: for each of ``size`` merged columns the sum over those that were merged into it."""
    value = np.zeros(size)
    for i in range(value_N.size):
        if column_N[i] >= 0:
            value[column_N[i]] += value_N[i]
    return value
