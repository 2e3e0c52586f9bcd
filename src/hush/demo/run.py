"""The demo as a whole: the arms, what the console shows meanwhile, and the report.

hush's own arm is ``run_pipeline``; the others train beside it. The report is that of ``hush report`` about hush's own
arm, preceded by a comparison of all four.
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
from hush.demo.company import CHUNK_TOKENS, FULL, KEPT_WEIGHT, PROJECTS, Company, Size, config_of
from hush.errors import InvalidInput, Setting
from hush.numbers import counted
from hush.plan import Plan
from hush.plan.make import held_out_examples
from hush.report.markup import shown, table
from hush.report.numbers import noise_by_method
from hush.report.page import Section, figure
from hush.report.plots import Look, Plot
from hush.report.report import Report, read_audit, read_source
from hush.scan.result import Scan
from hush.storage import discard, is_leftover, whole_file

if TYPE_CHECKING:
    from hush.demo.arms import SequentialArms, Workers
    from hush.report import Report

__all__ = ["COLUMNS", "Bars", "Story", "chance_in_words", "demo_report", "findings", "run_demo", "table_row"]


ENTRIES = {"code-base", "base-model", "hush.yaml", "run", "none", "paper", "paper-program", "report.html", "demo.json"}
NOISE_TABLE_FILES = {"noise.png", "noise.svg", "noise.json"}  # of the other demo, which may use the same folder
MARKER = ".hush-demo"  # a file that marks the folder of a demo
REQUIRED_LIBRARIES = ("torch", "transformers", "tokenizers", "pathspec", "tree_sitter", "tree_sitter_python")
CONFIG_HEADER = """\
# How the demo's protected model is trained: an ordinary config, to copy and adapt to your own code.
#   hush run hush.yaml
"""


def run_demo(folder: Path, console: Console, *, size: Size = FULL) -> Path:
    """Train all four arms with explanations on the console; leave the report and everything behind it in the folder.

    The results of an earlier demo there are replaced. Guarantee: the report appears whole or not at all.
    """
    begin = time.perf_counter()
    _check_libraries()
    _prepare_folder(folder)
    from hush.demo.arms import SequentialArms, Workers, silenced_libraries
    from hush.demo.company import write_company

    story = Story(console)
    story.begin()
    with Workers(size.workers) if size.workers else SequentialArms() as workers, silenced_libraries():
        story.company(write_company(folder / "code-base", size))
        with Bars(console, size.rounds) as bars:
            results = _train_all(folder, size, workers, story, bars)
    record, report = _report(folder, size, results)
    with whole_file(folder / "demo.json", owner_only=True) as file:
        file.write(json.dumps(record, indent=2, allow_nan=False).encode() + b"\n")
    report.write(folder / "report.html")
    story.results(results, size.candidates)
    story.end(str(folder), time.perf_counter() - begin)
    return folder / "report.html"


def _train_all(
    folder: Path, size: Size, workers: "Workers | SequentialArms", story: "Story", bars: "Bars"
) -> "list[Result]":
    """Train every arm; the others start as soon as hush's plan is made."""
    from hush.demo.arms import HUSH, OTHERS, Task, result_of
    from hush.plan import Plan
    from hush.run.config import load_config
    from hush.run.folder import RunPaths
    from hush.run.job import Watch
    from hush.run.pipeline import run_pipeline
    from hush.run.sections import SmallModel
    from hush.run.stage_train import base_model

    base = base_model(folder / "base-model", SmallModel(**size.model))  # the run creates the same model for itself
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
        file.write((CONFIG_HEADER + yaml.safe_dump(config_of(size), sort_keys=False)).encode())
    run_pipeline(load_config(folder / "hush.yaml"), watch=Watch(stage=stage, live=live))
    protected = result_of(tasks[HUSH.name], Plan.load(paths.release / "plan"), paths.release)
    results = [*workers.results(shown), protected]
    shown()
    return results


def _report(folder: Path, size: Size, results: list[Result]) -> "tuple[dict[str, Any], Report]":
    """The numbers as plain data, and the report."""
    report = demo_report(folder / "run", results, size.candidates)
    arms = {
        result.arm.name: {
            "noise_multiplier": result.noise_multiplier,
            "kept": result.kept,
            "loss": result.loss,
            "certified": result.certified,
            "largest_share_of_ceiling": result.ceiling_share,
            "exposure_bits": result.canaries.exposure,
            "canaries_named": result.canaries.ranked_first,
            "canaries_said": result.canaries.completed,
            "canaries": len(result.canaries.ranked),
            "curve": [list(point) for point in result.curve],
        }
        for result in results
    }
    return {"size": asdict(size), "arms": arms}, report


def _check_libraries() -> None:
    """Say what to install, before anything is trained."""
    from importlib.util import find_spec

    missing = [name for name in REQUIRED_LIBRARIES if find_spec(name) is None]
    if missing:
        raise InvalidInput(
            f"the demo trains models and reads code, for which {', '.join(missing)} is missing; pip install "
            '"hush[hf,scan]", or run make demo, which does it. The noise table needs neither: ',
            Setting("noise_table"),
        )


def _prepare_folder(folder: Path) -> None:
    """Make or empty the folder of the demo; refuse one that holds anything but an earlier demo."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(
            "that is a file; pass a folder, which is created if it is missing", setting="output", value=str(folder)
        )
    folder.mkdir(parents=True, exist_ok=True)
    earlier = sorted(path for path in folder.iterdir() if path.name not in NOISE_TABLE_FILES | {MARKER})
    # Names alone do not tell whose folder it is: a user may have a folder "paper".
    known = ENTRIES if (folder / MARKER).is_file() else set[str]()
    foreign = [path.name for path in earlier if path.name not in known and not (known and is_leftover(path.name))]
    if foreign:
        raise InvalidInput(
            f"that folder holds something other than a demo ({foreign[0]}); name a new one",
            setting="output",
            value=str(folder),
        )
    (folder / MARKER).touch()  # before anything else is written
    for path in earlier:
        discard(path) if path.is_dir() else path.unlink()


COLUMNS = ("training", "noise", "kept", "loss", "exposure", "keys said", "posterior ≤")


@final
class Bars:
    """One progress bar per arm on a terminal; elsewhere a line every 10 % of all rounds and one per trained arm."""

    def __init__(self, console: Console, rounds: int) -> None:
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._console, self._rounds = console, rounds
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks = {arm.name: self._progress.add_task(arm.title, total=rounds) for arm in ARMS}
        self._finished: set[str] = set()
        self._tenths = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def show(self, done: Mapping[str, int]) -> None:
        """Show how many rounds of each arm are done."""
        tenths = 10 * sum(done.values()) // (self._rounds * len(ARMS))
        if self._tenths < tenths < 10 and not self._console.is_terminal:
            self._console.print(plain(f"  {10 * tenths} % of all rounds are done"))
        self._tenths = max(self._tenths, tenths)
        for name, rounds in done.items():
            self._progress.update(self._tasks[name], completed=rounds)
            if rounds >= self._rounds and name not in self._finished:
                self._finished.add(name)
                title = next(arm.title for arm in ARMS if arm.name == name)
                self._console.print(plain(f"  trained: {title}"))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


@final
class Story:
    """The explanations that the demo prints on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self) -> None:
        self._title("1. A company's code base, played by Python's standard library")

    def company(self, company: Company) -> None:
        self._say(
            f"{company.files} files, {company.size / 1e6:.1f} MB. {len(PROJECTS)} parts of it play secret projects: "
            f"{', '.join(PROJECTS)}. They have {company.project_files} files of their own; every file that imports "
            f"one of those, directly or through others, may give it away too: {company.secret_files} files in all. "
            "The model reads bytes: a tokenizer trained on this code would carry words of the secret projects into the "
            "release, and no promise covers that."
        )

    def planned(self, plan: Plan, size: Size) -> None:
        """Shown once the scan, the canaries and hush's plan are made."""
        graph = plan.incidence
        count_S = graph.examples_per_secret
        canaries = sum(name.startswith("canary-") for name in plan.secret_ids)
        self._title("2. Secrets, promises and a plan")
        self._say(
            f"Cut into examples of {CHUNK_TOKENS} tokens of code, mostly 100 bytes or some more, this is "
            f"{graph.num_examples:,} examples. "
            f"{int((graph.secrets_per_example > 0).sum()):,} of them hold a secret. {canaries} canaries, made-up "
            f"keys that only the demo knows, are planted in {size.repeats} examples each, so that memory can be "
            f"measured. A secret is in up to {count_S.max()} examples. {held_out_examples(plan).size} examples without "
            "secrets are held out, to evaluate on."
        )
        self._say(
            f"The promise for each: an adversary who gives no candidate more than its prior (1e-10 for a project) "
            f"names it with probability at most {plan.ceiling.max():g} after seeing the whole training. hush finds the "
            f"least noise at which examples with secrets keep {KEPT_WEIGHT:.0%} of their weight: a noise multiplier of "
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
        hush, start = next(result for result in results if result.arm == HUSH), results[0].curve[0][1]
        self._title("4. What came out")
        show_rows(self._console, COLUMNS, [table_row(result) for result in results])
        self._say(
            f"Loss: per byte on held-out code without secrets, lower is better; {start:.2f} before training. Exposure: "
            f"how far up the true key ranks among {candidates:,} candidates, in bits: {chance_in_words(results)}. "
            "Kept: share of the weight of examples with secrets. Posterior: the certified bound of the secret closest "
            "to its ceiling."
        )
        for line in findings(results):
            self._say(line)
        worst = max(result.noise_multiplier for result in results)
        self._say(
            f"The paper's proof needs up to {times_less(worst, hush.noise_multiplier)} times the noise of hush, for "
            "the same promise."
        )
        self._say(
            "The model and the data are tiny, where a promise costs most: the noise is divided by the number of "
            "examples in a round, which is small here. With more data each secret is a smaller part of it, and needs "
            "less noise."
        )

    def end(self, folder: str, seconds: float) -> None:
        self._title("5. Look at")
        for what, where in (
            ("the report, in a browser", f"{folder}/report.html"),
            ("what may leave the owner's hands", f"{folder}/run/release"),
            ("check it yourself", f"hush verify {folder}/run/release"),
            ("the config, to run on your own code", f"{folder}/hush.yaml"),
            ("the numbers", f"{folder}/demo.json"),
        ):
            self._console.print(plain(f"  {what}: {where}"), soft_wrap=True)
        self._console.print(f"{seconds:.0f} s", style="dim", highlight=False)

    def _title(self, text: str) -> None:
        self._console.print(f"\n[bold]{text}[/bold]", highlight=False)

    def _say(self, text: str) -> None:
        self._console.print(plain(text), highlight=False)


def table_row(result: Result) -> list[str]:
    """The row of an arm in the table."""
    certified = "no bound" if result.certified is None else rounded_up(result.certified, 3)
    keys = len(result.canaries.ranked)
    return [
        result.arm.title,
        rounded_up(result.noise_multiplier) if result.noise_multiplier else "0",
        f"{result.kept:.0%}",
        f"{result.loss:.3f}",
        f"{result.canaries.exposure:.1f}",
        f"{result.canaries.completed} of {keys}",
        certified,
    ]


def chance_in_words(results: Sequence[Result]) -> str:
    """The mean exposure of a model that learnt nothing, with its spread, in words."""
    keys = results[0].canaries.ranked
    return (
        f"{chance_exposure(keys[0].ranked):.2f} by chance, give or take {_spread(len(keys)):.1f} with {len(keys)} keys"
    )


def _spread(keys: int) -> float:
    """An upper bound on the standard deviation of the mean exposure of a model that learnt nothing.

    The exposure of one canary is nearly exponential, so its standard deviation is about its mean.
    """
    return CHANCE_EXPOSURE / keys**0.5


def findings(results: Sequence[Result]) -> list[str]:
    """What the numbers show; each sentence appears only where they support it."""
    none, paper, program, hush = (next(result for result in results if result.arm == arm) for arm in ARMS)
    sentences: list[str] = []
    keys = none.canaries.ranked
    if none.canaries.exposure > chance_exposure(keys[0].ranked) + 3 * _spread(len(keys)):
        sentences.append(
            f"Without protection the model learnt the keys: {none.canaries.exposure:.1f} bits on average, and "
            f"{none.canaries.completed} of {len(keys)} come out word for word. Under hush: "
            f"{hush.canaries.exposure:.1f} bits."
        )
    else:
        sentences.append(
            "In this run the model did not learn the keys even without protection; train longer to see it."
        )
    best = min(paper.loss, program.loss)
    if none.loss < hush.loss < best:
        sentences.append(
            f"For the same promise hush's model is better: loss {hush.loss:.2f} against {best:.2f} by the paper's "
            f"method; {none.loss:.2f} without any promise."
        )
    else:
        sentences.append(
            f"Losses: {none.loss:.2f} without protection, {best:.2f} by the paper's method, {hush.loss:.2f} with hush; "
            "in this run they are not in the order that the noise suggests."
        )
    return sentences


LOOKS: Mapping[str, Look] = {  # of an arm, in every plot
    "none": ("@muted", "dot", "diamond"),
    "paper": ("@red", "dashdot", "triangle-up"),
    "paper-program": ("@orange", "dash", "square"),
    "hush": ("@green", "solid", "star"),
}


def demo_report(run: Path, results: Sequence[Result], candidates: int) -> Report:
    """The whole report. It holds no text of a secret or a canary, only names of projects, ids and numbers."""
    source = read_source(run)
    return Report(
        plan=source.plan,
        certificate=source.certificate,
        noise=noise_by_method(source.plan),
        scan=replace(Scan.load(run / "owner" / "scan"), owner=None),
        audit=read_audit(run / "owner" / "audit"),
        training=[
            {"round": round, "run": result.arm.title, "loss per byte": loss}
            for result in results
            for round, loss in result.curve
        ],
        looks={result.arm.title: LOOKS[result.arm.name] for result in results},
        sections=[_side_by_side(results, candidates)],
        title="The standard library, protected",
        folder="run/release",
    )


def _side_by_side(results: Sequence[Result], candidates: int) -> Section:
    start = results[0].curve[0][1]
    plot = _plot(results)
    names = ", ".join(PROJECTS)
    sentences = "".join(f"<li>{shown(line)}</li>\n" for line in findings(results))
    html = (
        "<p>The same small model over bytes, from the same random weights, on the same code, for the same rounds, "
        f"under four plans. Python's standard library plays a company's code base; {shown(names)} play its secret "
        "projects, and every file that imports them holds them too. Canaries are made-up keys, planted to measure "
        "memorisation. "
        "What follows below is about hush's own model.</p>\n"
        + table(COLUMNS, map(table_row, results), caption="Four trainings")
        + f'<p class="note">Loss: per byte, on held-out code without secrets; {start:.2f} before training. Data kept: '
        "share of the weight of examples with secrets. Exposure: how far up the true key ranks among "
        f"{candidates:,} candidates, the mean over the canaries in bits; {chance_in_words(results)}. Posterior: the "
        "certified bound of the secret closest to its ceiling. All use one learning rate; each could be tuned "
        "separately. The keys, the draws and the noise come from the system, so every run of the demo gives other "
        f"numbers.</p>\n<ul>\n{sentences}</ul>\n"
        + figure(plot)
        + "<p>Model and data are tiny, where a promise costs most: the noise is divided by the number of examples in a "
        "round, and with more data each secret is a smaller part of it.</p>\n"
        "<h3>Why bytes</h3>\n<p>A tokenizer is part of what is released. One that is trained on the code would hold "
        "names of the secret projects as tokens of its own, and no noise would hide them. A tokenizer over bytes has "
        "seen no data; one that was trained on examples without secrets would do as well.</p>\n"
    )
    return Section(name="arms", link="Side by side", title="Four trainings, side by side", html=html, plots=(plot,))


def _plot(results: Sequence[Result]) -> Plot:
    """Loss against exposure: a good model that gives nothing away is at the lower left."""
    traces: list[dict[str, Any]] = []
    for result in results:
        colour, _, symbol = LOOKS[result.arm.name]
        title, bits = shown(result.arm.title), result.canaries.exposure
        text = f"<b>{title}</b><br>loss {result.loss:.3f}<br>exposure {bits:.1f} bits"
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": title,
                "x": [bits], "y": [result.loss], "text": [text], "hoverinfo": "text",
                "marker": {"color": colour, "symbol": symbol, "size": 20 if result.arm == HUSH else 15,
                           "line": {"width": 1.5, "color": "@paper"}},
            }
        )  # fmt: skip
    cells = [(result.arm.title, f"{result.loss:.4g}", f"{result.canaries.exposure:.3g}") for result in results]
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
