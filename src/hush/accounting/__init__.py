"""Stage 2, the mathematics: from sampling rates and noise to certified posteriors, and back to the least noise.

counts -> one_round -> compose -> blowup (upper bound), attack (lower bound)
                    -> divergences -> bounds (KL and Renyi)
secret: one secret; calibration: all of them at once; capacity: how often a secret may be drawn.
"""

from hush.accounting.accountant import posterior, posteriors
from hush.accounting.calibration import Calibration, calibrate, capacity

__all__ = ["Calibration", "calibrate", "capacity", "posterior", "posteriors"]
