"""The command that shows what hush does on a code base that is on every machine."""

import json as json_text
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hush.cli.messages import is_quiet, terminal
from hush.cli.options import ForceOption, JsonOption, flag
from hush.errors import InvalidInput

__all__ = ["demo"]


def demo(
    output: Annotated[Path, typer.Option(help="Folder for the report, the models and all behind them.")] = Path(
        "hush-demo"
    ),
    quick: Annotated[bool, flag("--quick", "Few files and rounds: shows how it goes, not what it is worth.")] = False,
    noise_table: Annotated[bool, flag("--noise-table", "Instead: the noise table and the picture of the README.")] = (
        False
    ),
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Protect a code base that is on every machine, side by side with other ways. Takes some minutes on two cores.

    Python's standard library plays a company's code, some of its packages play secret projects. The same small model
    is trained four times: without protection, by the paper's method with all data and with its program, and by hush.
    Ends with a report.

    Example: `hush demo --output hush-demo`
    """
    from hush.cli.results import print_json
    from hush.demo.run import BESIDE

    last = output / ("noise.json" if noise_table else "report.html")
    for path in [output / name for name in sorted(BESIDE)] if noise_table else [last]:
        if path.exists() and not force:  # what a demo that was stopped left behind is no result
            raise InvalidInput(f"{path} is there already; pass --force to replace it, or name a new --output")
    if noise_table:
        from hush.demo.noise_table import FULL_TABLE, QUICK_TABLE, run_noise_table

        made = run_noise_table(output, terminal() if json else Console(), size=QUICK_TABLE if quick else FULL_TABLE)
        record = last
    else:
        from hush.demo.run import run_demo
        from hush.demo.sizes import FULL, QUICK

        made = [run_demo(output, terminal() if json or is_quiet() else Console(), size=QUICK if quick else FULL)]
        record = output / "demo.json"
    if json:
        print_json(json_text.loads(record.read_text(encoding="utf-8")) | {"files": [str(path) for path in made]})
    elif is_quiet() and not noise_table:
        Console(highlight=False, soft_wrap=True).print(f"Report: {last}", markup=False)
