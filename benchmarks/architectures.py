"""Which architectures of transformers hush trains: every one that it registers for a task, tiny, exact or refused.

    PYTHONPATH=src python benchmarks/architectures.py            # writes docs/architectures.md; some minutes
    PYTHONPATH=src python benchmarks/architectures.py --only bert mixtral

For each architecture a tiny model (:mod:`architectures_tiny`) goes through what training does before its first round
(preconditions and probes), then three batches of padded texts through one clipper, one of them with an empty slot. The
clipped sums and norms are compared with those of autograd, one example at a time (tests/train/reference.py). Each
architecture runs in a process of its own, with a limit on time and memory.
"""

import argparse
import importlib.util
import inspect
import logging
import multiprocessing
import re
import resource
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from architectures_tiny import AUTO_CLASSES, NOT_TRIED, PADDING, RANDOM_IN_TRAINING, tiny_batch, tiny_model
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping import MARGIN, Clipper
from hush.train.language_models import causal_lm_loss, classification_loss, masked_lm_loss
from hush.train.probes import probe

ROOT = Path(__file__).resolve().parents[1]
LOSSES = {"causal": causal_lm_loss, "masked": masked_lm_loss, "classification": classification_loss}
TOLERANCE = 1e-4  # of norms and sums, relative: batches and single examples take other kernels
PADDING_TOLERANCE = 1e-3  # of losses, as the probes have it
EVERY_BATCH, ONE_BY_ONE = "proven at every batch", ("example by example",)
SECONDS, BYTES = 120, 6 * 2**30  # that one architecture may take


def _reference() -> Any:
    path = ROOT / "tests" / "train" / "reference.py"
    spec = importlib.util.spec_from_file_location("hush_train_reference", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _reference()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one architecture for one task."""

    model_type: str
    task: str
    verdict: str  # exact, refused, not tried, or wrong: neither exact nor refused by name
    routes: tuple[str, ...] = ()
    reason: str = ""


def registered() -> list[tuple[str, str, str]]:
    """(model type, task, class) of everything that the installed transformers registers for the three tasks."""
    from transformers.models.auto import modeling_auto

    names = {
        "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    }
    return [(kind, task, name) for task in AUTO_CLASSES for kind, name in sorted(names[task].items())]


def survey(model_type: str, task: str) -> Verdict:
    """The verdict on one architecture, in this process."""
    verdict = partial(Verdict, model_type=model_type, task=task)
    if model_type in NOT_TRIED:
        return verdict(verdict="not tried", reason=NOT_TRIED[model_type])
    model, loss = tiny_model(model_type, task), LOSSES[task]
    accepted = inspect.signature(model.forward).parameters
    batches = [
        {name: value for name, value in texts.items() if name == "labels" or name in accepted}
        for texts in (tiny_batch(model_type, task, seed=seed) for seed in (1, 2, 3))
    ]
    if model_type in RANDOM_IN_TRAINING:
        model.eval()
    all_real = torch.ones(len(batches[0]["labels"]), dtype=torch.bool)
    one_empty = torch.arange(len(all_real)) != 2
    _, norms = reference.clipped_sum(model, loss, batches[0], all_real, clip_norm=1.0)
    assert norms.isfinite().all()
    assert norms.all(), norms
    clip_norm = float(norms.median())  # some are clipped, some are not
    worst = 0.0
    try:
        probe(model, loss, batches[0], all_real, clipper=Clipper(model, loss, clip_norm=clip_norm))
        clipper = Clipper(model, loss, clip_norm=clip_norm)
        masks, metrics = (all_real, one_empty, all_real), (None, None, reference.random_metric(model))
        for batch, real, metric in zip(batches, masks, metrics, strict=True):
            clipper.use_metric(metric)
            clipped = clipper.accumulate(batch, real)
            limit = clip_norm * (1 - MARGIN)
            sums, norms = reference.clipped_sum(model, loss, batch, real, clip_norm=limit, metric=metric)
            off = (clipped.norms.double() / norms - 1)[real].abs().max()
            worst = max(worst, float(off), reference.difference(clipper.take(), sums))
    except InvalidInput as error:
        return verdict(verdict="refused", reason=_in_one_line(error))
    routes = tuple(sorted({route.route for route in clipper.routes()}))
    if not worst <= TOLERANCE:
        return verdict(verdict="wrong", routes=routes, reason=f"sums or norms differ by {worst:.2g}")
    change = _change_by_padding(model, loss, batches[0])
    if not change <= PADDING_TOLERANCE:
        return verdict(verdict="wrong", routes=routes, reason=f"padding changes an example's loss by {change:.2g}")
    plans = [clipper.plan_for(batch) for batch in batches]
    notes = [plan.one_by_one or (plan.every_batch and f"{EVERY_BATCH}: {plan.every_batch}") or "" for plan in plans]
    return verdict(verdict="exact", routes=routes, reason=notes[0])


def _change_by_padding(model: nn.Module, loss: Any, batch: Mapping[str, Tensor]) -> float:
    """By how much an example's loss alone and without padding differs from its loss in the batch."""
    changes = []
    with torch.no_grad():
        together = loss(model, batch)
        for row, tokens in enumerate(batch["input_ids"]):
            inside = (tokens != PADDING).nonzero().flatten()
            alone = {
                name: value[row : row + 1, inside] if value.dim() == 2 else value[row : row + 1]
                for name, value in batch.items()
            }
            changes.append((loss(model, alone)[0] - together[row]).abs() / together[row].abs().clamp_min(1))
    return float(torch.stack(changes).max())


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def survey_alone(model_type: str, task: str) -> Verdict:
    """The verdict on one architecture, in a process of its own with limits on time and memory."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def child() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
        try:
            verdict = survey(model_type, task)
        except Exception as error:  # whatever happens is written down, and the survey goes on
            reason = f"{type(error).__name__}: {_in_one_line(error)}"
            verdict = Verdict(model_type=model_type, task=task, verdict="wrong", reason=reason)
        sender.send(verdict)

    process = context.Process(target=child)
    process.start()
    sender.close()
    try:
        if receiver.poll(SECONDS):
            return receiver.recv()
        failed = f"took more than {SECONDS} s"
    except EOFError:
        process.join()
        failed = f"ended with code {process.exitcode}"
    finally:
        process.kill()
        process.join()
    return Verdict(model_type=model_type, task=task, verdict="wrong", reason=failed)


# ---- the page ----

PAGE = ROOT / "docs" / "architectures.md"
TITLES = {
    "causal": "Causal language models",
    "masked": "Masked language models",
    "classification": "Classifiers of texts",
}
MOST_SHOWN = 300  # characters of a reason

COUNTED: list[tuple[str, Callable[[Verdict], bool]]] = [
    ("exact in one pass", lambda found: found.verdict == "exact" and found.routes != ONE_BY_ONE),
    ("exact, example by example", lambda found: found.verdict == "exact" and found.routes == ONE_BY_ONE),
    ("refused", lambda found: found.verdict == "refused"),
    ("not tried", lambda found: found.verdict == "not tried"),
]

INTRODUCTION = """\
# Architectures

Which models of the Hugging Face library can be trained? This page lists every architecture that transformers {version}
registers for causal language models, masked language models and classifiers of texts. `benchmarks/architectures.py`
makes the page: it builds a tiny model of each with random weights, runs what training runs before its first round, and
then compares the clipped sums of three batches of padded texts with those of autograd, one example at a time. Dropout
is set to 0.

- **exact**: norms and clipped sums agree to {tolerance:g}. The last column has the
  [routes](training.md#memory-and-speed). "{every_batch}" marks models in which the data decide which rows reach a
  layer: whose rows they are is then [proven](proofs.md#attribution) at every batch, not only from time to time.
  "example by example" means that each example has a pass of its own, for the reason given: exact, and slower than one
  pass for all.
- **refused**: training stops before its first round, with the message in the last column.
- **not tried**: the model cannot be fed with texts alone, or needs a package that the project does not install.

{counts}

A model that is exact here can still be refused for a setting of its own, such as a load-balancing loss over the batch
([what is refused](training.md#what-is-exact-what-is-refused)). The verdict is about the architecture; every training
checks the model that it is given.
"""


def page(verdicts: Sequence[Verdict]) -> str:
    """The documentation page for these verdicts."""
    import transformers

    names = {(kind, task): name for kind, task, name in registered()}
    rows = [["task", *(title for title, _ in COUNTED)], ["---"] * (len(COUNTED) + 1)]
    for title, tasks in [*((title.lower(), [task]) for task, title in TITLES.items()), ("all", list(TITLES))]:
        own = [verdict for verdict in verdicts if verdict.task in tasks]
        rows.append([title, *(str(sum(map(counted, own))) for _, counted in COUNTED)])
    parts = [
        INTRODUCTION.format(
            version=transformers.__version__,
            tolerance=TOLERANCE,
            every_batch=EVERY_BATCH,
            counts="\n".join(f"| {' | '.join(row)} |" for row in rows),
        )
    ]
    for task, title in TITLES.items():
        lines = [f"## {title}", "", "| architecture | class | verdict | routes, or reason |", "|---|---|---|---|"]
        for verdict in verdicts:
            if verdict.task == task:
                why = ": ".join(part for part in (", ".join(verdict.routes), _cell(verdict.reason)) if part)
                name = names[verdict.model_type, task]
                lines.append(f"| {verdict.model_type} | {name} | {verdict.verdict} | {why} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _cell(reason: str) -> str:
    """A reason as a cell of a table in Markdown."""
    shown = textwrap.shorten(reason, MOST_SHOWN, placeholder=" …")
    return re.sub(r"([|<*\[\]\\`])", r"\\\1", shown)


def rows_of_page(text: str) -> dict[tuple[str, str], tuple[str, str]]:
    """(verdict, routes or reason) by (model type, task), read from a page."""
    rows: dict[tuple[str, str], tuple[str, str]] = {}
    for section in text.split("\n## ")[1:]:
        title, _, table = section.partition("\n")
        task = next(task for task, known in TITLES.items() if known == title)
        found = re.findall(r"^\| (\S+) \| \w+ \| ([\w ]+) \| (.*) \|$", table, re.MULTILINE)
        rows |= {(model_type, task): (verdict, why) for model_type, verdict, why in found[1:]}  # after the header
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="MODEL_TYPE", help="print these verdicts, and write no page")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    survey("gpt2", "causal")  # imports what all need, once, before processes are forked
    verdicts = []
    for model_type, task, _ in registered():
        if not options.only or model_type in options.only:
            verdicts.append(found := survey_alone(model_type, task))
            why = ": ".join(part for part in (", ".join(found.routes), found.reason) if part)
            print(f"{found.verdict:9} {task:14} {model_type:24} {why}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in Counter(found.verdict for found in verdicts).items()))
    if not options.only:
        PAGE.write_text(page(verdicts))
    sys.exit(any(found.verdict == "wrong" for found in verdicts))


if __name__ == "__main__":
    main()
