"""Inner loops of presolve, compiled by Numba on first use; import only inside functions.

The first group decides rows and columns. Each loop changes the program only where an optimal point survives; its
docstring gives the argument. The second group merges equal columns and maps values between the two programs: columns
with equal row lists may be one column with the sum of their upper bounds, since however its value is split among them,
every row has the same load.

Shapes: N columns, S rows; ``open_N`` and ``open_S`` mark columns not decided yet and rows not dropped yet.
"""

import numpy as np

from hush.weights.sparse_kernels import compiled

# pyright: basic


@compiled
def private_sums(offset_S, column, offset_N, upper_N):
    """For each row the upper bounds of the columns in no other row, added up."""
    total = np.zeros(offset_S.size - 1)
    for j in range(total.size):
        for entry in range(offset_S[j], offset_S[j + 1]):
            i = column[entry]
            if offset_N[i + 1] - offset_N[i] == 1:
                total[j] += upper_N[i]
    return total


@compiled
def settle(
    offset_S, column, offset_N, row, capacity_S, upper_N, open_N, open_S, degree_N, fixed_N, dual_S, bounding_N,
    room_S, private_S, count_S, lost_S, gained_S, highest, tracking,
):  # fmt: skip
    """One round over all open rows and columns, in place; returns the number of decisions that could lead to others.

    A row, with the open columns in it:
    - whose upper bounds fit into its capacity cannot bind: drop it;
    - of capacity 0 forces its columns to 0 (its dual may be as large as need be at no cost: 1 covers each of them);
    - of one column is an upper bound: move it there;
    - whose private columns (in no other row) can fill it alone: some optimum has them fill it and every other column
      of the row at 0, since moving weight from such a column to a private one keeps the sum, the row's load and all
      bounds, and only lowers other loads. Its dual is then 1.
    A column in no row takes its upper bound.

    room_S, private_S and count_S hold the sums over the open columns of a row at its last visit; since then the row
    lost at most lost_S of them, or parts of them, and at most gained_S became private. No upper bound is above
    ``highest``, so most rows need no second visit; 1e-9 is for rounding, and a visit in vain does no harm. Without
    ``tracking``, which pays only where few rows are decided, losses and gains are not counted: the next round must
    visit all rows.
    """
    decided = 0
    for j in range(capacity_S.size):
        if not open_S[j]:
            continue
        lost, gained = lost_S[j], gained_S[j]
        may_fit = capacity_S[j] >= (room_S[j] - lost * highest) * (1.0 - 1e-9)
        may_fill = capacity_S[j] <= (private_S[j] + gained * highest) * (1.0 + 1e-9)
        if not (may_fit or may_fill or count_S[j] - lost <= 1):
            continue
        if capacity_S[j] < room_S[j]:
            room, private, count = 0.0, 0.0, 0
            for entry in range(offset_S[j], offset_S[j + 1]):
                i = column[entry]
                if open_N[i]:
                    room += upper_N[i]
                    count += 1
                    if degree_N[i] == 1:
                        private += upper_N[i]
            room_S[j], private_S[j], count_S[j], lost_S[j], gained_S[j] = room, private, count, 0, 0
        if capacity_S[j] < room_S[j]:
            if capacity_S[j] == 0.0 or (count_S[j] > 1 and private_S[j] >= capacity_S[j]):
                dual_S[j] = 1.0
                for entry in range(offset_S[j], offset_S[j + 1]):
                    i = column[entry]
                    if open_N[i]:
                        open_N[i] = False
                        decided += 1
                        if degree_N[i] > 1:
                            for other in range(offset_N[i], offset_N[i + 1] if tracking else 0):
                                lost_S[row[other]] += 1
                        elif capacity_S[j] > 0.0:
                            fixed_N[i] = upper_N[i] * (capacity_S[j] / private_S[j])
            elif count_S[j] == 1:
                for entry in range(offset_S[j], offset_S[j + 1]):
                    i = column[entry]
                    if open_N[i]:
                        upper_N[i] = capacity_S[j]
                        bounding_N[i] = j
                        for other in range(offset_N[i], offset_N[i + 1]):
                            lost_S[row[other]] += 1
            else:
                continue
        open_S[j] = False
        decided += 1
        for entry in range(offset_S[j], offset_S[j + 1]):
            i = column[entry]
            degree_N[i] -= 1
            if tracking and degree_N[i] == 1 and open_N[i]:  # private now, to a row that has not counted it yet
                for other in range(offset_N[i], offset_N[i + 1]):
                    gained_S[row[other]] += 1
    for i in range(upper_N.size):
        if open_N[i] and degree_N[i] == 0:
            open_N[i] = False
            fixed_N[i] = upper_N[i]
    return decided


@compiled
def dominated_columns(offset_S, column, offset_N, row, capacity_S, upper_N, most):
    """Columns that some optimum leaves at 0, because a column on a proper subset of their rows can take their weight.

    Let D be a column with upper bound at least the least capacity among its rows, and i one whose rows include D's
    and more. From any optimum move all of w_i to D: the sum stays, D's rows keep their loads, i's other rows lose
    load, and w_D stays within its bound because a row of D caps it below that. Repeat along the proper subset order,
    which has no cycles, so all marked columns can be 0 at once. The search stops after ``most`` comparisons.
    """
    size = upper_N.size
    mask = np.zeros(size, np.uint64)
    for i in range(size):
        for entry in range(offset_N[i], offset_N[i + 1]):
            mask[i] |= np.uint64(1) << np.uint64((row[entry] * 2654435761) & 63)
    gone = np.zeros(size, np.bool_)
    work = 0
    for d in range(size):
        degree = offset_N[d + 1] - offset_N[d]
        if gone[d] or degree == 0 or work > most:
            continue
        least, shortest = np.inf, row[offset_N[d]]
        for entry in range(offset_N[d], offset_N[d + 1]):
            j = row[entry]
            least = min(least, capacity_S[j])
            if offset_S[j + 1] - offset_S[j] < offset_S[shortest + 1] - offset_S[shortest]:
                shortest = j
        if upper_N[d] < least:
            continue
        work += offset_S[shortest + 1] - offset_S[shortest]
        for other in range(offset_S[shortest], offset_S[shortest + 1]):
            i = column[other]
            if gone[i] or (mask[d] & ~mask[i]) != 0 or offset_N[i + 1] - offset_N[i] <= degree:
                continue
            at, matched = offset_N[d], 0
            for entry in range(offset_N[i], offset_N[i + 1]):
                if at < offset_N[d + 1] and row[entry] == row[at]:
                    at += 1
                    matched += 1
            gone[i] = matched == degree
    return gone


@compiled
def implied_rows(offset_S, column, offset_N, row, capacity_S):
    """Rows whose columns all lie in another kept row of no larger capacity: that row implies them.

    Such a row is in the list of any of their columns; the first column is the shortest where columns are sorted by
    length.
    """
    gone = np.zeros(capacity_S.size, np.bool_)
    for j in range(capacity_S.size):
        begin, end = offset_S[j], offset_S[j + 1]
        first = column[begin]
        for candidate in range(offset_N[first], offset_N[first + 1]):
            k = row[candidate]
            if k == j or gone[k] or capacity_S[k] > capacity_S[j] or offset_S[k + 1] - offset_S[k] < end - begin:
                continue
            at = begin
            for entry in range(offset_S[k], offset_S[k + 1]):
                if at < end and column[entry] == column[at]:
                    at += 1
                elif at < end and column[entry] > column[at]:
                    break
            if at == end:
                gone[j] = True
                break
    return gone


@compiled
def least_rows(offset_N, row, capacity_S, total_N):
    """For each column the row of least capacity, or -1 where its own upper bound is below that."""
    least = np.full(total_N.size, -1, np.int32)
    for i in range(total_N.size):
        low = total_N[i]
        for entry in range(offset_N[i], offset_N[i + 1]):
            if capacity_S[row[entry]] <= low:
                low = capacity_S[row[entry]]
                least[i] = row[entry]
    return least


@compiled
def cover_columns(offset_N, row, bounding_N, dual_S):
    """Raise duals, in place, until every column that a row bounds costs at least 1.

    A column whose upper bound is the capacity c of a row adds c g to the dual while a gain g is left; raising that
    row's dual by g costs the same, and does not rely on a bound that the original column does not have.
    """
    for i in range(bounding_N.size):
        if bounding_N[i] < 0:
            continue
        price = 0.0
        for entry in range(offset_N[i], offset_N[i + 1]):
            price += dual_S[row[entry]]
        if price < 1.0:
            dual_S[bounding_N[i]] += 1.0 - price


# Merging equal columns.

LENGTHS = 64  # columns are sorted by length up to this one


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
    """Merge columns with equal row lists and add up their upper bounds; ``offset`` and ``row`` are overwritten.

    Returns the lists and upper bounds of the merged columns, and writes for each column which of these it belongs to.
    Lists are compared entry by entry; a hash selects which to compare.
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
    """The inverse of ``split``: for each of ``size`` merged columns the sum over those that were merged into it."""
    value = np.zeros(size)
    for i in range(value_N.size):
        if column_N[i] >= 0:
            value[column_N[i]] += value_N[i]
    return value
