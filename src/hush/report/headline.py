"""The top of the page: what is promised, what it cost, and what the audit says."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hush.certificate import Certificate
from hush.plan import Plan
from hush.plan.held_out import held_out_examples
from hush.report.attacks import AuditResult
from hush.report.markup import at_least, at_most, percent_at_least, percent_at_most, shown
from hush.report.methods import MethodNoise
from hush.report.numbers import SecretNumbers, kept_weight
from hush.rounding import counted, rounded_down

__all__ = ["headline"]

FEW = 2  # different promises that the headline spells out
VERDICTS = {
    "kept": ("good", "Kept"),
    "failed": ("bad", "Failed"),
    "model not judged": ("plain", "Plan simulated, model not judged"),
}


def headline(
    plan: Plan,
    certificate: Certificate,
    numbers: SecretNumbers,
    methods: Sequence[MethodNoise],
    audit: AuditResult | None,
    *,
    has_texts: bool,
) -> str:
    """Banners, if anything is wrong or private, and three cards."""
    banners = [f"<strong>Not a certificate:</strong> {shown(mark)}" for mark in certificate.marks]
    if has_texts:
        banners.append("<strong>Holds the texts of secrets.</strong> Made for their owner: do not pass it on.")
    if audit is not None and audit.status == "failed":
        banners.append("<strong>The audit failed.</strong> Do not release this model; find the mistake first.")
    warnings = "".join(f'<p class="banner bad" role="alert">{banner}</p>\n' for banner in banners)
    graph = plan.incidence
    sizes = (
        f"{counted(graph.num_secrets, 'secret')} in {counted(graph.num_examples, 'example')} · planned "
        f"{shown(plan.created[:10])}"
    )
    cards = [_promise(plan), _cost(plan, methods), _verdict(certificate, numbers, audit)]
    return f'<p class="sizes">{sizes}</p>\n{warnings}<div class="cards">\n{"".join(cards)}</div>\n'


def _promise(plan: Plan) -> str:
    if not plan.secret_ids:
        return _card("What is promised", "nothing", "The plan knows no secrets.")
    pairs = np.unique(np.stack([plan.prior.ravel(), plan.ceiling.ravel()], axis=1), axis=0)
    if len(pairs) <= FEW:
        points = [f"{at_least(prior, 3)} → {at_most(ceiling, 3)}" for prior, ceiling in pairs.tolist()]
    else:
        points = [f"{_span(plan.prior, at_least)} →", _span(plan.ceiling, at_most)]
    big = " ".join(f'<span class="whole">{shown(point)}</span>' for point in points)
    each = " at every promised point" if plan.prior.shape[1] > 1 else ""
    text = (
        "For each secret: nobody who gives no candidate for it more than its prior names it with probability above its "
        f"ceiling{each}, whatever they know besides and however much they compute short of breaking the ciphers that "
        "draws and noise come from, having seen every step of the training."
    )
    return _card("What is promised", big, text)


def _cost(plan: Plan, methods: Sequence[MethodNoise]) -> str:
    noise, needed = plan.training_noise_multiplier, plan.noise_multiplier
    lines = [
        f"noise multiplier; {counted(plan.rounds, 'round')}, a batch of about {plan.batch_size:g}. Examples with "
        f"secrets keep {percent_at_least(kept_weight(plan), 3)} of their weight; "
        f"{percent_at_least(plan.kept_fraction, 3)} of all examples are used.",
    ]
    held_out = held_out_examples(plan).size
    if held_out:
        lines.append(f"{held_out:,} without a secret are held out, to evaluate on.")
    before = [method.noise_multiplier for method in methods if method.bound == "kl"]
    if noise != needed:
        lines.append(f"It is a simulation: the promises, and all posteriors below, need a noise of {at_most(needed)}.")
    if before and needed > 0 and max(before) > needed:  # needs against needs, also where less is added
        times = rounded_down(max(before) / needed, 3)
        lines.append(f"The paper's method would need up to {times} times the noise.")
    return _card("What it cost", at_most(noise), " ".join(lines))


def _verdict(certificate: Certificate, numbers: SecretNumbers, audit: AuditResult | None) -> str:
    closest = ""
    if numbers.share_S.size and certificate.is_real:
        closest = f" The closest secret comes to {percent_at_most(float(numbers.share_S.max()))} of its ceiling."
    if audit is None:
        kind, big = ("plain", "Not on this page") if certificate.is_real else ("bad", "Not certified")
        text = "An audit, if there was one, is for the owner: its numbers come from data with secrets."
        return _card("What the audit says", big, f"{text}{closest}", kind)
    kind, big = VERDICTS.get(audit.status, ("plain", "Nothing to compare"))
    caution = " That none was found is no proof that there is none." if audit.status == "kept" else ""
    return _card("What the audit says", big, f"{audit.sentence}{caution}{closest}", kind)


def _card(title: str, big: str, text: str, kind: str = "plain") -> str:
    """big: HTML that is already safe."""
    return f'<div class="card {kind}"><h2>{shown(title)}</h2><p class="big">{big}</p><p>{shown(text)}</p></div>\n'


def _span(values: NDArray[np.float64], rounded: Callable[[float, int], str]) -> str:
    low, high = rounded(float(values.min()), 3), rounded(float(values.max()), 3)
    return low if low == high else f"{low}–{high}"
