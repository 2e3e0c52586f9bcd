"""What the demo says on the way: what is happening and why, in plain sentences, and a bar for every arm."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hush.audit.exposure import BY_CHANCE, by_chance
from hush.console import plain, rounded_up, show_rows, times_less
from hush.demo.arms import ARMS, HUSH, Result
from hush.demo.company import Company
from hush.demo.sizes import CHUNK, KEEP, PROJECTS, Size
from hush.plan import Plan
from hush.plan.held_out import held_out_examples
from hush.rounding import counted

__all__ = ["COLUMNS", "Bars", "Story", "cells_of", "chance_in_words", "findings"]

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
    return f"{by_chance(keys[0].ranked):.2f} by chance, give or take {_spread(len(keys)):.1f} with {len(keys)} keys"


def _spread(keys: int) -> float:
    """At most the standard deviation of the mean exposure of so many canaries, where nothing was learnt.

    That of one is nearly exponential, so as wide as it is large.
    """
    return BY_CHANCE / keys**0.5


def findings(results: Sequence[Result]) -> list[str]:
    """What the numbers show, said only where they do."""
    none, paper, program, hush = (next(one for one in results if one.arm == arm) for arm in ARMS)
    found: list[str] = []
    keys = none.canaries.ranked
    if none.canaries.exposure > by_chance(keys[0].ranked) + 3 * _spread(len(keys)):
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
