"""The priors that an owner states for secrets in slots, by rule, and what each rule itself makes public about them.

Shapes: S secrets, J secrets of one rule and one prior.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.scan.result import Scan
from hush.scan.rules import Rules
from hush.scan.rules.schema import CopiesRule
from hush.secret_table import Secrets
from hush.slots import Spans

__all__ = ["StatedPrior", "stated_priors", "stated_priors_of_scan"]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class StatedPrior:
    """Secrets of one rule with the same stated prior.

    prior: the largest prior of a secret's points, since a point is about nobody who starts above it. is_band: the
    rule's candidates are public (the words of a band). values: how many equally likely values public knowledge leaves
    at most, if it says so: the words of the band, or the values of the format that the promise states.
    """

    rule: str
    prior: float
    secret_J: NDArray[np.int64] = field(repr=False)
    is_band: bool = False
    values: int | None = None

    @property
    def is_below_known(self) -> bool:
        """Whether the prior is below one in ``values``, compared exactly."""
        return self.values is not None and Fraction(self.prior) < Fraction(1, self.values)


def stated_priors(
    spans: Spans,
    secrets: Secrets,
    rules: Sequence[tuple[str, int]],
    *,
    bands: frozenset[str] = frozenset(),
    formats: Mapping[str, int] | None = None,
) -> tuple[StatedPrior, ...]:
    """The stated priors of the secrets that have slots, by rule.

    rules: name and number of secrets of each rule, in the order of the secrets, as in a scan. bands: rules about the
    words of a frequency band. formats: the number of values of the format that a rule's promise states.
    """
    if sum(count for _, count in rules) != len(secrets):
        raise InvalidInput("the rules do not add up to the secrets of the table; pass parts of the same scan")
    has_slot_S = np.zeros(len(secrets), dtype=bool)
    has_slot_S[spans.slots.secret_P] = True
    stated: list[StatedPrior] = []
    begin = 0
    for name, count in rules:
        secret_J = begin + np.flatnonzero(has_slot_S[begin : begin + count])
        begin += count
        prior_J = np.array([max(secrets.protections[secret].priors) for secret in secret_J])
        values = count if name in bands else (formats or {}).get(name)
        for prior in np.unique(prior_J).tolist():
            chosen = secret_J[prior_J == prior]
            stated.append(StatedPrior(rule=name, prior=prior, secret_J=chosen, is_band=name in bands, values=values))
    return tuple(stated)


def stated_priors_of_scan(scan: Scan, rules: Rules | None = None) -> tuple[StatedPrior, ...]:
    """The stated priors of a scan with the owner's files. rules: of the scan, for the formats that promises state.

    Which rules are about words is in the owner's files, so that it is known without the rules, too.
    """
    about = None if scan.owner is None else scan.owner.secret_text()
    if about is None or not all(rule.find for rule in about.rules):
        raise InvalidInput(
            "the kinds of the rules are in owner/ of a scan, which is missing here or by an earlier version; scan again"
        )
    bands = frozenset(rule.rule for rule in about.rules if rule.find == "words")
    formats: dict[str, int] = {}
    for rule in () if rules is None else rules.rules:
        if isinstance(rule, CopiesRule) or rules is None:
            continue
        for promise in (rule.promise, rules.file.defaults):
            if promise is None or promise.model_fields_set == {"ceiling"}:
                continue
            if promise.format is not None:
                formats[rule.name] = promise.format.values
            break
    return stated_priors(scan.spans, scan.secrets, scan.rules, bands=bands, formats=formats)
