"""The command that answers why: the reasons of a scan, for one example or one secret."""

from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli.messages import working
from hush.cli.options import JsonOption, ShowTextOption, TopOption, flag
from hush.console import counted
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from hush.scan.result import Scan

__all__ = ["explain"]

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
    from hush.cli.results import print_json
    from hush.cli.scan_results import explain_record, show_explanation
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
    from hush.pipeline.folder import RunPaths
    from hush.pipeline.record import Record

    paths = RunPaths(folder)
    if not paths.stages.is_file():
        return folder
    if "scan" not in Record.read(paths.stages).stages:
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
