"""The prior of a slot, measured: how well its content can be guessed from the graph and the skeletons alone.

public_text     what such an adversary reads: skeletons, examples without a secret, text from outside; as tokens
guessers        the guessers in one list: frequency, degree, context, and language_model: a base model's likelihoods
outcomes        the guessers run on the secrets of a rule; candidates; the mixture of all guessers
stated          the priors that an owner states, by rule, and what the rule itself makes public
measure         success over the secrets of a rule with exact limits; check_priors refuses a prior below them

The success of any guesser is a lower limit on the prior. A low figure proves nothing: another guesser may do better.
"""

from hush.audit.prior.measure import (
    Guess,
    MeasuredPriors,
    RulePrior,
    check_known_priors,
    check_priors,
    measure_priors,
)
from hush.audit.prior.stated import StatedPrior, stated_priors, stated_priors_of_scan

__all__ = [
    "Guess",
    "MeasuredPriors",
    "RulePrior",
    "StatedPrior",
    "check_known_priors",
    "check_priors",
    "measure_priors",
    "stated_priors",
    "stated_priors_of_scan",
]
