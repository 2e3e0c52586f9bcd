"""A corpus in which hush obviously wins at little noise and cannot at much, and what a rehearsal of it needs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hush.incidence import Incidence
from hush.plan import Plan
from hush.plan.make import choose_held_out, make_plan_holding_out
from hush.rehearse import Outcome, RehearsalSettings, public_content, rehearse
from hush.rehearse.content import PublicContent
from hush.slots import Spans, slots_of_spans
from hush.train.settings import PublicFirst, Recipe, Runtime

MARKER = "XSECRETX"  # stands in every secret, and nowhere else
WORDS = ["sea", "wind", "calm", "fish"]
SMALL = RehearsalSettings(tries=2, seeds=3, share=5.0, max_examples=400)
RUNTIME = Runtime(device="cpu", micro_batch=32)
FIRST = PublicFirst(learning_rate=1.5e-2, batch=16, epochs=10, patience=8)
LITTLE_NOISE = {"prior": 0.5, "ceiling": 1 - 1e-9}
MUCH_NOISE = {"prior": 1e-6, "ceiling": 1.1e-6}


@dataclass(frozen=True)
class Corpus:
    """Texts, which examples hold which secret, and where the secrets stand."""

    texts: list[str]
    incidence: Incidence
    spans: Spans


def corpus(*, public: int = 300, secrets: int = 30, per_secret: int = 4, seed: int = 0) -> Corpus:
    """Public texts, a quarter with a code word that six of them share; then texts with a secret in its place."""
    rng = np.random.default_rng(seed)
    coded = public // 4
    texts = [f"{sentence(rng)} {code(number // 6)}" for number in range(coded)]
    texts += [f"{sentence(rng)} {rng.choice(WORDS)}" for _ in range(public - coded)]
    rng.shuffle(texts)
    columns: dict[str, list[int]] = {"example": [], "begin": [], "end": [], "secret": []}
    for secret in range(secrets):
        for _ in range(per_secret):
            before, hidden = f"{sentence(rng)} ", f"{MARKER}{code(secret)}"
            ends = len(texts), len(before), len(before) + len(hidden), secret
            for column, value in zip(columns.values(), ends, strict=True):
                column.append(value)
            texts.append(before + hidden)
    incidence = Incidence.from_pairs(
        columns["example"], columns["secret"], num_examples=len(texts), num_secrets=secrets
    )
    spans = slots_of_spans(incidence, ["codes"], **columns, rule=np.zeros(len(columns["example"]), dtype=int))
    return Corpus(texts=texts, incidence=incidence, spans=spans)


def sentence(rng: np.random.Generator) -> str:
    return f"the {rng.choice(WORDS)}"


def code(number: int) -> str:
    return "".join("qz"[number >> bit & 1] for bit in range(8))


def planned(data: Corpus, *, slotted: bool, **settings: Any) -> Plan:
    """A plan that draws only examples with a secret."""
    values: dict[str, Any] = {"batch_size": 32, "rounds": 30, "keep": 0.9} | settings
    scope: dict[str, Any] = {"slots": data.spans.slots} if slotted else {"draw": "secrets"}
    return make_plan_holding_out(data.incidence, choose_held_out(data.incidence, 0.1), **(scope | values))


def content_of(data: Corpus, plan: Plan, **more: Any) -> PublicContent:
    return public_content(plan, data.texts, spans=None if plan.slots is None else data.spans, **more)


def rehearsed(model: Path, folder: Path, data: Corpus, plan: Plan, **changes: Any) -> Outcome:
    """A small rehearsal."""
    arguments: dict[str, Any] = {
        "content": content_of(data, plan),
        "recipe": Recipe(model=str(model), learning_rate=2e-2, public_first=FIRST),
        "settings": SMALL,
        "keep": 0.9,
        "runtime": RUNTIME,
    } | changes
    return rehearse(plan, arguments.pop("content"), arguments.pop("recipe"), folder=folder, **arguments)
