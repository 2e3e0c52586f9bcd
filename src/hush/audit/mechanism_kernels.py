"""The inner loop of the simulated worst case, compiled by Numba on first use.

Import it only inside functions: loading the compiler is slow.
"""

import numpy as np
from numba import njit

# pyright: basic


@njit(cache=True, nogil=True)
def sum_log_likelihood_ratios(rng, drawn_K, log_weight_K, sigma, rounds, trials):
    """Sum over the rounds of log Σ_k exp(log_weight_k + k x / σ²), x = K + σ z.

    K has the cumulative distribution ``drawn_K``. Factors are multiplied, and the logarithm is taken when the product
    leaves a safe range.
    """
    top = log_weight_K.size - 1
    weight_K = np.exp(log_weight_K)
    out = np.empty(trials)
    for trial in range(trials):
        total, product = 0.0, 1.0
        for _ in range(rounds):
            uniform, count = rng.random(), 0
            while count < drawn_K.size - 1 and uniform >= drawn_K[count]:
                count += 1
            y = (count + sigma * rng.standard_normal()) / (sigma * sigma)
            factor = 0.0
            if y * top < 200.0:  # Horner's rule; exp(200) per power cannot overflow
                z = np.exp(y)
                for k in range(top, -1, -1):
                    factor = factor * z + weight_K[k]
            if factor > 1e-40:  # weights that underflowed are then at most 1e-23 of it
                product *= factor
                if product > 1e100 or product < 1e-100:
                    total += np.log(product)
                    product = 1.0
            else:
                largest = -np.inf
                for k in range(top + 1):
                    largest = max(largest, log_weight_K[k] + k * y)
                rest = 0.0
                for k in range(top + 1):
                    rest += np.exp(log_weight_K[k] + k * y - largest)
                total += largest + np.log(rest)
        out[trial] = total + np.log(product)
    return out
