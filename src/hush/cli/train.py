"""The command ``hush train``: fine-tune a language model under a plan, in one process or in several."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

import typer
from rich.console import Console

from hush.cli.checks import check_model, has_other_processes, missing_library_explained, quiet_libraries
from hush.cli.interrupt import Interrupt, message_when_stopped, stopped_after_message
from hush.cli.messages import terminal, working
from hush.cli.options import (
    CHAT_PANEL,
    DATA_PANEL,
    SPEED_PANEL,
    ColumnOption,
    DeviceOption,
    JsonOption,
    PlanArgument,
    UnitOption,
    flag,
    settings_from,
)
from hush.errors import InvalidInput, Setting

if TYPE_CHECKING:
    from hush.data import Corpus
    from hush.keys import DataKey
    from hush.ledger import Ledger
    from hush.plan import Plan
    from hush.train.settings import PublicFirst

__all__ = ["train"]


class TaskChoice(StrEnum):
    """What the model predicts."""

    causal = "causal"
    masked = "masked"


class PartChoice(StrEnum):
    """What is learnt privately from an example with slots."""

    slot = "slot"
    difference = "difference"


class MetricChoice(StrEnum):
    """In what gradients are clipped and receive noise."""

    none = "none"
    public = "public"


class DownChoice(StrEnum):
    """What becomes of the down-projections of adapters."""

    trained = "trained"
    random = "random"
    public = "public"


class LearnChoice(StrEnum):
    """What is learnt of a conversation."""

    all = "all"
    completion = "completion"
    assistant = "assistant"


class OptimizerChoice(StrEnum):
    """What turns a noisy gradient into a step."""

    adamw = "adamw"
    sgd = "sgd"


class ScheduleChoice(StrEnum):
    """How the learning rate changes over the rounds."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


LEARNING_PANEL = "Learning"  # headings of the help
LORA_PANEL = "LoRA: train small adapters"
FIRST_PANEL = "Public part: ordinary training on what is public, before the private rounds"
PUBLIC_PANEL = "Public stream: examples without secrets, and skeletons [default with slots: on]"
METRIC_PANEL = "Public metric: less noise where gradients are small"
SAFETY_PANEL = "Resuming and checks"
RUN_PARTS = ("owner", "release")  # folders in the folder of a run


def train(
    plan: PlanArgument,
    model: Annotated[str, typer.Option(help="Hugging Face language model: a name on the hub or a folder.")],
    data: Annotated[
        str,
        typer.Option(
            help="The data of the plan: Parquet, JSON lines, CSV, text, a folder, or a name.",
            rich_help_panel=DATA_PANEL,
        ),
    ],
    key: Annotated[
        Path | None, typer.Option(help="Your data key, the one passed to hush plan.", rich_help_panel=DATA_PANEL)
    ] = None,
    scan: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the scan: where the slots of the plan are in the texts. Needed for a plan with slots.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder of the run; an unfinished run in it resumes.")] = Path("run"),
    column: ColumnOption = None,
    unit: UnitOption = None,
    json: JsonOption = False,
    task: Annotated[
        TaskChoice | None,
        typer.Option(
            help="What the model predicts: the next token or masked tokens [default: as it was pretrained].",
            rich_help_panel=LEARNING_PANEL,
        ),
    ] = None,
    optimizer: Annotated[
        OptimizerChoice, typer.Option(help="Optimizer of the noisy gradients.", rich_help_panel=LEARNING_PANEL)
    ] = OptimizerChoice.adamw,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Peak learning rate, above 0 [default: 5e-4; with --lora 1e-3; with sgd 0.1].",
            max=1e3,
            rich_help_panel=LEARNING_PANEL,
        ),
    ] = None,
    schedule: Annotated[
        ScheduleChoice,
        typer.Option(help="How the learning rate decays over the rounds.", rich_help_panel=LEARNING_PANEL),
    ] = ScheduleChoice.linear,
    warmup: Annotated[
        int, typer.Option(help="Rounds of warmup before the decay.", min=0, rich_help_panel=LEARNING_PANEL)
    ] = 0,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Truncate each text to this many tokens [default: what the model takes, at most 512].",
            min=2,
            rich_help_panel=LEARNING_PANEL,
        ),
    ] = None,
    trainable: Annotated[
        list[str] | None,
        typer.Option(
            help="Train a part of the model: norms, biases, head-bias, or a pattern of parameter names. Can be "
            "repeated [default: all of it].",
            metavar="<str>",
            rich_help_panel=LEARNING_PANEL,
        ),
    ] = None,
    average: Annotated[
        float | None,
        typer.Option(
            help="Release the mean of the models after this last share of the rounds, up to 1 [default: the last one].",
            max=1.0,
            rich_help_panel=LEARNING_PANEL,
        ),
    ] = None,
    learn: Annotated[
        LearnChoice | None,
        typer.Option(
            help="Of conversations, and of prompts with completions: learn all, the completions, or what the assistant "
            "says [default: completions where there are any, otherwise all].",
            rich_help_panel=CHAT_PANEL,
        ),
    ] = None,
    lora: Annotated[bool, flag("--lora", "Freeze the model and train adapters.", panel=LORA_PANEL)] = False,
    lora_rank: Annotated[int, typer.Option(help="Rank of the adapters.", min=1, rich_help_panel=LORA_PANEL)] = 8,
    lora_alpha: Annotated[float, typer.Option(help="LoRA alpha: scale times rank.", rich_help_panel=LORA_PANEL)] = 16.0,
    lora_dropout: Annotated[float, typer.Option(help="Dropout, in [0, 1).", rich_help_panel=LORA_PANEL)] = 0.0,
    lora_target: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a module to adapt. Can be repeated [default: chosen by PEFT].",
            metavar="<str>",
            rich_help_panel=LORA_PANEL,
        ),
    ] = None,
    lora_down: Annotated[
        DownChoice,
        typer.Option(
            help="Train the down-projections, or freeze them: at random, or along directions of public gradients.",
            rich_help_panel=LORA_PANEL,
        ),
    ] = DownChoice.trained,
    public_first: Annotated[
        bool | None,
        flag(
            "--public-first/--no-first",
            "Learn examples without secrets, and skeletons, first [default: on, with 100 of them].",
            panel=FIRST_PANEL,
        ),
    ] = None,
    public_first_learning_rate: Annotated[
        float | None,
        typer.Option(
            "--first-rate",
            help="Its learning rate, of AdamW [default: the best of a few in short trials].",
            max=1e3,
            rich_help_panel=FIRST_PANEL,
        ),
    ] = None,
    public_first_batch: Annotated[
        int, typer.Option("--first-batch", help="Its examples per step.", min=1, rich_help_panel=FIRST_PANEL)
    ] = 32,
    public_first_epochs: Annotated[
        float,
        typer.Option(
            "--first-epochs", help="Its most passes over them, above 0.", max=1e6, rich_help_panel=FIRST_PANEL
        ),
    ] = 20.0,
    public_first_patience: Annotated[
        int,
        typer.Option(
            "--first-patience",
            help="It ends after so many evaluations without a lower loss.",
            min=1,
            rich_help_panel=FIRST_PANEL,
        ),
    ] = 5,
    public_weight: Annotated[
        float | None,
        typer.Option(
            help="Add their mean gradient times this to each step, without noise.", rich_help_panel=PUBLIC_PANEL
        ),
    ] = None,
    public_batch: Annotated[
        int | None, typer.Option(help="How many of them per round.", min=1, rich_help_panel=PUBLIC_PANEL)
    ] = None,
    metric: Annotated[
        MetricChoice,
        typer.Option(
            help="Clip and add noise in the ordinary norm, or in a metric from public gradients.",
            rich_help_panel=METRIC_PANEL,
        ),
    ] = MetricChoice.none,
    metric_corpus: Annotated[
        str | None,
        typer.Option(
            help="Public texts to measure it from, a path or a name [default: what is public of the data].",
            rich_help_panel=METRIC_PANEL,
        ),
    ] = None,
    metric_exponent: Annotated[
        float,
        typer.Option(
            help="Scales are this power of the mean square gradient.", min=-0.5, max=0.0, rich_help_panel=METRIC_PANEL
        ),
    ] = -0.25,
    metric_floor: Annotated[
        float,
        typer.Option(
            help="Least mean square, as a share of its parameter's mean.", max=1, rich_help_panel=METRIC_PANEL
        ),
    ] = 0.1,
    metric_precondition: Annotated[
        float,
        typer.Option(
            help="Divide updates by this power of the mean square.", min=0, max=1, rich_help_panel=METRIC_PANEL
        ),
    ] = 0.0,
    metric_count: Annotated[
        int, typer.Option(help="Public examples in a measurement.", min=1, rich_help_panel=METRIC_PANEL)
    ] = 256,
    metric_every: Annotated[
        int, typer.Option(help="Rounds between measurements.", min=1, rich_help_panel=METRIC_PANEL)
    ] = 100,
    part: Annotated[
        PartChoice,
        typer.Option(
            help="With slots: learn privately the tokens of a slot, or what the text adds to its skeleton.",
            rich_help_panel=LEARNING_PANEL,
        ),
    ] = PartChoice.slot,
    micro_batch: Annotated[
        int,
        typer.Option(
            help="Examples that the model processes at once; lower it to save memory.",
            min=1,
            rich_help_panel=SPEED_PANEL,
        ),
    ] = 32,
    bf16: Annotated[
        bool, flag("--bf16", "Compute in bfloat16; sums and noise stay float64.", panel=SPEED_PANEL)
    ] = False,
    compile: Annotated[
        bool, flag("--compile", "Compile the model: slow start, faster rounds.", panel=SPEED_PANEL)
    ] = False,
    gradient_checkpointing: Annotated[
        bool, flag("--gradient-checkpointing", "Use less memory and more time.", panel=SPEED_PANEL)
    ] = False,
    device: DeviceOption = None,
    shard: Annotated[
        bool, flag("--shard", "With torchrun: split the model over the processes (FSDP2).", panel=SPEED_PANEL)
    ] = False,
    save_every: Annotated[
        int, typer.Option(help="Rounds between checkpoints to resume from.", min=1, rich_help_panel=SAFETY_PANEL)
    ] = 100,
    resume: Annotated[
        bool, flag("--resume/--no-resume", "Resume an unfinished run in the folder, or refuse it.", panel=SAFETY_PANEL)
    ] = True,
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            help="Rounds between losses on the examples that the plan holds out [default: about 20 in all].",
            min=1,
            rich_help_panel=SAFETY_PANEL,
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="With a plan of several releases: their ledger, in which the training is entered.",
            rich_help_panel=SAFETY_PANEL,
        ),
    ] = None,
    unchecked_data: Annotated[
        bool,
        flag("--unchecked-data", "Allow a plan that names no data. The result certifies nothing.", panel=SAFETY_PANEL),
    ] = False,
    insecure_seed: Annotated[
        int | None,
        typer.Option(
            help="Repeatable draws and noise, for tests. The result certifies nothing.", rich_help_panel=SAFETY_PANEL
        ),
    ] = None,
) -> None:
    """Fine-tune a language model under a plan.

    Draws examples, clips gradients and adds noise as the plan says, for exactly its rounds, and refuses any other data
    than the plan's. What is public (examples without a secret, skeletons) is learnt first, by ordinary training in a
    process of its own that never opens the data. The folder then has two parts: release/ may be passed on (model, plan,
    certificate); owner/ must stay private (checkpoints, losses and batch sizes, which would reveal the secret draw).
    Ctrl-C or SIGTERM stops after the current round. However training was stopped, also by kill or power failure, the
    same command resumes it.

    Example: `hush train my-plan --model gpt2 --data mail.jsonl --key my.key --output run`

    A larger model, adapters only, on one GPU: add `--lora --bf16 --compile --micro-batch 8`

    On 4 GPUs: `torchrun --nproc-per-node 4 -m hush train my-plan …` as above; add `--shard` if the model does not fit
    on one GPU.
    """
    options = locals()
    from hush.cli.checks import check_outside_data
    from hush.cli.messages import Milestones, call_both
    from hush.cli.results.accounting import print_json
    from hush.cli.results.cautions import show_cautions
    from hush.cli.results.train import TrainingBar, fitted_record, show_fitted, show_start, stopped_at_once_message
    from hush.console import Heartbeat
    from hush.data import read_corpus
    from hush.keys import DataKey
    from hush.plan import Plan
    from hush.slots import spans_in
    from hush.train.settings import PublicFirst, Recipe, Runtime

    if not lora and lora_target:
        raise InvalidInput("--lora-target needs --lora; add --lora, or drop --lora-target")
    adapters = {"rank": lora_rank, "alpha": lora_alpha, "dropout": lora_dropout, "down": lora_down.value}
    adapters["targets"] = lora_target or None
    stream = {"weight": public_weight, "batch": public_batch}
    public = {name: value for name, value in stream.items() if value is not None}
    scales = {name.removeprefix("metric_"): value for name, value in options.items() if name.startswith("metric_")}
    if metric is MetricChoice.none and metric_corpus is not None:
        raise InvalidInput("--metric-corpus needs --metric public; add it, or drop --metric-corpus")
    first = {name.removeprefix("public_first_"): value for name, value in options.items() if "public_first_" in name}
    recipe = settings_from(
        Recipe,
        options,
        lora=adapters if lora else None,
        public=public or None,
        metric=scales if metric is MetricChoice.public else None,
        public_first=_public_first(public_first, PublicFirst(**first)),
    )
    runtime = settings_from(Runtime, options)
    # From here on, since the folder may hold a run that this command continues.
    with message_when_stopped(lambda: stopped_at_once_message(output)), _processes(device) as first:
        if not plan.is_dir():
            raise InvalidInput(f"{plan} is not a folder; pass one that hush plan wrote")
        _check_run_folder(output)
        check_outside_data(output, data)
        check_model(model, "--model")
        with working("Reading the plan", silent=not first):
            loaded = Plan.load(plan)
        corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
        data_key = None if key is None else DataKey.load(key)
        spans = None if scan is None else spans_in(scan)

        enter = _entering(ledger, plan, loaded, corpus, data_key, output, first=first)

        console = terminal(silent=not first)
        show_start(loaded, corpus, recipe, output, console)
        quiet_libraries(silent=not first)
        with missing_library_explained("training"):
            from hush.train.fit import Stopped, fit

        with TrainingBar(console, loaded.rounds) as bar, Interrupt(bar.stopping) as stop:
            result = fit(
                loaded,
                recipe,
                corpus,
                key=data_key,
                output=output,
                spans=spans,
                runtime=runtime,
                resume=resume,
                unchecked_data=unchecked_data,
                insecure_seed=insecure_seed,
                progress=call_both(call_both(bar, Milestones(console)), enter.rounds),
                public_progress=bar.public,
                reading=call_both(bar.reading, partial(Heartbeat(console), "Reading the data")),
                stop=stop,
                notice=lambda caution: show_cautions([caution], console),
            )
    if isinstance(result, Stopped):
        message = stopped_after_message(result.round, result.rounds)
        raise stop.exception(message) if first else typer.Exit(stop.exit_code)
    if first:
        enter.finished(output / "release")
        record = fitted_record(result)
        print_json(record) if json else show_fitted(record, Console(), result)
    if shard:
        from hush.train.launch import leave

        leave(0)


@final
class _Entering:
    """Tells the ledger of a chain how far a training got; does nothing without one."""

    def __init__(self, ledger: "Ledger | None", digest: str) -> None:
        self._ledger, self._digest, self._has_rounds = ledger, digest, False

    def rounds(self, *_: object) -> None:
        """After each round: from the first on, the plan cannot be trained elsewhere."""
        if self._ledger is not None and not self._has_rounds:
            self._ledger.advance(self._digest, rounds=True)
            self._has_rounds = True

    def finished(self, release: Path) -> None:
        """Note the end, and lay the earlier plans beside the model."""
        entry = None if self._ledger is None else self._ledger.entry_of(self._digest)
        if self._ledger is not None and entry is not None:
            self._ledger.lay_beside(entry, release)
            self._ledger.advance(self._digest, state="finished", rounds=True)


def _entering(
    folder: Path | None,
    place: Path,
    plan: "Plan",
    corpus: "Corpus",
    key: "DataKey | None",
    output: Path,
    *,
    first: bool,
) -> _Entering:
    """Enter the training of a plan of a chain into its ledger before the first round."""
    from hush.ledger import Ledger
    from hush.ledger.ledger import fingerprints_of, plan_digest

    if folder is None:
        if plan.chain is not None:
            raise InvalidInput(
                "the plan is one of several releases under one promise, and every training of them is entered in their "
                "ledger before its first round; pass its folder as ",
                Setting("ledger"),
                setting="ledger",
            )
        return _Entering(None, "")
    if key is None:
        raise InvalidInput("a ledger holds fingerprints under the data key; pass it", setting="key")
    ledger = Ledger.load(folder, key=key.id)
    if not first:
        return _Entering(None, "")
    with working("Entering the training into the ledger"):
        ledger = ledger.begin(place, output, fingerprints_of(corpus.texts(), key))
    return _Entering(ledger, plan_digest(place))


def _public_first(asked: bool | None, settings: "PublicFirst") -> "PublicFirst | bool | None":
    """The setting that these options state; its default if none of them is given."""
    stated = settings != type(settings)()
    if asked is False and stated:
        raise InvalidInput("--no-first leaves the public part out; drop it, or drop the part's other options")
    return settings if stated else asked


def _check_run_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but a run, such as the plan: the parts of a run are copied as a whole."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"--output={folder} is a file; pass a folder for the run")
    if not folder.is_dir() or (folder / "owner" / "run.json").is_file():  # the owner may add files to a run
        return
    foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in RUN_PARTS)
    if foreign:
        raise InvalidInput(f"--output={folder} holds something other than a run ({foreign[0]}); pass a new folder")


@contextmanager
def _processes(device: str | None) -> Iterator[bool]:
    """Connect the processes that torchrun started. Yields whether this one prints for all of them."""
    if not has_other_processes():
        yield True
        return
    with missing_library_explained("training"):
        from hush.train.launch import connected
    with connected(device) as first:
        yield first
