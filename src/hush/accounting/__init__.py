"""Stage 2, the mathematics: from sampling rates and noise to certified posteriors, and back to the least noise.

counts: draws of a secret in one round -> one_round: a table that dominates the round -> composition: all rounds ->
blowup: upper bound and attack; divergences: the bounds by KL and Renyi divergence. accountant: one secret, or many at
one noise. calibration: the least noise, and how often a secret may be drawn. releases: several trainings of fixed
settings or within announced limits; moments: settings that may depend on earlier models. sampling_error: what computed
draws and noise add. arguments: checks of what callers pass.
"""

from hush.accounting.accountant import posterior, posteriors
from hush.accounting.calibration import Calibration, calibrate, capacity
from hush.accounting.releases import joint_posterior, joint_posteriors

__all__ = [
    "Calibration",
    "calibrate",
    "capacity",
    "joint_posterior",
    "joint_posteriors",
    "posterior",
    "posteriors",
]
