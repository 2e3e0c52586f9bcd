"""The headline and the sections of the page; what is missing is listed at the end.

The headline says what is promised, what it cost and what the audit found. Each section takes only the data that it
shows, and returns HTML that is already escaped, with its plots.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hush.arrays import Array
from hush.certificate import Certificate
from hush.numbers import counted, rounded_down
from hush.plan import Plan
from hush.plan.make import held_out_examples
from hush.report.attacks import AuditResult, attacks_plot, attacks_table
from hush.report.markup import at_least, at_most, percent_at_least, percent_at_most, shown, table
from hush.report.numbers import MethodNoise, PackedRows, SecretCurve, SecretNumbers, binned_counts, kept_weight
from hush.report.page import Section, figure
from hush.report.plots import Look, counts_plot, curves_plot, frontier_plot, noise_plot, scatter_plot, training_plots
from hush.report.releases import chain_sentence
from hush.train.scores import StageLosses

__all__ = [
    "audit_section",
    "basis_section",
    "counts_section",
    "curves_section",
    "frontier_section",
    "headline",
    "missing_section",
    "noise_section",
    "provenance_section",
    "scan_section",
    "secrets_section",
    "training_section",
]


SECRET_COLUMNS = (  # key, heading, meaning
    ("id", "secret", "public id"),
    ("posterior", "posterior ≤", "largest probability of naming it after training"),
    ("ceiling", "ceiling", "promised limit of the posterior"),
    ("share", "% of ceiling", "posterior divided by ceiling"),
    ("prior", "prior", "largest probability of any candidate before training"),
    ("before", "examples", "examples that contain it"),
    ("after", "after weighting", "sum of the weights of these examples"),
)
MAX_SPELLED_PROMISES = 2  # different promises that the headline lists; more are shown as a range
VERDICTS = {  # class of the card, and its words
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
    losses: StageLosses | None = None,
) -> str:
    """Banners, if anything is wrong or private, and the cards: the promise, its cost, what was learnt, the audit."""
    banners = [f"<strong>Not a certificate:</strong> {shown(mark)}" for mark in certificate.marks]
    if has_texts:
        banners.append("<strong>Contains the texts of secrets.</strong> For their owner only: do not pass it on.")
    if audit is not None and audit.status == "failed":
        banners.append("<strong>The audit failed.</strong> Do not release this model; find the mistake first.")
    warnings = "".join(f'<p class="banner bad" role="alert">{banner}</p>\n' for banner in banners)
    graph = plan.incidence
    sizes = (
        f"{counted(graph.num_secrets, 'secret')} in {counted(graph.num_examples, 'example')} · planned "
        f"{shown(plan.created[:10])}"
    )
    learnt = [] if losses is None else [_learnt(certificate, losses)]
    cost = _cost(plan, methods, has_rounds=certificate.private_rounds is None)
    cards = [_promise(plan), *learnt, cost, _verdict(certificate, numbers, audit)]
    return f'<p class="sizes">{sizes}</p>\n{warnings}<div class="cards">\n{"".join(cards)}</div>\n'


def _promise(plan: Plan) -> str:
    if not plan.secret_ids:
        return _card("What is promised", "nothing", "The plan has no secrets.")
    pairs = np.unique(np.stack([plan.prior.ravel(), plan.ceiling.ravel()], axis=1), axis=0)
    if len(pairs) <= MAX_SPELLED_PROMISES:
        points = [f"{at_least(prior, 3)} → {at_most(ceiling, 3)}" for prior, ceiling in pairs.tolist()]
    else:
        points = [f"{_range(plan.prior, at_least)} →", _range(plan.ceiling, at_most)]
    big = " ".join(f'<span class="whole">{shown(point)}</span>' for point in points)
    every_point = ", at every promised point" if plan.prior.shape[1] > 1 else ""
    text = (
        "For each secret: an adversary to whom no candidate is likelier than the prior before training names the "
        "secret with probability at most the ceiling after seeing every step of the training"
        f"{every_point}. This holds whatever else the adversary knows and computes, short of breaking the ciphers that "
        "the draws and the noise come from."
    )
    released = chain_sentence(plan)
    text = f"{released} {text}" if released else text
    return _card("What is promised", big, text)


def _learnt(certificate: Certificate, losses: StageLosses) -> str:
    """The loss before and after each part."""
    big = " → ".join(f'<span class="whole">{loss:.3f}</span>' for _, loss in losses.steps)
    parts = "before training"
    if losses.public is not None and losses.private is not None:
        parts = "before training, after the public part and after the private rounds"
    elif losses.public is not None or losses.private is not None:
        parts += " and after the private rounds" if losses.public is None else " and after the public part"
    text = f"Loss on held-out examples without a secret: {parts}."
    if certificate.private_rounds == 0:
        text += " No private round was trained, so nothing was learnt of the secrets."
    if certificate.public_part is not None:
        examples, skeletons = certificate.public_part["examples"], certificate.public_part["skeletons"]
        kinds = [counted(examples, "example") + " without a secret", counted(skeletons, "skeleton")]
        learnt = " and ".join(kind for kind, number in zip(kinds, (examples, skeletons), strict=True) if number)
        text += f" The public part is ordinary training, without noise, on {learnt}."
    return _card("What was learnt", big, text)


def _cost(plan: Plan, methods: Sequence[MethodNoise], *, has_rounds: bool) -> str:
    noise, needed, scope = plan.training_noise_multiplier, plan.noise_multiplier, plan.certificate.scope
    used_of = "them" if plan.draws_secrets_only else "all examples"
    shown_noise = "" if has_rounds else f" {at_most(noise)}"  # otherwise it is the big number
    lines = [
        f"noise multiplier{shown_noise}; {counted(plan.rounds, 'round')} with an expected batch of "
        f"{plan.batch_size:g}. Examples with secrets keep {percent_at_least(kept_weight(plan), 3)} of their weight; "
        f"{percent_at_least(plan.kept_fraction, 3)} of {used_of} are used.",
    ]
    if scope is not None:
        lines.append(
            f"What is secret: the text in {counted(scope['slots'], 'slot')} of "
            f"{counted(scope['examples_with_slots'], 'example')}, and "
            f"{counted(scope['whole_examples'], 'whole example')}. Everything else is public and learnt without noise."
        )
    elif plan.draws_secrets_only:
        lines.append("Only examples with secrets are drawn; the others are public and learnt without noise.")
    held_out = held_out_examples(plan).size
    if held_out:
        lines.append(f"{held_out:,} examples without a secret are held out for evaluation.")
    by_paper = [method.noise_multiplier for method in methods if method.bound == "kl"]
    if noise != needed:
        lines.append(
            f"This is a simulation: the promises, and all posteriors below, need a noise of {at_most(needed)}."
        )
    if by_paper and needed > 0 and max(by_paper) > needed:  # both are what is needed, even where training adds less
        times = rounded_down(max(by_paper) / needed, 3)
        lines.append(f"The paper's method would need up to {times} times the noise.")
    if not has_rounds:
        lines.insert(0, "No private round was trained. The plan for them, which holds all the more, has this")
        return _card("What it cost", "no noise", " ".join(lines))
    return _card("What it cost", at_most(noise), " ".join(lines))


def _verdict(certificate: Certificate, numbers: SecretNumbers, audit: AuditResult | None) -> str:
    closest = ""
    if numbers.share_S.size and certificate.is_real:
        closest = f" The closest secret reaches {percent_at_most(float(numbers.share_S.max()))} of its ceiling."
    if audit is None:
        kind, big = ("plain", "Not on this page") if certificate.is_real else ("bad", "Not certified")
        text = "An audit, if there was one, is for the owner only: its numbers come from data with secrets."
        return _card("What the audit says", big, f"{text}{closest}", kind)
    kind, big = VERDICTS.get(audit.status, ("plain", "Nothing to compare"))
    caution = " This is no proof that no better attack exists." if audit.status == "kept" else ""
    return _card("What the audit says", big, f"{audit.sentence}{caution}{closest}", kind)


def _card(title: str, big: str, text: str, kind: str = "plain") -> str:
    """A card of the headline. big: HTML that is already escaped."""
    return f'<div class="card {kind}"><h2>{shown(title)}</h2><p class="big">{big}</p><p>{shown(text)}</p></div>\n'


def _range(values: Array, rounded: Callable[[float, int], str]) -> str:
    low, high = rounded(float(values.min()), 3), rounded(float(values.max()), 3)
    return low if low == high else f"{low}–{high}"


# The sections.


def frontier_section(rows: Sequence[Any], plan: Plan) -> Section:
    plot = frontier_plot(rows, noise=plan.noise_multiplier, kept=kept_weight(plan))
    text = (
        "<p>Less noise makes a better model. Drawing the examples of demanding secrets less often lowers the noise "
        "that the promises need, but keeps less of the data. Every point is proven; the star is this plan.</p>\n"
    )
    return Section(
        name="frontier", link="Frontier", title="The frontier", html=text + figure(plot, heading=False), plots=(plot,)
    )


def noise_section(methods: Sequence[MethodNoise]) -> Section:
    plot = noise_plot(methods)
    text = (
        "<p>The noise that the same promises need, by older proofs and by the tight bound, with all data and with this "
        "plan's rates. Each noise is proven to be sufficient by its own method.</p>\n"
    )
    return Section(
        name="noise", link="Noise", title="Noise by method", html=text + figure(plot, heading=False), plots=(plot,)
    )


def counts_section(numbers: SecretNumbers) -> Section:
    plot = counts_plot(*binned_counts(numbers.before_S, numbers.after_S))
    text = (
        "<p>The more examples contain a secret, the more noise it needs. Weights below 1 draw those examples less "
        "often: after weighting, the number of a secret's examples is the sum of their weights.</p>\n"
    )
    return Section(
        name="counts",
        link="Counts",
        title="Examples per secret",
        html=text + figure(plot, heading=False),
        plots=(plot,),
    )


def secrets_section(plan: Plan, numbers: SecretNumbers, rows: PackedRows, *, has_texts: bool) -> Section:
    plot = scatter_plot(plan.secret_ids, numbers)
    secrets = counted(len(plan.secret_ids), "secret")
    promises = "its promise" if len(plan.binding) == 1 else "their promises"
    text = f"<p>Binding: {len(plan.binding):,} of {secrets}. About 1 % less noise would break {promises}."
    if plan.prior.shape[1] > 1:
        text += " Where a secret has several promised points, the one closest to its ceiling is shown."
    text += " Select a point to find its secret in the table.</p>\n"
    html = text + figure(plot) + _secrets_table(rows, has_texts=has_texts)
    return Section(name="secrets", link="Secrets", title="Every secret", html=html, plots=(plot,))


def _secrets_table(rows: PackedRows, *, has_texts: bool) -> str:
    columns = [*SECRET_COLUMNS, *([("text", "text", "for the owner only")] if has_texts else [])]
    heads = "".join(
        f'<th scope="col" data-column="{key}"><button type="button" title="{shown(meaning)}; sort">{shown(name)}'
        "</button></th>"
        for key, name, meaning in columns
    )
    left_out = f" {rows.left_out:,} secrets, furthest from their ceilings, are left out." if rows.left_out else ""
    return (
        '<div class="finder" role="search"><label>Find a secret <input type="search" id="find" '
        'placeholder="part of an id" autocomplete="off" spellcheck="false"></label> '
        '<label class="check"><input type="checkbox" id="only-binding"> binding only</label> '
        '<output id="found" aria-live="polite"></output></div>\n'
        '<div class="rows" id="secrets-rows" tabindex="0" role="region" aria-label="All secrets, scrollable">'
        f'<table aria-rowcount="{rows.rows + 1}"><thead><tr>{heads}</tr></thead>'
        '<tbody></tbody></table></div>\n<p class="note" id="rows-note">Posteriors and ceilings are rounded up, priors '
        f"down. ◆ marks binding secrets.{left_out}</p>\n"
    )


def curves_section(curves: Sequence[SecretCurve]) -> Section:
    plot = curves_plot(curves)
    curve = curves[0]
    rises = ", ".join(f"from {at_least(prior)} to at most {at_most(after)}" for prior, after in curve.shown_points)
    text = (
        "<p>A promise holds for its prior. Somebody who knows more before training can reach a higher posterior: for "
        f"<code>{shown(curve.name)}</code>, {shown(rises)}. A secret that is hard to guess stays hard to guess; "
        "somebody who had narrowed it down to a few candidates may learn which one it is.</p>\n"
    )
    return Section(
        name="curve",
        link="Priors",
        title="Posteriors from other priors",
        html=text + figure(plot, heading=False),
        plots=(plot,),
    )


def training_section(rows: Sequence[Any], looks: Mapping[str, Look]) -> Section:
    plots = tuple(training_plots(rows, looks))
    text = "<p>Scores on evaluation data without secrets. Losses on private examples are never shown.</p>\n"
    html = text + f'<div class="pair">\n{"".join(map(figure, plots))}</div>\n'
    return Section(name="training", link="Training", title="Training", html=html, plots=plots)


def audit_section(result: AuditResult) -> Section:
    plot = attacks_plot(result)
    notes = "".join(f"<li>{shown(note)}</li>" for note in result.notes)
    html = (
        f"<p>{shown(result.sentence)} Limits are one-sided. A wide interval means that little was tried, not that "
        'little can be reached.</p>\n<p class="note">An audit is computed from data with secrets: publishing its '
        "numbers is a release that no plan accounts for.</p>\n"
    )
    html += (figure(plot) if plot else "") + attacks_table(result) + (f"<ul>{notes}</ul>\n" if notes else "")
    return Section(name="audit", link="Audit", title="Audit", html=html, plots=(plot,) if plot else ())


def scan_section(summary: dict[str, Any], *, planted: int) -> Section:
    """What the scan found, by rule. planted: the number of canaries in the plan that are not in the scan."""
    cells = [
        (rule["rule"], f"{rule['secrets']:,}", f"{rule['secrets_found']:,}", f"{rule['pairs']:,}")
        for rule in summary["rules"]
    ]
    with_secrets, examples = summary["examples_with_secrets"], counted(summary["examples"], "example")
    verb, pairs = "contains" if with_secrets == 1 else "contain", counted(summary["pairs"], "pair")
    text = f"<p>{with_secrets:,} of {examples} {verb} a secret, in {pairs} of example and secret"
    if "pairs_from_copies" in summary:  # only with the owner's side of the scan
        text += f", {summary['pairs_from_copies']:,} of them through copies; skipped rows: {summary['skipped']:,}"
    text += ".</p>\n"
    if planted:
        canaries = f"{counted(planted, 'canary', 'canaries')} {'was' if planted == 1 else 'were'}"
        text += f"<p>{canaries} planted after the scan, and not counted here.</p>\n"
    rules = table(["rule", "secrets", "found in the data", "pairs"], cells, caption="What the scan found, by rule")
    return Section(name="scan", link="Scan", title="What was found", html=text + rules)


def basis_section(certificate: Certificate) -> Section:
    assumed, uncovered = (
        "".join(f"<li>{shown(line)}</li>" for line in lines)
        for lines in (certificate.assumptions, certificate.not_covered)
    )
    html = (
        f"<details><summary>The promise assumes ({len(certificate.assumptions)})</summary>"
        f"<ul>{assumed}</ul></details>\n<details open><summary>It does not cover ({len(certificate.not_covered)})"
        f"</summary><ul>{uncovered}</ul></details>\n"
    )
    return Section(name="basis", link="Basis", title="What the promise rests on", html=html)


def provenance_section(plan: Plan, certificate: Certificate, folder: str) -> Section:
    facts = [
        ("plan made", certificate.created),
        ("noise multiplier", repr(certificate.noise_multiplier)),
        ("rounds, expected batch, clip norm", f"{plan.rounds}, {plan.batch_size!r}, {plan.clip_norm!r}"),
        ("bound, capacities", f"{certificate.bound}, {certificate.capacity}"),
        *((f"version of {name}", value) for name, value in certificate.versions.items()),
        *((f"fingerprint of the {name}", value) for name, value in certificate.fingerprints.items()),
    ]
    listed = "".join(f"<dt>{shown(name)}</dt><dd><code>{shown(value)}</code></dd>\n" for name, value in facts)
    html = (
        f"<dl>{listed}</dl>\n<h3>Verify it yourself</h3>\n<p>Nothing proves that this page is right: it only shows "
        "what is in a folder. This command recomputes every posterior from that folder, and compares a model in it "
        f'with its certificate:</p>\n<pre tabindex="0"><code>hush verify {shown(folder)}\n</code></pre>\n'
        "<p>The fingerprints that it prints must be those above. It also takes your own graph and table of secrets, to "
        "compare with those of the plan, and a public key, to check who signed.</p>\n"
    )
    return Section(name="provenance", link="Verify", title="Provenance, and how to verify", html=html)


def missing_section(lines: Sequence[tuple[str, str]]) -> Section:
    """What is left out, and how to get it."""
    items = "".join(f"<li>{shown(what)}: {shown(how)}.</li>\n" for what, how in lines)
    return Section(name="missing", link="Left out", title="Not in this report", html=f"<ul>{items}</ul>\n")
