"""All runs of the study: of each size a reference that never saw the planted sequences, then every noise multiplier."""

import gc
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.noise_and_extraction.corpus import Prepared
from experiments.noise_and_extraction.measures import matched_tokens, validation_loss
from experiments.noise_and_extraction.pretraining import Pretraining
from experiments.noise_and_extraction.scales import Scale, Size
from experiments.runs import RunLog
from hush.errors import InvalidInput
from hush.storage import whole_file

__all__ = ["run"]


def run(
    prepared: Prepared,
    scale: Scale,
    results: Path,
    *,
    device: str,
    compile: bool,
    seeds: int = 1,
    sizes: Sequence[str] = (),
    minutes: float | None = None,
) -> None:
    """Do what is not done yet. A run that fails is logged, and its size goes on without compilation.

    Runs on other rows are refused: a key does not say on which rows a run was, and its outcome names sequences by
    number.
    """
    log = RunLog(results / "runs.jsonl", minutes=minutes)
    results.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {
        "settings": scale.record(),
        "data": prepared.facts,
        "prompted": {"repetitions": prepared.repetitions_N.tolist(), "kinds": list(prepared.kind_N)},
    }
    known = results / "about.json"
    before = json.loads(known.read_text()) if log.entries() and known.exists() else about
    if any(before[name] != about[name] for name in ("data", "prompted")):
        raise InvalidInput(f"{results} holds runs on other rows; name another folder by --results")
    with whole_file(known) as file:
        file.write(f"{json.dumps(about)}\n".encode())
    for size in scale.sizes:
        if sizes and size.name not in sizes:
            continue
        pretraining: Pretraining | None = None
        compiled = compile
        for key in _keys(size, scale, seeds):
            if log.outcome(key) is not None or log.out_of_time:
                continue

            def work(key: dict[str, Any] = key, size: Size = size, compiled: bool = compiled) -> dict[str, Any]:
                nonlocal pretraining
                if pretraining is None:
                    pretraining = Pretraining(size, scale, device=device, compile=compiled)
                return _outcome(pretraining, prepared, scale, key)

            if log.run(key, work) is None:
                pretraining, compiled = None, False
                _clean(device)
        pretraining = None
        _clean(device)


def _keys(size: Size, scale: Scale, seeds: int) -> Iterator[dict[str, Any]]:
    """The runs of one size, those without which the others say little first."""
    fixed = {"size": size.name, "rounds": scale.rounds, "batch": scale.batch, "learning_rate": size.learning_rate}
    for seed in range(seeds):
        yield {**fixed, "planted": False, "noise_multiplier": 0.0, "seed": seed}
        for noise in scale.noise_multipliers:
            yield {**fixed, "planted": True, "noise_multiplier": noise, "seed": seed}


def _outcome(pretraining: Pretraining, prepared: Prepared, scale: Scale, key: dict[str, Any]) -> dict[str, Any]:
    rows = prepared.training_rows(planted=key["planted"])
    trained = pretraining.train(rows, noise_multiplier=key["noise_multiplier"], seed=key["seed"])
    matched = matched_tokens(
        pretraining.model, prepared.prompted_NT, prompts=scale.prompts, longest=max(scale.continuations)
    )
    shortest = min(scale.continuations)
    return {
        "validation_loss": round(validation_loss(pretraining.model, prepared.validation_RT), 5),
        **trained,
        # By prompt: [sequence, tokens that came out], where these are enough for the shortest continuation.
        "matched": {
            str(prompt): [[place, count] for place, count in enumerate(found.tolist()) if count >= shortest]
            for prompt, found in matched.items()
        },
    }


def _clean(device: str) -> None:
    """Programs and memory of one size are of no use to the next."""
    torch._dynamo.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
