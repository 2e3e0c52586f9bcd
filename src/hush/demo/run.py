"""The demo from the first file to the report. hush's own arm is ``run_pipeline``; the others train beside it."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console

from hush.demo.sizes import FULL, Size, config_of
from hush.errors import InvalidInput
from hush.storage import whole_file

if TYPE_CHECKING:
    from hush.demo.arms import Result
    from hush.demo.story import Bars, Story
    from hush.demo.workers import InTurn, Workers
    from hush.report import Report

__all__ = ["run_demo"]

NAMES = {"code-base", "base-model", "hush.yaml", "run", "none", "paper", "paper-program", "report.html", "demo.json"}
BESIDE = {"noise.png", "noise.svg", "noise.json"}  # of --noise-table
MARK = ".hush-demo"  # a folder with this file in it is a demo's
NEEDED = ("torch", "transformers", "tokenizers", "pathspec", "tree_sitter", "tree_sitter_python")
CONFIG = """\
# How the demo's protected model is trained: an ordinary config, to copy and fill in for code of your own.
#   hush run hush.yaml
"""


def run_demo(folder: Path, console: Console, *, size: Size = FULL) -> Path:
    """Train all four, tell about it on the console, and leave the report and everything behind it in the folder.

    What an earlier demo left there is replaced. Guarantee: the report is there whole or not at all.
    """
    begin = time.perf_counter()
    _check_libraries()
    _cleared(folder)
    from hush.demo.company import write_company
    from hush.demo.story import Bars, Story
    from hush.demo.workers import InTurn, Workers, quietly

    story = Story(console)
    story.begin()
    with Workers(size.workers) if size.workers else InTurn() as workers, quietly():
        story.company(write_company(folder / "code-base", size))
        with Bars(console, size.rounds) as bars:
            results = _trained(folder, size, workers, story, bars)
    record, report = _reported(folder, size, results)
    with whole_file(folder / "demo.json", owner_only=True) as file:
        file.write(json.dumps(record, indent=2, allow_nan=False).encode() + b"\n")
    report.write(folder / "report.html")
    story.results(results, size.candidates)
    story.end(str(folder), time.perf_counter() - begin)
    return folder / "report.html"


def _trained(folder: Path, size: Size, workers: "Workers | InTurn", story: "Story", bars: "Bars") -> "list[Result]":
    """Every arm; the others begin as soon as hush's plan is made."""
    from hush.config import load_config
    from hush.config.sections import SmallModel
    from hush.demo.arms import HUSH, OTHERS, Task, result_of
    from hush.pipeline.base_model import base_model
    from hush.pipeline.folder import RunPaths
    from hush.pipeline.job import Watch
    from hush.pipeline.run import run_pipeline
    from hush.plan import Plan

    base = base_model(folder / "base-model", SmallModel(**size.model))  # the run makes the same for itself
    paths = RunPaths((folder / "run").resolve())
    tasks = {arm.name: Task(arm=arm, size=size, folder=folder, base=base) for arm in (*OTHERS, HUSH)}
    done = {HUSH.name: 0}

    def stage(name: str, state: str) -> None:
        if name == "train" and state == "begins":
            story.planned(Plan.load(paths.plan), size)
            workers.begin([tasks[arm.name] for arm in OTHERS])

    def live(numbers: Any) -> None:
        done[HUSH.name] = numbers.round
        shown()

    def shown() -> None:
        bars.show({**workers.rounds, **done})

    with whole_file(folder / "hush.yaml") as file:
        file.write((CONFIG + yaml.safe_dump(config_of(size), sort_keys=False)).encode())
    run_pipeline(load_config(folder / "hush.yaml"), watch=Watch(stage=stage, live=live))
    own = result_of(tasks[HUSH.name], Plan.load(paths.share / "plan"), paths.share)
    results = [*workers.results(shown), own]
    shown()
    return results


def _reported(folder: Path, size: Size, results: "list[Result]") -> "tuple[dict[str, Any], Report]":
    """The numbers as plain data, and the report."""
    from hush.demo.page import demo_report

    report = demo_report(folder / "run", results, size.candidates)
    arms = {
        one.arm.name: {
            "noise_multiplier": one.noise_multiplier,
            "kept": one.kept,
            "loss": one.loss,
            "certified": one.certified,
            "largest_share_of_ceiling": one.share,
            "exposure_bits": one.canaries.exposure,
            "canaries_named": one.canaries.named,
            "canaries_said": one.canaries.said,
            "canaries": len(one.canaries.ranked),
            "curve": [list(point) for point in one.curve],
        }
        for one in results
    }
    return {"size": asdict(size), "arms": arms}, report


def _check_libraries() -> None:
    """Say what to install, before anything is done."""
    from importlib.util import find_spec

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise InvalidInput(
            f"the demo trains models and reads code, for which {', '.join(missing)} is missing; pip install "
            '"hush[hf,scan]", or run make demo, which does it. hush demo --noise-table needs neither'
        )


def _cleared(folder: Path) -> None:
    """A folder for the demo: new, empty, or an earlier demo's, which goes."""
    from hush.pipeline.folder import discard

    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"--output={folder} is a file; pass a folder, which is made if it is missing")
    folder.mkdir(parents=True, exist_ok=True)
    earlier = sorted(path for path in folder.iterdir() if path.name not in BESIDE | {MARK})
    # Names alone do not tell: whoever has a folder "paper" of their own shall keep it.
    ours = NAMES if (folder / MARK).is_file() else set[str]()
    foreign = [path.name for path in earlier if path.name not in ours and not (ours and _is_remains(path.name))]
    if foreign:
        raise InvalidInput(f"--output={folder} holds something other than a demo ({foreign[0]}); name a new folder")
    (folder / MARK).touch()  # before anything else is written
    for path in earlier:
        discard(path) if path.is_dir() else path.unlink()


def _is_remains(name: str) -> bool:
    """What a demo was writing when it was killed."""
    return name.startswith(".") and name.endswith((".tmp", ".old"))
