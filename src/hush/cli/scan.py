"""The command that finds secrets: a corpus and rules in, a folder and a summary out."""

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli.messages import working
from hush.cli.options import (
    DATA_IN,
    SPEED,
    ColumnOption,
    ForceOption,
    JsonOption,
    ShowTextOption,
    UnitOption,
    flag,
)
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.scan.engines import Engine

__all__ = ["scan"]


class EngineChoice(StrEnum):
    """Where the work is done."""

    local = "local"
    ray = "ray"


def scan(
    data: Annotated[
        str,
        typer.Argument(
            help="A file or folder (JSON lines, Parquet, CSV, text; also compressed), the name of a data set, or, with "
            "rules for code, the folder of a repository.",
            metavar="DATA",
        ),
    ],
    rules: Annotated[Path, typer.Option(help="Which secrets to look for, and what each is promised: a YAML file.")],
    output: Annotated[Path, typer.Option(help="Folder for the result: public/ for the plan, owner/ for you alone.")],
    column: ColumnOption = None,
    unit: UnitOption = None,
    id_column: Annotated[
        str | None,
        typer.Option(help="Column with ids of your own for the examples [file and row].", rich_help_panel=DATA_IN),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Your key for fingerprints of the data, made on first use. Keep it beside the data.",
            rich_help_panel=DATA_IN,
        ),
    ] = None,
    skip_bad: Annotated[
        bool, flag("--skip-bad", "Count and leave out rows that cannot be read, instead of stopping.", panel=DATA_IN)
    ] = False,
    html: Annotated[bool, flag("--html/--no-html", "Write owner/review.html, a page to look through.")] = True,
    force: ForceOption = False,
    workers: Annotated[
        int | None,
        typer.Option(help="How many processes at a time [one for each core].", min=1, rich_help_panel=SPEED),
    ] = None,
    engine: Annotated[
        EngineChoice, typer.Option(help="Run here, or on a Ray cluster.", rich_help_panel=SPEED)
    ] = EngineChoice.local,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="With --engine ray: HOST:PORT of a cluster, auto for one that runs here [a new one, here].",
            rich_help_panel=SPEED,
        ),
    ] = None,
    show_text: ShowTextOption = False,
    json: JsonOption = False,
) -> None:
    """Which secrets are there, and which examples contain them?

    Looks for the secrets that the rules describe: rare words, lists of strings, patterns, credentials, personal data,
    values of a column, projects in code, and copies of all these. Every pair of example and secret gets a reason; ask
    for them with `hush explain`. The result goes on into `hush plan`, with the command that is printed at the end.

    A rules file: `{defaults: {prior: 1e-10, ceiling: 1e-3}, rules: [{name: rare, find: words, documents: [50, 100]}]}`

    Example: `hush scan mail.jsonl --rules rules.yaml --output found --key my.key`
    """
    from hush.cli.inputs import check_apart, check_folder_free, is_inside
    from hush.cli.results import print_json
    from hush.cli.scan_results import scan_record, show_scan
    from hush.pipeline.stage_data import unread_files
    from hush.scan.files import check_folder
    from hush.scan.review import write_review
    from hush.scan.rules import load_rules
    from hush.scan.run import scan as scanned

    check_folder(output)
    check_folder_free(output, "a scan", force=force)
    for given in (data, rules, key):
        if given is not None and is_inside(Path(given), output):
            raise InvalidInput(f"{given} lies in {output}, which the scan would replace; name another --output")
    check_apart(output, data)
    loaded = load_rules(rules)
    begin = time.perf_counter()
    notices: list[str] = []
    with working("Scanning") as progress:
        found = scanned(
            data,
            loaded,
            column=column,
            unit=None if unit is None else unit.value,
            id_column=id_column,
            key=key,
            skip_bad=skip_bad,
            engine=_engine(engine, workers, ray_address),
            progress=progress,
            notice=notices.append,
        )
    notices += [] if loaded.about_code else unread_files(data)

    def review(owner: Path) -> None:
        write_review(found, owner / "review.html", source=data, notices=notices, show_text=show_text)

    with working("Writing the result"):
        found.save(output, also=review if html else None)
    options = {"--column": column, "--unit": unit, "--key": key}
    record = scan_record(found, output, data, options, show_text=show_text) | {
        "notices": notices,
        "seconds": time.perf_counter() - begin,
    }
    print_json(record) if json else show_scan(record, Console())


def _engine(choice: EngineChoice, workers: int | None, address: str | None) -> "Engine":
    if choice is EngineChoice.ray:
        from hush.scan.engines.ray import RayEngine

        return RayEngine(address=address, workers=workers)
    if address is not None:
        raise InvalidInput("--ray-address names a cluster, but the engine is local; pass --engine ray, or drop it")
    from hush.scan.engines.local import LocalEngine

    return LocalEngine(workers=workers)
