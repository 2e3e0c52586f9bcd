"""The attacks of an audit, all of one shape and listed in one table: ``ATTACK_TABLE``.

An attack is a function from an :class:`~hush.audit.session.AuditSession` to an :class:`AttackResult`: attempts to be
judged, and details for the report. What it cannot do it adds to the session's notices.

=========== ================= =========================================== ==================================
attack      needs             what it does                                what it returns
=========== ================= =========================================== ==================================
mechanism   the plan alone    simulates the best test on the worst case   an attempt for each secret chosen
extraction  the corpus        prompts for secrets and whole examples      attempts by secret or class, cells
exposure    planted canaries  ranks each canary among its candidates      one naming attempt, ranks
=========== ================= =========================================== ==================================

Every step reads its finished records from a journal, does the rest, and gives what an uninterrupted run gives.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random, SystemRandom
from typing import Literal, final

import numpy as np

from hush.audit.canaries import CanarySet
from hush.audit.exposure import CanaryRank, rank_canary, ranks_p_value
from hush.audit.extraction_audit import ExtractionResult, extract_examples, extract_secrets
from hush.audit.folders import AuditedRun
from hush.audit.mechanism import MechanismAttack, attack_joint_mechanism
from hush.audit.session import AuditInputs, AuditSession
from hush.audit.settings import AttackName
from hush.audit.statistics import Success
from hush.audit.verdict import Attempt, NamedRun, extraction_attempts, mechanism_attempt, named_run, naming_attempt

__all__ = ["ATTACK_TABLE", "Attack", "AttackResult", "closest_secrets"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class AttackResult:
    """What one attack contributes to the audit. Fields that an attack does not fill stay empty.

    naming: what this run adds to a count over independent runs.
    """

    attempts: Sequence[Attempt] = ()
    extractions: Sequence[ExtractionResult] = ()
    ranks: Sequence[CanaryRank] = ()
    naming: NamedRun | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An entry of the table. needs: the inputs without which it is left out."""

    name: AttackName
    needs: tuple[Literal["corpus", "planting"], ...]
    run: Callable[[AuditSession], AttackResult]

    def is_possible(self, inputs: AuditInputs) -> bool:
        """Whether the inputs have what it needs."""
        return all(getattr(inputs, name) is not None for name in self.needs)


# The mechanism.


def _mechanism(session: AuditSession) -> AttackResult:
    """Simulate the best attack on the worst case of the secrets closest to their ceilings."""
    secrets = closest_secrets(session.run, session.settings.secrets)
    if not secrets:
        session.notices.append("the plan has no secrets, so there is no mechanism to attack")
        return AttackResult()
    simulated = _simulate(session, secrets)
    return AttackResult(
        attempts=[
            mechanism_attempt(session.run, secret, point, attack)
            for (secret, point), attack in zip(secrets, simulated, strict=True)
        ]
    )


def closest_secrets(run: AuditedRun, count: int) -> list[tuple[int, int]]:
    """The binding secrets, or else those closest to their ceilings, each with its closest promised point.

    Of secrets with the same rates in each release of the chain and the same prior only the first is taken: the
    simulation would be the same.
    """
    plan = run.plan
    share_SQ = plan.posterior / plan.ceiling
    order = plan.binding if plan.binding.size else np.argsort(-share_SQ.max(axis=1), kind="stable")
    chosen: dict[tuple[object, ...], tuple[int, int]] = {}
    for secret in order.tolist():
        if len(chosen) == count:
            break
        point = int(share_SQ[secret].argmax())
        same = (
            float(plan.prior[secret, point]),
            *((np.sort(used.rates).tobytes(), used.noise_multiplier, used.rounds) for used in run.used_on(secret)),
        )
        chosen.setdefault(same, (secret, point))
    return list(chosen.values())


def _simulate(session: AuditSession, secrets: Sequence[tuple[int, int]]) -> list[MechanismAttack | None]:
    """The best attack on the worst case of each secret, at the noise that training added; None without noise."""
    plan, settings = session.run.plan, session.settings
    journal = session.journal("mechanism", [settings.secrets, settings.trials])
    progress = session.step_progress("Simulating the worst case")
    if plan.training_noise_multiplier == 0:
        return [None] * len(secrets)
    for position, (secret, point) in enumerate(secrets):
        progress(position, len(secrets))
        if position < len(journal.records):
            continue
        used = session.run.used_on(secret)
        attack = attack_joint_mechanism(
            [release.rates for release in used],
            noise_multipliers=[release.noise_multiplier for release in used],
            rounds=[release.rounds for release in used],
            prior=float(plan.prior[secret, point]),
            trials=settings.trials,
            rng=np.random.default_rng(None if settings.seed is None else [settings.seed, secret]),
        )
        journal.append(
            {
                "prior": attack.prior,
                "log_threshold": attack.log_threshold,
                "detected": [attack.detected.hits, attack.detected.runs],
                "alarms": [attack.alarms.hits, attack.alarms.runs],
            }
        )
    progress(len(secrets), len(secrets))
    return [
        MechanismAttack(
            prior=record["prior"],
            log_threshold=record["log_threshold"],
            detected=Success(hits=record["detected"][0], runs=record["detected"][1]),
            alarms=Success(hits=record["alarms"][0], runs=record["alarms"][1]),
        )
        for record in journal.records
    ]


# Extraction; its steps are in hush.audit.extraction_audit.


def _extraction(session: AuditSession) -> AttackResult:
    """Make the model produce its secrets; whole examples where no spans are known, or to compare with held-out ones."""
    spans = session.inputs.places
    results = [] if spans is None or not len(spans) else [extract_secrets(session, spans)]
    if not session.models.masked:
        if spans is None or session.inputs.held_out is not None:
            results.append(extract_examples(session))
    elif spans is None:
        session.notices.append(
            "a masked language model is attacked at the spans of secrets; pass a scan, canaries or a table of spans"
        )
    extractions = [result for result in results if result is not None]
    classes = {} if spans is None else spans.classes
    attempts = [
        attempt
        for result in extractions
        for attempt in extraction_attempts(
            session.run, result.hit_by_secret, classes, canary_prior=session.canary_prior
        )
    ]
    return AttackResult(attempts=attempts, extractions=extractions)


# Exposure of canaries.


def _exposure(session: AuditSession) -> AttackResult:
    """Rank every canary among its candidates; the first one counts, with those of earlier independent runs."""
    planting = session.inputs.planting
    if planting is None:
        return AttackResult()
    if session.models.masked:
        session.notices.append("canaries are ranked on causal language models only, so these were not ranked")
        return AttackResult()
    ranks = _rank_canaries(session, planting)
    first = planting.canaries[0]
    releases = session.inputs.releases
    naming = named_run(session.run, first, planting.id, ranks[0], together_with=releases)
    attempt = naming_attempt(session.run, first, [naming, *session.inputs.earlier], releases=1 + len(releases))
    return AttackResult(attempts=[attempt], ranks=ranks, naming=naming)


def _rank_canaries(session: AuditSession, planting: CanarySet) -> list[CanaryRank]:
    """Ranks by the model's likelihood, relative to the reference's where there is one.

    With the models of earlier releases, by the sum over all of them.
    """
    canaries, candidates = planting.canaries, planting.candidates
    models, settings = session.models, session.settings
    earlier = session.earlier_models
    for canary in canaries:
        listed = set(session.run.plan.incidence.examples_of(session.run.secret_index(canary.id)).tolist())
        if not listed.issuperset(canary.examples):
            session.notices.append(
                f"the plan does not list every example of {canary.id}, so its bound covers fewer examples than it has"
            )
    content = [f"{canary.id} {canary.truth} {canary.template.before}\0{canary.template.after}" for canary in canaries]
    journal = session.journal(
        "exposure",
        [settings.candidates, models.max_length, session.reference_id, *_earlier_ids(session)],
        [repr(candidates.to_dict()), *content],
    )
    progress = session.step_progress("Ranking candidates")
    ranks = [CanaryRank(**record) for record in journal.records]
    for canary in canaries[len(ranks) :]:
        progress(len(ranks), len(canaries))
        rank = rank_canary(
            models.subject,
            models.tokenizer,
            canary,
            candidates,
            max_length=models.max_length,
            max_candidates=settings.candidates,
            reference=None if models.reference is None else (models.reference, models.tokenizer),
            earlier=earlier,
            batch_size=settings.micro_batch,
            rng=SystemRandom() if settings.seed is None else Random(f"{settings.seed} {canary.id}"),
        )
        journal.append(asdict(rank))
        ranks.append(rank)
    progress(len(canaries), len(canaries))
    if not ranks[0].told:
        session.notices.append(
            f"{ranks[0].id} cannot be named: the tokenizer gives it the same tokens as another candidate; plant "
            "candidates that the tokenizer distinguishes"
        )
    by_reference = [rank.anyway for rank in ranks if rank.anyway is not None]
    if by_reference:
        ranked = ranks[0].ranked
        session.check_reference(
            ranks_p_value(by_reference, ranked), smallest=ranks_p_value([1] * len(by_reference), ranked)
        )
    return ranks


def _earlier_ids(session: AuditSession) -> list[tuple[str, int]]:
    """The models of earlier releases, and how long their texts are."""
    pairs = zip(session.inputs.releases, session.earlier_models, strict=True)
    return [(release.digest, max_length) for release, (_, _, max_length) in pairs]


ATTACK_TABLE: tuple[Attack, ...] = (
    Attack(name="mechanism", needs=(), run=_mechanism),
    Attack(name="extraction", needs=("corpus",), run=_extraction),
    Attack(name="exposure", needs=("planting",), run=_exposure),
)
