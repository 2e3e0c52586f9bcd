"""Inner loops of certification and sums over sparse lists, compiled by Numba on first use.

Import only inside functions: loading the compiler is slow. Every loop releases the interpreter lock and none uses
Numba's own threads. Columns are examples (or merged groups of them), rows are secrets. Shapes: N columns, S rows.
"""

from typing import Any

import numpy as np
from numba import njit

# pyright: basic


def compiled(function: Any) -> Any:
    """Compiled once per machine and cached next to the source; IEEE arithmetic, which certificates rely on."""
    return njit(cache=True, nogil=True)(function)


@compiled
def transposed(offset, index, size):
    """The transpose of a sparse 0/1 matrix in compressed lists: columns of rows become rows of columns, ascending."""
    start = np.zeros(size + 1, np.int64)
    for entry in range(index.size):
        start[index[entry] + 1] += 1
    for k in range(size):
        start[k + 1] += start[k]
    end = start[:-1].copy()
    lists = np.empty(index.size, np.int32)
    for k in range(offset.size - 1):
        for entry in range(offset[k], offset[k + 1]):
            lists[end[index[entry]]] = k
            end[index[entry]] += 1
    return start, lists


@compiled
def list_sums(offset, index, value):
    """For each list the sum of ``value`` over its members, added in order."""
    total = np.empty(offset.size - 1)
    for k in range(offset.size - 1):
        sum_ = 0.0
        for entry in range(offset[k], offset[k + 1]):
            sum_ += value[index[entry]]
        total[k] = sum_
    return total


@compiled
def spread_sums(offset, index, value, size):
    """For each k below ``size`` the sum of ``value`` over the lists that k is in, added in the order of the lists.

    The same sums, to the last bit, as ``list_sums`` of the transpose, and faster where the transpose has longer lists.
    """
    total = np.zeros(size)
    for i in range(offset.size - 1):
        v = value[i]
        if v != 0.0:
            for entry in range(offset[i], offset[i + 1]):
                total[index[entry]] += v
    return total


@compiled
def shrink_rows(offset_S, column, offset_N, row, capacity_S, upper_N, load_S, value_N):
    """Lower the columns of each overfull row until it holds its capacity, in place.

    Rows are processed in order with their current loads, so that a column in two overfull rows is lowered only once
    where that is enough. Columns strictly inside their bounds are lowered first: those at their bound are usually worth
    more.
    """
    for j in range(capacity_S.size):
        excess = load_S[j] - capacity_S[j]
        for entry in range(offset_S[j], offset_S[j + 1]):
            if excess <= 0.0:
                break
            i = column[entry]
            if value_N[i] > 0.0 and value_N[i] < upper_N[i]:
                loss = min(excess, value_N[i])
                excess -= loss
                value_N[i] -= loss
                for other in range(offset_N[i], offset_N[i + 1]):
                    load_S[row[other]] -= loss
        if excess > 0.0 and load_S[j] > 0.0:
            share = min(excess / load_S[j], 1.0)
            for entry in range(offset_S[j], offset_S[j + 1]):
                i = column[entry]
                loss = value_N[i] * share
                value_N[i] -= loss
                for other in range(offset_N[i], offset_N[i + 1]):
                    load_S[row[other]] -= loss


@compiled
def fill_slack(offset_N, row, capacity_S, upper_N, price_N, lowest, highest, margin, load_S, value_N):
    """Raise each column of price in (lowest, highest] as far as its rows and its bound leave room, in place.

    A share ``margin`` of each capacity stays unused: running loads differ from recomputed ones by rounding.
    """
    for i in range(upper_N.size):
        if not (price_N[i] > lowest and price_N[i] <= highest):
            continue
        room = upper_N[i] - value_N[i]
        for entry in range(offset_N[i], offset_N[i + 1]):
            if room <= 0.0:
                break
            j = row[entry]
            if capacity_S[j] < np.inf:
                room = min(room, capacity_S[j] - load_S[j] - margin * capacity_S[j])
        if room > 0.0:
            value_N[i] = min(value_N[i] + room, upper_N[i])
            for entry in range(offset_N[i], offset_N[i + 1]):
                load_S[row[entry]] += room


@compiled
def scale_rows(offset_S, column, capacity_S, load_S, eps, value_N):
    """Scale the columns of every row whose sum may exceed its capacity, in place; then no exact sum does.

    ``load_S`` holds sums of k terms added in order, which are off by less than k eps of themselves; where that does not
    decide, the row is added up again with its rounding errors, which are floating-point numbers themselves: ``total``
    plus the sum of these errors is exact, and adding up the errors is off by less than k eps of their sizes. Values
    only shrink, so a row that holds its capacity keeps it. A scaled row has 16 roundings to spare and needs 5.
    """
    for j in range(capacity_S.size):
        begin, end = offset_S[j], offset_S[j + 1]
        slack = (end - begin + 2) * eps
        if load_S[j] * (1.0 + slack) <= capacity_S[j]:
            continue
        total, lost, lost_size = 0.0, 0.0, 0.0
        for entry in range(begin, end):
            value = value_N[column[entry]]
            new = total + value
            error = (total - new) + value if total >= value else (value - new) + total
            lost += error
            lost_size += abs(error)
            total = new
        # Near the capacity the first difference is exact; further away nothing depends on its last digit.
        if not (total - capacity_S[j]) + lost + slack * lost_size <= 0.0:
            factor = capacity_S[j] * (1.0 - 8.0 * eps) / (total + lost)
            if not 0.0 <= factor < 1.0:  # the sum overflowed
                factor = 0.0
            for entry in range(begin, end):
                value_N[column[entry]] *= factor


@compiled
def polish_dual(offset_S, column, capacity_S, upper_N, price_N, dual_S):
    """Minimise the dual bound exactly over one row's dual after another, in place; the bound never rises.

    Along y_j alone the bound is c_j y_j + sum of u_i max(0, t_i - y_j), t_i = 1 - price without j: its slope is c_j
    minus the u_i with t_i above y_j, so the least point is the first t_i, from above, at which those outweigh c_j.
    """
    longest = 0
    for j in range(capacity_S.size):
        longest = max(longest, offset_S[j + 1] - offset_S[j])
    missing, weight = np.empty(longest), np.empty(longest)
    for j in range(capacity_S.size):
        begin, end = offset_S[j], offset_S[j + 1]
        if begin == end or capacity_S[j] == np.inf:
            dual_S[j] = 0.0
            continue
        # A good dual moves little: only the t_i near it need sorting, while those above are added up.
        best = -1.0
        for reach in (0.02, np.inf):
            count, above = 0, 0.0
            for entry in range(begin, end):
                i = column[entry]
                t = 1.0 - price_N[i] + dual_S[j]
                if t > dual_S[j] + reach:
                    above += upper_N[i]
                elif t > max(dual_S[j] - reach, 0.0):
                    missing[count], weight[count] = t, upper_N[i]
                    count += 1
            if above > capacity_S[j]:
                continue
            for k in np.argsort(missing[:count])[::-1]:
                above += weight[k]
                if above > capacity_S[j]:
                    best = missing[k]
                    break
            if best < 0.0 and dual_S[j] <= reach:
                best = 0.0
            if best >= 0.0:
                break
        change = best - dual_S[j]
        if change != 0.0:
            dual_S[j] = best
            for entry in range(begin, end):
                price_N[column[entry]] += change


@compiled
def compensated_sum(value):
    """The sum of n numbers with its rounding errors carried along (Neumaier): as accurate as with twice the digits.

    Off by at most eps / 2 of itself plus (n eps)^2 / 4 of the sum of sizes [Ogita, Rump, Oishi 2005, Prop. 4.5].
    """
    total, lost = 0.0, 0.0
    for k in range(value.size):
        new = total + value[k]
        if abs(total) >= abs(value[k]):
            lost += (total - new) + value[k]
        else:
            lost += (value[k] - new) + total
        total = new
    return total + lost


@compiled
def uncovered_sum(offset_N, price_N, upper_N, eps):
    """The sum of the columns' terms u max(0, 1 - price) of the dual bound, each rounded up.

    Added as in ``compensated_sum``. A price is a sum of k terms, so its rounding error is below (k + 1) eps times
    itself.
    """
    total, lost = 0.0, 0.0
    for i in range(upper_N.size):
        error = (offset_N[i + 1] - offset_N[i] + 2) * eps * (1.0 + price_N[i])
        term = upper_N[i] * (1.0 - price_N[i] + error)
        if not term <= 0.0:  # a NaN price makes the sum NaN
            new = total + term
            if total >= term:
                lost += (total - new) + term
            else:
                lost += (term - new) + total
            total = new
    return total + lost
