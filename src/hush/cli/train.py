"""The command that trains: parse, fit, say where the results are."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hush.cli.checks import check_model, needed_for, quiet_libraries
from hush.cli.interrupt import Interrupt, stop_message, stopped_after
from hush.cli.messages import terminal, working
from hush.cli.options import (
    DATA_IN,
    SPEED,
    ColumnOption,
    DeviceOption,
    JsonOption,
    PlanArgument,
    UnitOption,
    flag,
    settings_from,
)
from hush.errors import InvalidInput

__all__ = ["train"]


class TaskChoice(StrEnum):
    """What the model predicts."""

    causal = "causal"
    masked = "masked"


class OptimizerChoice(StrEnum):
    """How the noisy gradient is used."""

    adamw = "adamw"
    sgd = "sgd"


class ScheduleChoice(StrEnum):
    """How the learning rate goes over the rounds."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


LEARNING, LORA, PUBLIC = "Learning", "LoRA: train small adapters", "Public stream: examples without secrets"
SAFETY = "Resuming and checks"
PARTS = ("owner", "release")  # of a run's folder


def train(
    plan: PlanArgument,
    model: Annotated[str, typer.Option(help="Hugging Face language model: a name on the hub, or a folder.")],
    data: Annotated[
        str,
        typer.Option(
            help="The plan's data: Parquet, JSON lines, CSV, text, a folder, or a name.", rich_help_panel=DATA_IN
        ),
    ],
    key: Annotated[
        Path | None, typer.Option(help="Your data key, the one that hush plan was given.", rich_help_panel=DATA_IN)
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder of the run; an unfinished run in it goes on.")] = Path("run"),
    column: ColumnOption = None,
    unit: UnitOption = None,
    json: JsonOption = False,
    task: Annotated[
        TaskChoice | None,
        typer.Option(
            help="What the model predicts: the next token, or masked ones [what it was made for].",
            rich_help_panel=LEARNING,
        ),
    ] = None,
    optimizer: Annotated[
        OptimizerChoice, typer.Option(help="What makes a step of a noisy gradient.", rich_help_panel=LEARNING)
    ] = OptimizerChoice.adamw,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="At its peak, above 0 [5e-4; with --lora 1e-3; with sgd 0.1].",
            max=1e3,
            rich_help_panel=LEARNING,
        ),
    ] = None,
    schedule: Annotated[
        ScheduleChoice, typer.Option(help="How the learning rate falls over the rounds.", rich_help_panel=LEARNING)
    ] = ScheduleChoice.linear,
    warmup: Annotated[
        int, typer.Option(help="Rounds over which it rises before that.", min=0, rich_help_panel=LEARNING)
    ] = 0,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="Tokens to which each text is cut [what the model takes, at most 512].",
            min=2,
            rich_help_panel=LEARNING,
        ),
    ] = None,
    lora: Annotated[bool, flag("--lora", "Freeze the model, and train adapters.", panel=LORA)] = False,
    lora_rank: Annotated[int, typer.Option(help="Their rank: more learns more.", min=1, rich_help_panel=LORA)] = 8,
    lora_alpha: Annotated[float, typer.Option(help="Their scale, times the rank.", rich_help_panel=LORA)] = 16.0,
    lora_dropout: Annotated[float, typer.Option(help="Their dropout, in [0, 1).", rich_help_panel=LORA)] = 0.0,
    lora_target: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of a module that gets one. Repeat for several [PEFT's choice].",
            metavar="<str>",
            rich_help_panel=LORA,
        ),
    ] = None,
    public_weight: Annotated[
        float | None,
        typer.Option(help="Add their mean gradient to each step, times this, without noise.", rich_help_panel=PUBLIC),
    ] = None,
    public_batch: Annotated[
        int | None, typer.Option(help="How many of them in each round.", min=1, rich_help_panel=PUBLIC)
    ] = None,
    micro_batch: Annotated[
        int,
        typer.Option(
            help="Examples that the model sees at once: lower it to save memory.", min=1, rich_help_panel=SPEED
        ),
    ] = 32,
    bf16: Annotated[bool, flag("--bf16", "Compute in bfloat16; sums and noise stay float32.", panel=SPEED)] = False,
    compile: Annotated[bool, flag("--compile", "Compile the model: a slow start, then faster.", panel=SPEED)] = False,
    gradient_checkpointing: Annotated[
        bool, flag("--gradient-checkpointing", "Less memory for more time.", panel=SPEED)
    ] = False,
    device: DeviceOption = None,
    shard: Annotated[
        bool, flag("--shard", "With torchrun: cut the model over the processes, not a copy each.", panel=SPEED)
    ] = False,
    save_every: Annotated[
        int, typer.Option(help="Rounds between states to resume from.", min=1, rich_help_panel=SAFETY)
    ] = 100,
    resume: Annotated[
        bool, flag("--resume/--no-resume", "Go on with an unfinished run in the folder, or refuse it.", panel=SAFETY)
    ] = True,
    evaluate_every: Annotated[
        int | None,
        typer.Option(
            help="Rounds between losses on what the plan holds out [about 20 times in all].",
            min=1,
            rich_help_panel=SAFETY,
        ),
    ] = None,
    unchecked_data: Annotated[
        bool,
        flag("--unchecked-data", "Train under a plan that names no data. Marked: certifies nothing.", panel=SAFETY),
    ] = False,
    insecure_seed: Annotated[
        int | None,
        typer.Option(help="Repeat draws and noise, for tests. Marked: certifies nothing.", rich_help_panel=SAFETY),
    ] = None,
) -> None:
    """Fine-tune a language model under a plan.

    Draws, clips and adds noise as the plan says, for exactly its rounds, and refuses any data but the plan's. The
    folder then has two parts: release/ may leave your hands (model, plan, certificate); owner/ may not (states, losses
    and batch sizes: they would give the secret draw away). Ctrl-C, or SIGTERM, stops after the round under way. However
    training was stopped, by kill or power cut too, the same command goes on.

    Example: `hush train my-plan --model gpt2 --data mail.jsonl --key my.key --output run`

    A larger model, adapters only, on one GPU: add `--lora --bf16 --compile --micro-batch 8`

    On 4 GPUs: `torchrun --nproc-per-node 4 -m hush train my-plan …` as above; if it is too large for one, add `--shard`
    """
    options = locals()
    from hush.cli.checks import check_apart
    from hush.cli.messages import Milestones, both
    from hush.cli.results.accounting import print_json
    from hush.cli.results.train import TrainingBar, fitted_record, show_fitted, show_start, stopped_at_once
    from hush.console import Heartbeat
    from hush.data import read_corpus
    from hush.keys import DataKey
    from hush.plan import Plan
    from hush.train.settings import Recipe, Runtime

    if not lora and lora_target:
        raise InvalidInput("--lora-target is about LoRA; add --lora, or drop it")
    adapters = {"rank": lora_rank, "alpha": lora_alpha, "dropout": lora_dropout, "targets": lora_target or None}
    stream = {"weight": public_weight, "batch": public_batch}
    public = {name: value for name, value in stream.items() if value is not None}
    recipe = settings_from(Recipe, options, lora=adapters if lora else None, public=public or None)
    runtime = settings_from(Runtime, options)
    with stop_message(lambda: stopped_at_once(output)), _processes(device) as first:  # a run may be there to resume
        if not plan.is_dir():
            raise InvalidInput(f"{plan} is not a folder; pass one that hush plan wrote")
        _check_folder(output)
        check_apart(output, data)
        check_model(model, "--model")
        with working("Reading the plan", silent=not first):
            loaded = Plan.load(plan)
        corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
        found_key = None if key is None else DataKey.load(key)

        shown = terminal(silent=not first)
        show_start(loaded, corpus, model, output, shown, lora=lora)
        quiet_libraries(silent=not first)
        with needed_for("training"):
            from hush.train.fit import Stopped, fit

        with TrainingBar(shown, loaded.rounds) as bar, Interrupt(bar.stopping) as stop:
            ended = fit(
                loaded,
                recipe,
                corpus,
                key=found_key,
                output=output,
                runtime=runtime,
                resume=resume,
                unchecked_data=unchecked_data,
                insecure_seed=insecure_seed,
                progress=both(bar, Milestones(shown)),
                reading=both(bar.reading, partial(Heartbeat(shown), "Reading the data")),
                stop=stop,
            )
    if isinstance(ended, Stopped):
        raise stop.stopped(stopped_after(ended.round, ended.rounds)) if first else typer.Exit(stop.code)
    if first:
        record = fitted_record(ended)
        print_json(record) if json else show_fitted(record, Console(), ended)
    if shard:
        from hush.train.launch import leave

        leave(0)


def _check_folder(folder: Path) -> None:
    """Refuse a place that holds anything but a run, such as the plan: the two parts of a run are copied by whole."""
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"--output={folder} is a file; name a folder for the run")
    if not folder.is_dir() or (folder / "owner" / "run.json").is_file():  # to a run, its owner may add what they like
        return
    foreign = sorted(entry.name for entry in folder.iterdir() if entry.name not in PARTS)
    if foreign:
        raise InvalidInput(f"--output={folder} holds something other than a run ({foreign[0]}); name a new folder")


@contextmanager
def _processes(device: str | None) -> Iterator[bool]:
    """Whether this process speaks for all that torchrun started; it does if it is alone."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        yield True
        return
    with needed_for("training"):
        from hush.train.launch import connected
    with connected(device) as first:
        yield first
