"""A company that retrains: a graph that grows month by month, with secrets known by their ids."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hush
from hush.plan.earlier import Earlier

PRIOR, CEILING = 1e-6, 1e-2


@dataclass(frozen=True, kw_only=True)
class Month:
    """The data of a month: which examples hold which secret."""

    ids: tuple[str, ...]
    incidence: hush.Incidence


def month(sizes: Mapping[str, int], *, examples: int = 120, seed: int = 0) -> Month:
    """Secrets with so many examples each, placed at random."""
    rng = np.random.default_rng(seed)
    pairs = [
        (int(example), row) for row, size in enumerate(sizes.values()) for example in rng.permutation(examples)[:size]
    ]
    example, secret = zip(*pairs, strict=True)
    graph = hush.Incidence.from_pairs(example, secret, num_examples=examples, num_secrets=len(sizes))
    return Month(ids=tuple(sizes), incidence=graph)


def planned(data: Month, *, ceiling: Any = CEILING, **arguments: Any) -> hush.Plan:
    """A small plan for this month."""
    settings: dict[str, Any] = {"prior": PRIOR, "batch_size": 6, "rounds": 20} | arguments
    return hush.make_plan(data.incidence, ceiling=ceiling, secret_ids=data.ids, **settings)


def saved(plan: hush.Plan, folder: Path) -> Path:
    plan.save(folder)
    return folder


def loaded(plan: hush.Plan, folder: Path) -> Earlier:
    """The plan as a later release knows it."""
    return Earlier.load(saved(plan, folder))


def failed(folder: Path, after: Sequence[Path]) -> dict[str, str]:
    """The checks that a plan fails, given the plans of earlier releases."""
    found = hush.verify(folder, after=after)
    return {check.name: check.detail for check in found.checks if not check.passed}
