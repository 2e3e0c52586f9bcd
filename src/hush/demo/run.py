"""The demo from the first file to the report. hush's own arm is ``run_pipeline``; the others train beside it.

What the demo says on the way: what is happening and why, in plain sentences, and a bar for every arm.

The demo's report: that of ``hush report`` about hush's own arm, with all four side by side before the rest.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hush.audit.exposure import CHANCE_EXPOSURE, chance_exposure
from hush.console import plain, rounded_up, show_rows, times_less
from hush.demo.arms import ARMS, HUSH, Result
from hush.demo.company import CHUNK, FULL, KEEP, PROJECTS, Company, Size, config_of
from hush.errors import InvalidInput
from hush.numbers import counted
from hush.plan import Plan
from hush.plan.make import held_out_examples
from hush.report.markup import shown, table
from hush.report.numbers import noise_by_method
from hush.report.page import Section, figure
from hush.report.plots import Look, Plot
from hush.report.report import Report, read_audit, read_source
from hush.scan.result import Scan
from hush.storage import whole_file

if TYPE_CHECKING:
    from hush.demo.arms import InTurn, Workers
    from hush.report import Report

__all__ = ["COLUMNS", "Bars", "Story", "cells_of", "chance_in_words", "demo_report", "findings", "run_demo"]


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
    from hush.demo.arms import InTurn, Workers, quietly
    from hush.demo.company import write_company

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
    from hush.demo.arms import HUSH, OTHERS, Task, result_of
    from hush.plan import Plan
    from hush.run.config import load_config
    from hush.run.folder import RunPaths
    from hush.run.job import Watch
    from hush.run.pipeline import run_pipeline
    from hush.run.sections import SmallModel
    from hush.run.stage_train import base_model

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
    from hush.run.folder import discard

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


COLUMNS = ("training", "noise", "kept", "loss", "exposure", "keys said", "posterior ≤")


@final
class Bars:
    """A bar of rounds for every arm on a terminal; elsewhere a line for every tenth of the rounds, and for each arm."""

    def __init__(self, console: Console, rounds: int) -> None:
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._console, self._rounds = console, rounds
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks = {arm.name: self._progress.add_task(arm.title, total=rounds) for arm in ARMS}
        self._said: set[str] = set()
        self._tenths = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def show(self, done: Mapping[str, int]) -> None:
        """So many rounds of each arm are done."""
        tenths = 10 * sum(done.values()) // (self._rounds * len(ARMS))
        if self._tenths < tenths < 10 and not self._console.is_terminal:
            self._console.print(plain(f"  {10 * tenths} % of all rounds are done"))
        self._tenths = max(self._tenths, tenths)
        for name, rounds in done.items():
            self._progress.update(self._tasks[name], completed=rounds)
            if rounds >= self._rounds and name not in self._said:
                self._said.add(name)
                title = next(arm.title for arm in ARMS if arm.name == name)
                self._console.print(plain(f"  trained: {title}"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


@final
class Story:
    """Tells the demo on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self) -> None:
        self._title("1. A company's code base, played by Python's standard library")

    def company(self, company: Company) -> None:
        self._say(
            f"{company.files} files, {company.size / 1e6:.1f} MB. {len(PROJECTS)} parts of it play secret projects: "
            f"{', '.join(PROJECTS)}. They have {company.own} files of their own; whatever imports one of those, "
            f"directly or through others, may give it away too: {company.reached} files in all, by the real imports. "
            "The model reads bytes: a tokenizer trained on this code would carry words of the secret projects into the "
            "release, and no promise covers that."
        )

    def planned(self, plan: Plan, size: Size) -> None:
        """The scan, the canaries and hush's plan are made."""
        graph = plan.incidence
        count_S = graph.examples_per_secret
        canaries = sum(name.startswith("canary-") for name in plan.secret_ids)
        self._title("2. Secrets, promises and a plan")
        self._say(
            f"Cut into examples of {CHUNK} tokens of code, mostly 100 bytes or some more, that is "
            f"{graph.num_examples:,} examples. "
            f"{int((graph.secrets_per_example > 0).sum()):,} of them hold a secret. {canaries} canaries, made-up "
            f"keys that only the demo knows, are planted in {size.repeats} examples each, so that memory can be "
            f"measured. A secret is in up to {count_S.max()} examples. {held_out_examples(plan).size} examples without "
            "secrets are held out, to evaluate on."
        )
        self._say(
            f"Promised for each: whoever gives no candidate more than its prior (1e-10 for a project) names it with "
            f"probability at most {plan.ceiling.max():g} after seeing the whole training. hush finds the least noise "
            f"at which examples with secrets keep {KEEP:.0%} of their weight: a noise multiplier of "
            f"{rounded_up(plan.noise_multiplier)}."
        )
        self._title("3. The same model, trained four times")
        self._say(
            f"A GPT-2 over bytes with {counted(size.layers, 'layer')} of width {size.width}, from the same random "
            f"weights, for {size.rounds} rounds of about {size.batch_size} examples."
        )
        for arm in ARMS:
            self._say(f"  {arm.title}: {arm.meaning}")

    def results(self, results: Sequence[Result], candidates: int) -> None:
        hush, start = next(one for one in results if one.arm == HUSH), results[0].curve[0][1]
        self._title("4. What came out")
        show_rows(self._console, COLUMNS, [cells_of(one) for one in results])
        self._say(
            f"Loss: per byte on held-out code without secrets, lower is better; {start:.2f} before training. Exposure: "
            f"how far up the true key ranks among {candidates:,} candidates, in bits: {chance_in_words(results)}. "
            "Kept: of the weight of examples with secrets. Posterior: the certified bound of the secret closest to its "
            "ceiling."
        )
        for line in findings(results):
            self._say(line)
        worst = max(one.noise_multiplier for one in results)
        self._say(
            f"The paper's proof asks for up to {times_less(worst, hush.noise_multiplier)} times the noise of hush, for "
            "the same promise."
        )
        self._say(
            "The model and the data are tiny, and a promise costs most there: noise is spread over the examples of a "
            "round, and here those are few. With more data each secret is a smaller part of it, and needs less noise."
        )

    def end(self, folder: str, seconds: float) -> None:
        self._title("5. Look at")
        for what, where in (
            ("the report, in a browser", f"{folder}/report.html"),
            ("what may leave the owner's hands", f"{folder}/run/share"),
            ("check it yourself", f"hush verify {folder}/run/share"),
            ("the config, to run on your own code", f"{folder}/hush.yaml"),
            ("the numbers", f"{folder}/demo.json"),
        ):
            self._console.print(plain(f"  {what}: {where}"), soft_wrap=True)
        self._console.print(f"{seconds:.0f} s", style="dim", highlight=False)

    def _title(self, text: str) -> None:
        self._console.print(f"\n[bold]{text}[/bold]", highlight=False)

    def _say(self, text: str) -> None:
        self._console.print(plain(text), highlight=False)


def cells_of(result: Result) -> list[str]:
    """A row of the table."""
    certified = "no bound" if result.certified is None else rounded_up(result.certified, 3)
    keys = len(result.canaries.ranked)
    return [
        result.arm.title,
        rounded_up(result.noise_multiplier) if result.noise_multiplier else "0",
        f"{result.kept:.0%}",
        f"{result.loss:.3f}",
        f"{result.canaries.exposure:.1f}",
        f"{result.canaries.said} of {keys}",
        certified,
    ]


def chance_in_words(results: Sequence[Result]) -> str:
    """Mean exposure where nothing was learnt, and how wide it lies."""
    keys = results[0].canaries.ranked
    return (
        f"{chance_exposure(keys[0].ranked):.2f} by chance, give or take {_spread(len(keys)):.1f} with {len(keys)} keys"
    )


def _spread(keys: int) -> float:
    """At most the standard deviation of the mean exposure of so many canaries, where nothing was learnt.

    That of one is nearly exponential, so as wide as it is large.
    """
    return CHANCE_EXPOSURE / keys**0.5


def findings(results: Sequence[Result]) -> list[str]:
    """What the numbers show, said only where they do."""
    none, paper, program, hush = (next(one for one in results if one.arm == arm) for arm in ARMS)
    found: list[str] = []
    keys = none.canaries.ranked
    if none.canaries.exposure > chance_exposure(keys[0].ranked) + 3 * _spread(len(keys)):
        found.append(
            f"Without protection the model learnt the keys: {none.canaries.exposure:.1f} bits on average, and "
            f"{none.canaries.said} of {len(keys)} come out word for word. Under hush: "
            f"{hush.canaries.exposure:.1f} bits."
        )
    else:
        found.append("In this run the model did not learn the keys even without protection; train longer to see it.")
    best = min(paper.loss, program.loss)
    if none.loss < hush.loss < best:
        found.append(
            f"For the same promise hush's model is better: loss {hush.loss:.2f} against {best:.2f} by the paper's "
            f"method; {none.loss:.2f} without any promise."
        )
    else:
        found.append(
            f"Losses: {none.loss:.2f} without protection, {best:.2f} by the paper's method, {hush.loss:.2f} with hush; "
            "in this run they are not in the order that the noise suggests."
        )
    return found


LOOKS: Mapping[str, Look] = {  # of an arm, in every plot
    "none": ("@muted", "dot", "diamond"),
    "paper": ("@red", "dashdot", "triangle-up"),
    "paper-program": ("@orange", "dash", "square"),
    "hush": ("@green", "solid", "star"),
}


def demo_report(run: Path, results: Sequence[Result], candidates: int) -> Report:
    """The whole report. No text of a secret or of a canary is in it: names of projects, ids and numbers."""
    source = read_source(run)
    return Report(
        plan=source.plan,
        certificate=source.certificate,
        noise=noise_by_method(source.plan),
        scan=replace(Scan.load(run / "owner" / "scan"), owner=None),
        audit=read_audit(run / "owner" / "audit"),
        training=[
            {"round": round, "run": one.arm.title, "loss per byte": loss}
            for one in results
            for round, loss in one.curve
        ],
        looks={one.arm.title: LOOKS[one.arm.name] for one in results},
        sections=[_side_by_side(results, candidates)],
        title="The standard library, protected",
        folder="run/share",
    )


def _side_by_side(results: Sequence[Result], candidates: int) -> Section:
    start = results[0].curve[0][1]
    plot = _plot(results)
    names = ", ".join(PROJECTS)
    said = "".join(f"<li>{shown(line)}</li>\n" for line in findings(results))
    html = (
        "<p>The same small model over bytes, from the same random weights, on the same code, for the same rounds, "
        f"under four plans. Python's standard library plays a company's code base; {shown(names)} play its secret "
        "projects, and whatever imports them holds them too. Canaries are made-up keys, planted to measure memory. "
        "What follows below is about hush's own model.</p>\n"
        + table(COLUMNS, map(cells_of, results), caption="Four trainings")
        + f'<p class="note">Loss: per byte, on held-out code without secrets; {start:.2f} before training. Data kept: '
        "of the weight of examples with secrets. Exposure: how far up the true key ranks among "
        f"{candidates:,} candidates, the mean over the canaries in bits; {chance_in_words(results)}. Posterior: the "
        "certified bound of the secret closest to its ceiling. All share one learning rate; each alone could "
        "be tuned. The keys, the draws and the noise come from the system, so every run of the demo gives other "
        f"numbers.</p>\n<ul>\n{said}</ul>\n"
        + figure(plot)
        + "<p>Model and data are tiny, and a promise costs most there. The noise is spread over the examples of a "
        "round, and the more data there is, the smaller a part of it each secret.</p>\n"
        "<h3>Why bytes</h3>\n<p>A tokenizer is part of what is released. One that is trained on the code would hold "
        "names of the secret projects as tokens of its own, and no noise would hide them. A tokenizer over bytes has "
        "seen no data; one that was trained on examples without secrets would do as well.</p>\n"
    )
    return Section(name="arms", link="Side by side", title="Four trainings, side by side", html=html, plots=(plot,))


def _plot(results: Sequence[Result]) -> Plot:
    """Loss against exposure: a good model that tells nothing is at the lower left."""
    traces: list[dict[str, Any]] = []
    for one in results:
        colour, _, symbol = LOOKS[one.arm.name]
        text = f"<b>{shown(one.arm.title)}</b><br>loss {one.loss:.3f}<br>exposure {one.canaries.exposure:.1f} bits"
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": shown(one.arm.title),
                "x": [one.canaries.exposure], "y": [one.loss], "text": [text], "hoverinfo": "text",
                "marker": {"color": colour, "symbol": symbol, "size": 20 if one.arm == HUSH else 15,
                           "line": {"width": 1.5, "color": "@paper"}},
            }
        )  # fmt: skip
    cells = [(one.arm.title, f"{one.loss:.4g}", f"{one.canaries.exposure:.3g}") for one in results]
    ends = "; ".join(f"{title}: loss {loss}, {bits} bits" for title, loss, bits in cells)
    return Plot(
        name="arms",
        title="What was learnt, and what was remembered",
        summary=f"Loss on held-out code against exposure of the canaries; down is better, left tells less. {ends}.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "exposure of the canaries, bits"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": "loss per byte"}},
            "showlegend": True,
        },
        numbers=table(["training", "loss", "exposure, bits"], cells, caption="Loss and exposure"),
    )
