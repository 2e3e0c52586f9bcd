"""What the stages of a run cost, for a forecast: seconds from counts that are known beforehand.

The speeds are of one core of a server's processor and were measured on runs of all stages: on Python's standard library
and on abstracts of arXiv, with small models. A machine that is twice as fast halves all of them. A forecast promises
nothing, and nothing that is certified depends on it.
"""

import os
from collections.abc import Collection, Mapping
from typing import Any

from hush.plan.make import HELD_OUT_SHARE, MAX_HELD_OUT
from hush.run.job import Known

__all__ = [
    "LIBRARIES_SECONDS",
    "audit_seconds",
    "held_out_examples",
    "pairs_found",
    "plan_seconds",
    "public_examples",
    "read_seconds",
    "report_seconds",
    "scan_seconds",
    "training_seconds",
]


LIBRARIES_SECONDS = 4.0  # to import torch and transformers: once in a run, and once in the process of the public part
PAGE_SECONDS = 1.0  # of an audit or a report, besides what depends on sizes
ROUND_SECONDS = 0.02  # of a round besides the model's own work

READ_BYTES = 300e6  # per second, like all speeds below
TOKENISED_BYTES = 1e6
SCANNED_BYTES: Mapping[str, float] = {  # by one rule
    "literals": 50e6,
    "patterns": 20e6,
    "words": 10e6,
    "credentials": 2.5e6,
    "pii": 5e4,  # not measured: the speed that spaCy states for its models
}
SCANNED_BYTES_ELSE = 3e6  # by one rule of another kind
COMPILE_SECONDS = 1.2  # of the loops of a scan, which are compiled when it starts
CUT_BYTES = 0.5e6  # into chunks of tokens, each of which is tokenised once more to see whether it fits

PLANNED_PAIRS = 1e4
SWEPT_PAIRS = 3e3  # by frontier and methods of a report, which plan again and again
SIMULATED_ROUNDS = 2e6  # of the audited mechanism

CORE_FLOPS, GPU_FLOPS = 1.5e10, 3e13  # as clipped and ordinary training reach them
FORWARD_CORE_FLOPS = 3e10  # without gradients
EXAMPLE_BYTES = 1000  # of an example, before the scan has counted them
CONTINUED_TOKENS = 8  # of a secret that an attack lets the model continue with


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_seconds(num_bytes: int) -> float:
    """Of reading and fingerprinting all data."""
    return num_bytes / READ_BYTES


def scan_seconds(num_bytes: int, kinds: Collection[str], *, cuts_tokens: bool, workers: int) -> float:
    """Of a scan by rules of these kinds. cuts_tokens: whether texts are cut to what a model reads.

    >>> round(scan_seconds(5_000_000, ["patterns"], cuts_tokens=False, workers=1), 2)
    1.45
    """
    searched = sum(num_bytes / SCANNED_BYTES.get(kind, SCANNED_BYTES_ELSE) for kind in kinds)
    return COMPILE_SECONDS + searched / workers + (num_bytes / CUT_BYTES if cuts_tokens else 0)


def plan_seconds(pairs: int) -> float:
    """Of a plan for so many pairs of example and secret."""
    return 2 + pairs / PLANNED_PAIRS


def public_examples(known: Known) -> int:
    """How many examples teach something without noise: what the scan counted or, before it, a guess from the data."""
    scan, small = known.outputs.get("scan"), known.config.model.small
    if scan is not None:
        return int(scan.get("public_examples", 0))
    if small is not None and known.config.rules.file.chunks is not None:
        return known.bytes // small.length  # it reads bytes, and texts are mostly cut to its length
    return known.bytes // EXAMPLE_BYTES


def held_out_examples(known: Known) -> int:
    """About how many examples the plan holds out."""
    share = known.config.plan.hold_out
    return min(int((HELD_OUT_SHARE if share is None else share) * public_examples(known)), MAX_HELD_OUT)


def training_seconds(
    num_bytes: int,
    *,
    parameters: float,
    tokens: int,
    rounds: int,
    batch_size: float,
    public: float,
    scored: float,
    on_gpu: bool,
) -> float:
    """Of a training: reading the data as tokens, the public part in a process of its own, rounds, held-out losses.

    tokens: of an example. public: examples of all passes of the public part. scored: examples of all held-out losses.

    >>> sizes = {"parameters": 1e6, "tokens": 100, "batch_size": 10, "public": 0, "scored": 0, "on_gpu": True}
    >>> round(training_seconds(0, rounds=1000, **sizes), 1)
    20.2
    """
    learnt = 6 * parameters * tokens * (rounds * batch_size + public)
    work = learnt / (GPU_FLOPS if on_gpu else CORE_FLOPS * cores())
    work += 2 * parameters * tokens * scored / (GPU_FLOPS if on_gpu else FORWARD_CORE_FLOPS * cores())
    return num_bytes / TOKENISED_BYTES + rounds * ROUND_SECONDS + work + (LIBRARIES_SECONDS if public else 0)


def audit_seconds(*, simulated: int, pairs: int, prompts: Collection[int], parameters: float, on_gpu: bool) -> float:
    """Of an audit. simulated: rounds of all simulated runs. pairs and prompts: what an extraction tries."""
    extracted = 2 * parameters * pairs * sum(prompt + CONTINUED_TOKENS for prompt in prompts)
    speed = GPU_FLOPS if on_gpu else FORWARD_CORE_FLOPS * cores()
    return PAGE_SECONDS + simulated / SIMULATED_ROUNDS + extracted / speed


def report_seconds(pairs: int, *, plans_again: bool) -> float:
    """Of both reports. plans_again: whether they show frontier or methods."""
    return PAGE_SECONDS + (pairs / SWEPT_PAIRS if plans_again else 0)


def pairs_found(outputs: Mapping[str, dict[str, Any]]) -> int | None:
    """How many pairs of example and secret the scan has found; None before it."""
    return int(outputs["scan"]["pairs"]) if "scan" in outputs else None
