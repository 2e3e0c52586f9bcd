"""The command ``hush prior``: how well hidden spans can be guessed without the model, against the stated priors."""

import json as json_format
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hush.cli.messages import working
from hush.cli.options import DATA_PANEL, ColumnOption, DeviceOption, JsonOption, UnitOption
from hush.console import counted
from hush.errors import InvalidInput

__all__ = ["prior"]


def prior(
    scan: Annotated[Path, typer.Argument(help="Folder of a scan, with its owner/ folder.", metavar="SCAN")],
    data: Annotated[str, typer.Argument(help="The data that was scanned.", metavar="DATA")],
    model: Annotated[
        str | None,
        typer.Option(help="Base model that guesses, too: a folder, or a name on the hub. Not trained on these data."),
    ] = None,
    candidates: Annotated[
        Path | None,
        typer.Option(help="Text file: candidates that an adversary has, one a line (a staff list, a dictionary)."),
    ] = None,
    outside: Annotated[
        str | None,
        typer.Option(help="Texts that an adversary has read elsewhere, such as public documents of the same field."),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            help="The rules file of the scan, for the formats that promises state.", rich_help_panel=DATA_PANEL
        ),
    ] = None,
    column: ColumnOption = None,
    unit: UnitOption = None,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Measure how well the secrets in slots can be guessed without the model.

    Guesses the content of hidden spans from the graph and the text around them alone, all slots of a secret jointly.
    The success of the best guesser is a lower limit on the prior that a rule may state; a rule whose prior is below it
    is refused (exit code 1). A low figure proves nothing: somebody else may guess better.

    The figures are for the owner. They are also written to owner/prior.json in the folder of the scan.

    Example: `hush prior found mail.jsonl --model bert-base-uncased`
    """
    from hush.audit.prior import measure_priors, stated_priors_of_scan
    from hush.cli.checks import check_model, missing_library_explained, quiet_libraries
    from hush.cli.results.accounting import print_json
    from hush.cli.results.prior import show_priors
    from hush.data import read_corpus
    from hush.scan.result import DATA_FILE, PRIOR_FILE, Scan
    from hush.scan.rules import load_rules
    from hush.storage import whole_file

    if not scan.is_dir():
        raise InvalidInput(f"{scan} is not a folder; pass one that hush scan wrote")
    if model is not None:
        check_model(model, "--model")
    with working("Reading the scan"):
        loaded = Scan.load(scan)
        if loaded.owner is None or loaded.secrets.texts is None:
            raise InvalidInput(f"{scan} has no owner/ folder with the texts of the secrets; ask the owner of the scan")
        if not len(loaded.slots):
            raise InvalidInput(
                f"no rule of {scan} hides spans, so whole examples are secret and there are no slots to guess; derive "
                "the prior from how the secrets were made"
            )
        saved = scan / "owner" / DATA_FILE  # exists where the examples are not the rows of the data
        text_unit = None if unit is None else unit.value
        corpus = read_corpus(saved) if saved.is_file() else read_corpus(data, column=column, unit=text_unit)
        if len(corpus) != loaded.incidence.num_examples:
            raise InvalidInput(
                f"{data} has {counted(len(corpus), 'row')}, but the scan has "
                f"{counted(loaded.incidence.num_examples, 'example')}; pass the data that was scanned"
            )
        stated = stated_priors_of_scan(loaded, None if rules is None else load_rules(rules))
        listed = () if candidates is None else tuple(filter(None, _lines(candidates)))
        texts = () if outside is None else read_corpus(outside).texts()
    quiet_libraries(silent=False)
    with working("Guessing") as progress, missing_library_explained("a language model"):
        measured = measure_priors(
            loaded.spans,
            loaded.incidence,
            corpus.texts(),
            loaded.secrets,
            stated,
            candidates=listed,
            outside=texts,
            model=model,
            device=device,
            progress=progress,
        )
    record = measured.record()
    with whole_file(scan / "owner" / PRIOR_FILE, owner_only=True) as file:
        file.write((json_format.dumps(record, indent=2) + "\n").encode())
    print_json(record) if json else show_priors(record, Console())
    if measured.is_refused:
        raise typer.Exit(1)


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except UnicodeDecodeError:
        raise InvalidInput(f"--candidates={path} is not UTF-8; write one candidate a line, as UTF-8") from None
