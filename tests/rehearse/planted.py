"""Corpora in which one way obviously wins, and what a rehearsal of them needs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hush.incidence import Incidence
from hush.plan import Plan
from hush.plan.make import choose_held_out, make_plan_holding_out
from hush.rehearse import RehearsalSettings, public_content
from hush.rehearse.content import PublicContent
from hush.slots import Spans, slots_of_spans
from hush.train.settings import PublicFirst, Recipe, Runtime

MARKER = "XSECRETX"  # stands in every secret, and nowhere else
WORDS = "the sea was calm and we went out early for some fish".split()
SMALL = RehearsalSettings(tries=2, repeats=2, share=1.0, max_examples=400)
RUNTIME = Runtime(device="cpu", micro_batch=32)
FIRST = PublicFirst(learning_rate=1e-2, batch=32, epochs=8, patience=3)


@dataclass(frozen=True)
class Corpus:
    """Texts, which examples hold which secret, and where the secrets stand."""

    texts: list[str]
    incidence: Incidence
    spans: Spans


def corpus(*, public: int = 240, secrets: int = 12, per_secret: int = 4, seed: int = 0) -> Corpus:
    """Public texts, each with a code word that a few of them share; then texts with a secret instead of it."""
    rng = np.random.default_rng(seed)
    texts = [f"{sentence(rng)} zq{code(number // 6)}qz" for number in range(public)]
    rng.shuffle(texts)
    columns: dict[str, list[int]] = {"example": [], "begin": [], "end": [], "secret": []}
    for secret in range(secrets):
        for _ in range(per_secret):
            before = f"{sentence(rng)} "
            secret_text = f"{MARKER}{code(secret)}"
            for name, value in (
                ("example", len(texts)),
                ("begin", len(before)),
                ("end", len(before) + len(secret_text)),
                ("secret", secret),
            ):
                columns[name].append(value)
            texts.append(before + secret_text)
    incidence = Incidence.from_pairs(
        columns["example"], columns["secret"], num_examples=len(texts), num_secrets=secrets
    )
    spans = slots_of_spans(incidence, ["codes"], **columns, rule=np.zeros(len(columns["example"]), dtype=int))
    return Corpus(texts=texts, incidence=incidence, spans=spans)


def sentence(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(WORDS, 3).tolist())


def code(number: int) -> str:
    return "".join("qz"[number >> bit & 1] for bit in range(6))


def planned(data: Corpus, *, slotted: bool, prior: float, ceiling: float, **settings: Any) -> Plan:
    """A plan that draws only examples with a secret."""
    values: dict[str, Any] = {"batch_size": 16, "rounds": 40, "keep": 0.9} | settings
    scope: dict[str, Any] = {"slots": data.spans.slots} if slotted else {"draw": "secrets"}
    held_out = choose_held_out(data.incidence, 0.1)
    return make_plan_holding_out(data.incidence, held_out, prior=prior, ceiling=ceiling, **scope, **values)


def content_of(data: Corpus, plan: Plan, **more: Any) -> PublicContent:
    spans = None if plan.slots is None else data.spans
    return public_content(plan, data.texts, spans=spans, **more)


def recipe(model: Path, **changes: Any) -> Recipe:
    return Recipe(model=str(model), **({"learning_rate": 1e-2} | changes))
