"""The rehearsal of a config: its stages up to the plan, then :func:`hush.rehearse.rehearse` on what is public of it.

The result lies in owner/rehearsal/ of the run's folder: rehearsal.json, patch.yaml with the settings that won, and
forecast.svg. Nothing of it is needed by a run; a reader of a release may be told of it, since it cost no promise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import yaml

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.plan.plan import kept_weight
from hush.rehearse import Outcome, RehearsalSettings, public_content, rehearse
from hush.rehearse.figure import save_forecast
from hush.rehearse.outcome import OUTCOME
from hush.run.config import Config, load_config
from hush.run.job import Watch
from hush.run.pipeline import planned_run
from hush.run.stage_train import check_libraries, model_path
from hush.scan.engines import Engine
from hush.settings import AUTO, Auto
from hush.slots import spans_in
from hush.storage import whole_file
from hush.weights.frontier import KEEP

__all__ = [
    "FORECAST",
    "PATCH",
    "Rehearsed",
    "check_beside",
    "patched",
    "rehearse_config",
    "write_patched",
]


PATCH, FORECAST = "patch.yaml", "forecast.svg"
WRITTEN = "# hush rehearse chose {names} on public content, at no cost to any promise.\n"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """A finished rehearsal of a config, and the folder with its files."""

    outcome: Outcome
    folder: Path


def rehearse_config(
    config: Config,
    *,
    output: str | Path | None = None,
    settings: RehearsalSettings | None = None,
    engine: Engine | None = None,
    at_once: int = 1,
    watch: Watch | None = None,
) -> Rehearsed:
    """Scan and plan as a config says, as far as that is not done, and rehearse the training. Nothing is released.

    settings: instead of the config's. engine and at_once: as of :func:`hush.rehearse.rehearse`.

    Guarantee: no promise is spent; see :func:`hush.rehearse.rehearse`.
    """
    check_libraries()
    watch, settings = watch or Watch(), settings or config.rehearsal
    with planned_run(config, output=output, watch=watch) as job:
        plan = Plan.load(job.paths.plan)
        spans = spans_in(job.paths.canaries if job.has_canaries else job.paths.scan)
        corpus = job.corpus()
        if corpus.rendering is not None and corpus.rendering.learns(config.training.learn) != "all":
            watch.notice("The rehearsal learns whole conversations, and the training only answers.")
        content = public_content(plan, corpus.texts(), spans=spans, max_examples=settings.max_examples)
        asked, folder = config.plan, job.paths.rehearsal
        computed = plan.capacity == "accounted" and asked.noise_multiplier is None
        outcome = rehearse(
            plan,
            content,
            config.training.recipe(model_path(job)),
            folder=folder,
            settings=settings,
            keep=_share_kept(plan, asked.keep) if computed else None,
            runtime=config.training.runtime,
            engine=engine,
            at_once=at_once,
            progress=watch.work,
        )
        outcome.store(folder / OUTCOME)
        with whole_file(folder / PATCH, owner_only=True) as file:
            file.write(yaml.safe_dump(_plain(outcome.patch), sort_keys=False).encode())
        save_forecast(outcome, folder / FORECAST)
    return Rehearsed(outcome=outcome, folder=folder)


def _share_kept(plan: Plan, asked: float | Auto | None) -> float:
    """The share kept that the plan's noise was computed for; where it was chosen, the plan's weights tell it."""
    return kept_weight(plan) if asked == AUTO else asked or KEEP


def patched(content: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """A config with the settings of a patch; mappings are merged.

    >>> patched({"plan": {"rounds": 10, "batch_size": 4}}, {"plan": {"rounds": 5}, "training": {"lora": {"rank": 2}}})
    {'plan': {'rounds': 5, 'batch_size': 4}, 'training': {'lora': {'rank': 2}}}
    """
    merged = dict(content)
    for name, value in patch.items():
        before = merged.get(name)
        if isinstance(value, Mapping):
            merged[name] = patched(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[name] = value
    return merged


def check_beside(config: Path, path: Path) -> None:
    """Refuse a place where the paths of this config would mean something else."""
    if path.resolve().parent != config.resolve().parent:
        raise InvalidInput(
            f"relative paths in a config start at its folder; name a file in {config.resolve().parent}",
            setting="write",
            value=str(path),
        )


def write_patched(config: Path, patch: Mapping[str, Any], path: Path) -> None:
    """Write a config with the settings of a patch beside the one that was rehearsed; it is checked first.

    Comments of the original are not kept.
    """
    check_beside(config, path)
    content = patched(yaml.safe_load(config.read_text(encoding="utf-8")), _plain(patch))
    Config.of(content, folder=config.parent)
    names = ", ".join(f"{section}.{name}" for section, values in patch.items() for name in values) or "nothing else"
    text = WRITTEN.format(names=names) + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    with whole_file(path) as file:
        file.write(text.encode())
    load_config(path)


def _plain(patch: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _plain(value) if isinstance(value, Mapping) else value for name, value in patch.items()}
