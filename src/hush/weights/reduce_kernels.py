"""Inner loops of the exact reductions, compiled by Numba on first use; import only inside functions.

Each changes the program only where an optimal point survives; the argument stands with the loop. Shapes: N columns,
S rows; ``open_N`` and ``open_S`` mark columns not decided yet and rows not dropped yet.
"""

# pyright: basic

import numpy as np

from hush.weights.kernels import compiled


@compiled
def settle(offset_S, column, capacity_S, upper_N, open_N, open_S, degree_N, fixed_N, dual_S, bounding_N):
    """One round over all open rows and columns, in place; returns how many decisions could lead to others.

    A row, with the open columns in it:
    - whose upper bounds fit into its capacity cannot bind: drop it;
    - of capacity 0 forces its columns to 0 (its dual may be as large as need be at no cost: 1 covers each of them);
    - of one column is an upper bound: move it there;
    - whose private columns (in no other row) can fill it alone: some optimum has them fill it and every other column
      of the row at 0, since moving weight from such a column to a private one keeps the sum, the row's load and all
      bounds, and only lowers other loads. Its dual is then 1.
    A column in no row takes its upper bound.
    """
    decided = 0
    for j in range(capacity_S.size):
        if not open_S[j]:
            continue
        room, private, count, last = 0.0, 0.0, 0, 0
        for entry in range(offset_S[j], offset_S[j + 1]):
            i = column[entry]
            if open_N[i]:
                room += upper_N[i]
                count += 1
                last = i
                if degree_N[i] == 1:
                    private += upper_N[i]
        if capacity_S[j] < room:
            if capacity_S[j] == 0.0 or (count > 1 and private >= capacity_S[j]):
                dual_S[j] = 1.0
                for entry in range(offset_S[j], offset_S[j + 1]):
                    i = column[entry]
                    if open_N[i]:
                        open_N[i] = False
                        decided += 1
                        if degree_N[i] == 1 and capacity_S[j] > 0.0:
                            fixed_N[i] = upper_N[i] * (capacity_S[j] / private)
            elif count == 1:
                upper_N[last] = capacity_S[j]
                bounding_N[last] = j
            else:
                continue
        open_S[j] = False
        decided += 1
        for entry in range(offset_S[j], offset_S[j + 1]):
            degree_N[column[entry]] -= 1
    for i in range(upper_N.size):
        if open_N[i] and degree_N[i] == 0:
            open_N[i] = False
            fixed_N[i] = upper_N[i]
    return decided


@compiled
def compacted(offset_N, row, open_N, number_S):
    """The open columns with their open rows only, rows renumbered; and a key of each: length, first row, hash.

    In the order of keys loops over columns run a third faster: equal lengths in a row, and rows that are near.
    """
    count, entries = 0, 0
    for i in range(open_N.size):
        if open_N[i]:
            count += 1
            for entry in range(offset_N[i], offset_N[i + 1]):
                if number_S[row[entry]] >= 0:
                    entries += 1
    offset = np.zeros(count + 1, np.int64)
    lists = np.empty(entries, np.int32)
    key = np.empty(count, np.uint64)
    k, at = 0, 0
    for i in range(open_N.size):
        if open_N[i]:
            code, begin = np.uint64(0x9E3779B97F4A7C15), at
            for entry in range(offset_N[i], offset_N[i + 1]):
                number = number_S[row[entry]]
                if number >= 0:
                    lists[at] = number
                    at += 1
                    code = (code ^ np.uint64(number + 1)) * np.uint64(0xBF58476D1CE4E5B9)
                    code ^= code >> np.uint64(29)
            length = np.uint64(min(at - begin, 0xFF))
            first = np.uint64(min(lists[begin], 0xFFFFFF)) if at > begin else np.uint64(0)
            key[k] = length << np.uint64(56) | first << np.uint64(32) | code & np.uint64(0xFFFFFFFF)
            k += 1
            offset[k] = at
    return offset, lists, key


@compiled
def equal_columns(offset, row, key, order):
    """A group number for each column; equal numbers only for equal row lists, compared entry by entry.

    ``order`` sorts by key. Lists that collide may hide equal ones from each other; they stay apart, which is exact.
    """
    group = np.empty(order.size, np.int64)
    count = -1
    for k in range(order.size):
        i = order[k]
        same = False
        if k > 0 and key[order[k - 1]] == key[i]:
            h = order[k - 1]
            same = offset[h + 1] - offset[h] == offset[i + 1] - offset[i]
            for entry in range(offset[i + 1] - offset[i]):
                same = same and row[offset[h] + entry] == row[offset[i] + entry]
        if not same:
            count += 1
        group[i] = count
    return group


@compiled
def chosen(offset, row, column):
    """The lists of these columns, in this order."""
    start = np.zeros(column.size + 1, np.int64)
    for k in range(column.size):
        start[k + 1] = start[k] + offset[column[k] + 1] - offset[column[k]]
    lists = np.empty(start[-1], np.int32)
    for k in range(column.size):
        begin = offset[column[k]]
        for at in range(start[k], start[k + 1]):
            lists[at] = row[begin + at - start[k]]
    return start, lists


@compiled
def dominated_columns(offset_S, column, offset_N, row, capacity_S, upper_N, most):
    """Columns that some optimum leaves at 0, because a column on a proper subset of their rows can take their weight.

    Let D be a column with upper bound at least the least capacity among its rows, and i one whose rows include D's
    and more. From any optimum move all of w_i to D: the sum stays, D's rows keep their loads, i's other rows lose
    load, and w_D stays within its bound because a row of D caps it below that. Repeat along the proper subset order,
    which has no cycles, so all marked columns can be 0 at once. Stops looking after ``most`` comparisons.
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
            at, found = offset_N[d], 0
            for entry in range(offset_N[i], offset_N[i + 1]):
                if at < offset_N[d + 1] and row[entry] == row[at]:
                    at += 1
                    found += 1
            gone[i] = found == degree
    return gone


@compiled
def implied_rows(offset_S, column, offset_N, row, capacity_S):
    """Rows whose columns all lie in another kept row of no larger capacity: that row holds them down already."""
    gone = np.zeros(capacity_S.size, np.bool_)
    for j in range(capacity_S.size):
        begin, end = offset_S[j], offset_S[j + 1]
        rarest = column[begin]
        for entry in range(begin, end):
            i = column[entry]
            if offset_N[i + 1] - offset_N[i] < offset_N[rarest + 1] - offset_N[rarest]:
                rarest = i
        for candidate in range(offset_N[rarest], offset_N[rarest + 1]):
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
    least = np.full(total_N.size, -1, np.int64)
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
    row's dual by g costs the same, and does not count on a bound that the original column does not have.
    """
    for i in range(bounding_N.size):
        if bounding_N[i] < 0:
            continue
        price = 0.0
        for entry in range(offset_N[i], offset_N[i + 1]):
            price += dual_S[row[entry]]
        if price < 1.0:
            dual_S[bounding_N[i]] += 1.0 - price
