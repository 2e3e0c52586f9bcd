"""The success of guessing slots without the model, for each rule, and the refusal of a stated prior below it.

Two adversaries are measured. ``listed`` knows the texts of the rule's secrets and has to say which one stands in which
slots; ``open`` does not know them and chooses among the words of the public text, of text from outside, of the slots of
other rules, and of a list of candidates that the owner gives. A rule about words states its candidates: all words of a
frequency band. There the stated prior is compared with ``listed``; elsewhere with ``open``, because a promise is about
somebody who does not have the list. Whoever thinks that the list is known compares with ``listed`` as well.

Some lower limits need no guessing (``StatedPrior.values``): one of the words of a band, one of the values of a format.

What is compared is the lower confidence limit of a guesser's success (Clopper and Pearson), at a level that is shared
by all rules and guessers. Guarantee: if every stated prior holds, and the secrets of a rule are guessed right
independently of each other, any refusal by a guesser happens with probability at most ``level``. A low figure proves
nothing about the prior. Figures are for the owner: they tell how well secrets can be guessed.
Shapes: S secrets, J secrets of a rule, L slots.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, final

import numpy as np

from hush.arrays import Progress
from hush.audit.prior.guessers import GUESSERS, Guessing
from hush.audit.prior.outcomes import (
    Knowledge,
    Outcome,
    chosen_candidates,
    mean_probability,
    open_candidates,
    run_guessers,
)
from hush.audit.prior.public_text import read_public_text
from hush.audit.prior.stated import StatedPrior
from hush.audit.statistics import LEVEL, Success, checked_level
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.numbers import rounded_down, rounded_up
from hush.scan.finders.unicode import caseless
from hush.scan.rules.promises import prior_among
from hush.secret_table import Secrets
from hush.slots import Spans

__all__ = [
    "Guess",
    "MeasuredPriors",
    "RulePrior",
    "check_known_priors",
    "check_priors",
    "measure_priors",
]


MAX_SECRETS = 2000  # of a rule that are guessed
MAX_SLOTS = 64  # of a secret that are looked at
MAX_TEXTS = 50_000  # beside those with slots; and from outside


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """How often one guesser named the secret first. lower, upper: limits at the level shared by all comparisons.

    is_compared: whether ``lower`` is held against the stated prior.
    """

    guesser: str
    knowledge: Knowledge
    candidates: int
    success: Success
    lower: float
    upper: float
    is_compared: bool


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RulePrior:
    """What was measured for the secrets of a rule with one stated prior.

    guessed: secrets that were guessed, of ``secrets``: a random sample of those with a slot that holds exactly their
    text. known: one in so many is public knowledge. mean_probability: what a mixture of all guessers, fitted on the
    other half of the secrets, gives to the right candidate on average.
    """

    rule: str
    prior: float
    secrets: int
    slots: int
    guessed: int
    known: int | None
    is_below_known: bool
    guesses: tuple[Guess, ...]
    mean_probability: dict[Knowledge, float]

    @property
    def measured(self) -> float:
        """The largest lower limit on the prior, rounded up where it is one in a number of values."""
        least = 0.0 if self.known is None else prior_among(self.known)
        return max([least, *(guess.lower for guess in self.guesses if guess.is_compared)])

    @property
    def is_refused(self) -> bool:
        """Whether the stated prior cannot hold."""
        return self.is_below_known or any(guess.lower > self.prior for guess in self.guesses if guess.is_compared)

    @property
    def refusal(self) -> str:
        """Why the stated prior cannot hold, and what to do."""
        best = max(
            (guess for guess in self.guesses if guess.is_compared and guess.lower > self.prior),
            key=lambda guess: guess.lower,
            default=None,
        )
        if best is None or best.lower < self.measured:
            why = f"one of {self.known:,} values follows from what the rule makes public"
        else:
            hits, runs = best.success.hits, best.success.runs
            why = (
                f"without the model, the guesser {best.guesser!r} names {hits:,} of {runs:,} secrets, so the prior is "
                f"at least {rounded_down(best.lower, 3)}"
            )
        return (
            f"rule {self.rule}: the stated prior {self.prior:g} is too low: {why}; raise it to at least "
            f"{rounded_up(self.measured, 3)}, or hide whole examples (hides: example)"
        )

    def record(self) -> dict[str, Any]:
        """For JSON; no text."""
        return {
            "rule": self.rule,
            "prior": self.prior,
            "secrets": self.secrets,
            "slots": self.slots,
            "guessed": self.guessed,
            "known_values": self.known,
            "below_known": self.is_below_known,
            "guesses": [
                {
                    "guesser": guess.guesser,
                    "knowledge": guess.knowledge,
                    "candidates": guess.candidates,
                    "hits": guess.success.hits,
                    "tried": guess.success.runs,
                    "lower": guess.lower,
                    "upper": guess.upper,
                    "compared": guess.is_compared,
                }
                for guess in self.guesses
            ],
            "mean_probability": dict(self.mean_probability),
            "measured": self.measured,
            "refused": self.is_refused,
        }


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPriors:
    """One entry for each rule that hides spans and each prior that it states. level: of a wrong refusal, for all."""

    rules: tuple[RulePrior, ...]
    level: float

    @property
    def is_refused(self) -> bool:
        return any(rule.is_refused for rule in self.rules)

    def record(self) -> dict[str, Any]:
        """For JSON: what was measured for every rule, and refusals in words. No text of a secret; for the owner."""
        return {
            "level": self.level,
            "refused": self.is_refused,
            "rules": [rule.record() for rule in self.rules],
            "refusals": [rule.refusal for rule in self.rules if rule.is_refused],
        }


def check_known_priors(stated: Iterable[StatedPrior]) -> None:
    """Refuses priors below what the rule itself makes public, before any data is read."""
    known = [_rule_prior(each, Counter(), [], 1) for each in stated if each.is_below_known]
    _refuse(known)


def check_priors(measured: MeasuredPriors) -> None:
    """Refuses stated priors below what was measured. The message is for the owner: it holds the figures."""
    _refuse([rule for rule in measured.rules if rule.is_refused])


def _refuse(rules: Sequence[RulePrior]) -> None:
    if rules:
        raise InvalidInput("\n".join(rule.refusal for rule in rules))


def measure_priors(
    spans: Spans,
    incidence: Incidence,
    texts: Iterable[str],
    secrets: Secrets,
    stated: Sequence[StatedPrior],
    *,
    candidates: Sequence[str] = (),
    outside: Iterable[str] = (),
    model: str | None = None,
    model_seconds: float = inf,
    device: str | None = None,
    level: float = LEVEL,
    seed: int = 0,
    progress: Progress | None = None,
) -> MeasuredPriors:
    """Guesses the slots of every rule from the graph and the skeletons alone.

    texts: row i is example i. candidates: a public list that the adversary has, such as a staff list. outside: texts
    that the adversary has, such as other documents of the field. model: name or folder of a base model that was not
    trained on the data. model_seconds: about how long it may guess, all rules together; it guesses at least one secret
    of each. seed: for the choice of secrets, slots and texts where there are too many, and for ties.

    Guarantee: see the module.
    """
    spans.slots.check_against(incidence)
    error = checked_level(level)
    if secrets.texts is None:
        raise InvalidInput("the texts of the secrets are missing; pass the owner's table, with texts")
    rng = np.random.default_rng(seed)
    # In random order, so that a guesser that takes only the first of them takes a random sample.
    chosen = [rng.permutation(each.secret_J)[:MAX_SECRETS].tolist() for each in stated]
    own = _own_slots(spans)
    slots_of = {
        secret: rng.permutation(own.get(secret, []))[:MAX_SLOTS].astype(np.int64)
        for secret in sorted({secret for group in chosen for secret in group})
    }
    looked_at = np.concatenate([np.empty(0, np.int64), *slots_of.values()])
    steps = _Steps(progress, incidence.num_examples, guesses=sum(map(len, chosen)))
    public, slot_texts = read_public_text(
        spans,
        incidence,
        texts,
        secret_texts=secrets.texts,
        slots=looked_at,
        with_sides=frozenset() if model is None else frozenset(looked_at.tolist()),
        outside=outside,
        max_texts=MAX_TEXTS,
        rng=rng,
        progress=steps.reading,
    )
    prepare = None
    if model is not None and slot_texts.sides:  # code has no slot that a model could be asked to fill with its name
        from hush.audit.prior.language_model import language_model

        prepare = language_model(model, slot_texts.sides, device=device)
    number_of_slots = Counter(spans.slots.secret_P.tolist())
    outcomes: list[list[Outcome]] = []
    for each, group in zip(stated, chosen, strict=True):
        exact = {
            secret: np.array([slot for slot in slots_of[secret].tolist() if slot in slot_texts.exact], dtype=np.int64)
            for secret in group
        }
        guessed = [secret for secret in group if len(exact[secret])]
        same_rule = {secret for other in stated if other.rule == each.rule for secret in other.secret_J.tolist()}
        fillings = Counter[str]()
        for secret, count in number_of_slots.items():
            if secret not in same_rule:
                fillings[caseless(secrets.texts[secret])] += count
        results: list[Outcome] = []
        pools: dict[Knowledge, list[str]] = {
            "listed": [secrets.texts[secret] for secret in sorted(same_rule)],
            "open": open_candidates(public, fillings, candidates),
        }
        for knowledge, pool in pools.items():
            candidate_texts, spelled = chosen_candidates(pool, rng)
            guessing = Guessing(
                public=public,
                slots_J=tuple(exact[secret] for secret in guessed),
                degree_J=incidence.examples_per_secret[guessed],
                num_examples=incidence.num_examples,
                candidates=candidate_texts,
                spelled=spelled,
                fillings=fillings,
                model=prepare,
            )
            right = [secrets.texts[secret] for secret in guessed]
            results += run_guessers(
                guessing, right, knowledge, done=steps.guessed, model_seconds=model_seconds / (2 * len(stated))
            )
        outcomes.append(results)
    judged = [(each, result) for each, results in zip(stated, outcomes, strict=True) for result in results]
    comparisons = sum(_is_compared(each, result) for each, result in judged)
    return MeasuredPriors(
        rules=tuple(
            _rule_prior(each, number_of_slots, results, max(comparisons, 1), error)
            for each, results in zip(stated, outcomes, strict=True)
        ),
        level=error,
    )


def _own_slots(spans: Spans) -> dict[int, list[int]]:
    """The slots of each secret that belong to no other secret."""
    slots: dict[int, list[int]] = {}
    offset_L = spans.slots.offset_L
    for slot in np.flatnonzero(np.diff(offset_L) == 1).tolist():
        slots.setdefault(int(spans.slots.secret_P[offset_L[slot]]), []).append(slot)
    return slots


def _is_compared(stated: StatedPrior, outcome: Outcome) -> bool:
    return outcome.knowledge == ("listed" if stated.is_band else "open")


def _rule_prior(
    stated: StatedPrior,
    number_of_slots: Counter[int],
    outcomes: Sequence[Outcome],
    comparisons: int,
    level: float = LEVEL,
) -> RulePrior:
    guesses: list[Guess] = []
    for outcome in outcomes:
        success = Success(hits=int(outcome.hit_J.sum()), runs=len(outcome.hit_J))
        guesses.append(
            Guess(
                guesser=outcome.guesser,
                knowledge=outcome.knowledge,
                candidates=outcome.candidates,
                success=success,
                lower=success.lower(level / comparisons),
                upper=success.upper(level / comparisons),
                is_compared=_is_compared(stated, outcome),
            )
        )
    mean: dict[Knowledge, float] = {}
    for knowledge in ("listed", "open"):
        value = mean_probability([outcome for outcome in outcomes if outcome.knowledge == knowledge])
        if value is not None:
            mean[knowledge] = value
    return RulePrior(
        rule=stated.rule,
        prior=stated.prior,
        secrets=len(stated.secret_J),
        slots=sum(number_of_slots[secret] for secret in stated.secret_J.tolist()),
        guessed=max((len(outcome.hit_J) for outcome in outcomes), default=0),
        known=stated.values,
        is_below_known=stated.is_below_known,
        guesses=tuple(guesses),
        mean_probability=mean,
    )


@final
class _Steps:
    """Progress of reading the data and then of guessing, as one amount of work."""

    def __init__(self, progress: Progress | None, examples: int, *, guesses: int) -> None:
        self._progress, self._examples = progress, examples
        # Two sets of candidates for each guesser; a secret that is guessed takes longer than an example that is read.
        self._total, self._done = examples + 2 * len(GUESSERS) * guesses, examples

    def reading(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(done, self._total)

    def guessed(self, secrets: int) -> None:
        self._done += secrets
        if self._progress is not None:
            self._progress(min(self._done, self._total), self._total)
