"""The command that finds secrets: a corpus and rules in, a folder and a summary out.

The command that answers why: the reasons of a scan, for one example or one secret.
"""

import time
from enum import StrEnum
from itertools import chain, islice
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
    TopOption,
    UnitOption,
    flag,
)
from hush.console import counted
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.scan.engines import Engine
    from hush.scan.result import Scan

__all__ = ["explain", "scan"]


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
    from hush.cli.checks import check_apart, check_folder_free, is_inside
    from hush.cli.results.accounting import print_json
    from hush.cli.results.scan import scan_record, show_scan
    from hush.run.job import unread_files
    from hush.scan.result import check_folder
    from hush.scan.review import write_review
    from hush.scan.rules import load_rules
    from hush.scan.scanner import scan as scanned

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
        from hush.scan.engine_ray import RayEngine

        return RayEngine(address=address, workers=workers)
    if address is not None:
        raise InvalidInput("--ray-address names a cluster, but the engine is local; pass --engine ray, or drop it")
    from hush.scan.engines import LocalEngine

    return LocalEngine(workers=workers)


TOLD = 5  # numbers or ids that a message names


def explain(
    scan: Annotated[Path, typer.Argument(help="A scan's folder, from hush scan, or that of a run.", metavar="SCAN")],
    target: Annotated[
        str,
        typer.Argument(
            help="An example, by number (from 0) or id; or a secret, by id, or by number with --secret.",
            metavar="EXAMPLE|SECRET",
        ),
    ],
    example: Annotated[bool, flag("--example", "It is an example; a number counts from 0.")] = False,
    secret: Annotated[bool, flag("--secret", "It is a secret; a number counts from 0.")] = False,
    show_text: ShowTextOption = False,
    top: TopOption = 10,
    json: JsonOption = False,
) -> None:
    """Why does an example contain a secret?

    For an example: which secrets it contains, and the reason for each. For a secret: what it is promised, which
    examples contain it, and why. Texts of secrets are shown only with --show-text.

    Example: `hush explain found 12`, or `hush explain found customers-000003`
    """
    from hush.cli.results.accounting import print_json
    from hush.cli.results.scan import explain_record, show_explanation
    from hush.scan.result import Scan

    if example and secret:
        raise InvalidInput("--example and --secret are both given; pass the one that is meant")
    if not scan.is_dir():
        raise InvalidInput(f"{scan} is not a folder; pass one that hush scan wrote")
    scan = _scan_inside(scan)
    with working("Reading the scan"):
        found = Scan.load(scan)
    if found.owner is None:
        raise InvalidInput(f"{scan} has no owner/ folder, where the reasons are; ask whoever scanned the data")
    number, is_example = _meant(found, target, example=example, secret=secret)
    chosen = {"example": number if is_example else None, "secret": None if is_example else number}
    record = explain_record(found, **chosen, show_text=show_text)
    print_json(record) if json else show_explanation(record, Console(), top=top)


def _scan_inside(folder: Path) -> Path:
    """The scan of a run, where the folder is that of one."""
    from hush.run.folder import RunPaths, RunRecord

    paths = RunPaths(folder)
    if not paths.stages.is_file():
        return folder
    if "scan" not in RunRecord.read(paths.stages).stages:
        raise InvalidInput(f"{folder} holds no finished scan yet; let hush run go on")
    return paths.scan


def _meant(scan: "Scan", target: str, *, example: bool, secret: bool) -> tuple[int, bool]:
    """The number of what is meant, and whether that is an example. What was typed is not repeated: it may be a text."""
    number = int(target) if target.isdecimal() and len(target) < 19 else None
    found: dict[str, tuple[int, bool]] = {}
    if not example:
        if target in scan.secrets.ids:
            found["a secret's id"] = scan.secrets.ids.index(target), False
        elif secret and number is not None and number < len(scan.secrets):
            found["a secret's number"] = number, False
    if not secret and scan.owner is not None:
        if number is not None and number < scan.incidence.num_examples:
            found["an example's number"] = number, True
        named = [each for each in scan.owner.numbers_of(target) if (each, True) not in found.values()]
        if len(named) > 1:
            shown = ", ".join(map(str, named[:TOLD])) + (", …" if len(named) > TOLD else "")
            raise InvalidInput(f"{len(named)} examples have that id ({shown}); pass the number of the one you mean")
        if named and not (example and found):  # a number that is said to be an example's is its number
            found["an example's id"] = named[0], True
    if not found:
        near = _ids_with(scan, target)
        sizes = f"{counted(scan.incidence.num_examples, 'example')} and {counted(len(scan.secrets), 'secret')}"
        raise InvalidInput(
            "no example and no secret of this scan has that number or id"
            + (f"; ids that hold it: {', '.join(near)}" if near else "")
            + f"; there are {sizes}, numbered from 0; all ids are in owner/examples.parquet and public/secrets.parquet"
        )
    if len(found) > 1:
        raise InvalidInput(f"that is {' and '.join(found)}; say which with --example or --secret")
    return next(iter(found.values()))


def _ids_with(scan: "Scan", part: str) -> list[str]:
    """A few ids of which what was typed is a part, such as the path of a file of code."""
    batches = () if scan.owner is None else scan.owner.examples("id")
    examples = (name for batch in batches for name in batch.column("id").to_pylist())
    return list(islice((name for name in chain(scan.secrets.ids, examples) if part and part in name), TOLD))
