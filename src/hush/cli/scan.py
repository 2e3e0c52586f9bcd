"""The commands ``hush scan`` (find secrets by rules), ``hush explain`` (why they were found) and ``hush redact``."""

import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from hush.cli.messages import working
from hush.cli.options import (
    CHAT_PANEL,
    DATA_PANEL,
    SPEED_PANEL,
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
    from hush.data.chat_template import ChatTemplate
    from hush.keys import DataKey
    from hush.ledger import Ledger
    from hush.scan.engines import Engine
    from hush.scan.long_texts import ModelTokens
    from hush.scan.reasons import SetAside
    from hush.scan.result import Scan
    from hush.scan.rules import Rules

__all__ = ["explain", "redact", "scan"]


MAX_LISTED_IDS = 5  # ids or numbers that a message lists


class EngineChoice(StrEnum):
    """Where a scan runs."""

    local = "local"
    ray = "ray"


def scan(
    data: Annotated[
        str,
        typer.Argument(
            help="A file or folder (JSON lines, Parquet, CSV, text; also compressed), the name of a data set, or the "
            "folder of a repository if the rules are about code.",
            metavar="DATA",
        ),
    ],
    rules: Annotated[Path, typer.Option(help="YAML file: which secrets to look for, and their promises.")],
    output: Annotated[Path, typer.Option(help="Folder for the result: public/ for the plan, owner/ stays private.")],
    column: ColumnOption = None,
    unit: UnitOption = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            help="Column that holds text, of several that are joined in this order. Can be repeated.",
            metavar="<str>",
            rich_help_panel=CHAT_PANEL,
        ),
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            help="What renders conversations: a file that ends in .jinja, the name or folder of a model, or chatml "
            "[default: that of --model].",
            rich_help_panel=CHAT_PANEL,
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            help="Column with your own ids of the examples [default: file and row].", rich_help_panel=DATA_PANEL
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Your key for fingerprints of the data, created on first use. Keep it with the data.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(
            help="Ledger of several releases (hush ledger), by which secrets keep their ids. It also keeps the key, "
            "unless --key names another.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    skip_bad: Annotated[
        bool, flag("--skip-bad", "Skip and count rows that cannot be read, instead of stopping.", panel=DATA_PANEL)
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model to be trained, a name or folder: texts are cut to its length if the rules have chunks with "
            "tokens: auto, and without chunks the scan says what it would not read.",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            help="How many tokens that model will read [default: as hush train].", min=2, rich_help_panel=DATA_PANEL
        ),
    ] = None,
    html: Annotated[bool, flag("--html/--no-html", "Write owner/review.html, a page to review the result.")] = True,
    force: ForceOption = False,
    workers: Annotated[
        int | None,
        typer.Option(help="Number of processes [default: one per core].", min=1, rich_help_panel=SPEED_PANEL),
    ] = None,
    engine: Annotated[
        EngineChoice, typer.Option(help="Run on this machine or on a Ray cluster.", rich_help_panel=SPEED_PANEL)
    ] = EngineChoice.local,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="With --engine ray: HOST:PORT of a cluster, or auto for one on this machine [default: start one].",
            rich_help_panel=SPEED_PANEL,
        ),
    ] = None,
    show_text: ShowTextOption = False,
    json: JsonOption = False,
) -> None:
    """Find secrets in data, and which examples contain them.

    Looks for the secrets that the rules describe: rare words, lists of strings, patterns, credentials, personal data,
    values of a column, projects in code, and copies of all these. Every pair of example and secret has a reason, which
    `hush explain` shows. The result is the input of `hush plan`; the scan ends by printing that command.

    A rules file: `{defaults: {prior: 1e-4, ceiling: 0.1}, rules: [{name: rare, find: words, documents: [50, 100]}]}`

    Example: `hush scan mail.jsonl --rules rules.yaml --output found --key my.key`
    """
    from hush.cli.checks import check_folder_free, check_outside_data, is_inside
    from hush.cli.results.accounting import print_json
    from hush.cli.results.scan import scan_record, show_scan
    from hush.data import read_corpus
    from hush.run.job import unread_files
    from hush.scan.long_texts.unread import unread_of_scan
    from hush.scan.result import DATA_FILE, check_folder
    from hush.scan.review import scan_cautions, scan_notes, write_review
    from hush.scan.rules import load_rules
    from hush.scan.scanner import scan as scan_data

    check_folder(output)
    check_folder_free(output, "a scan", force=force)
    for path in (data, rules, key):
        if path is not None and is_inside(Path(path), output):
            raise InvalidInput(f"{path} is inside {output}, which the scan would replace; pass another --output")
    check_outside_data(output, data)
    loaded, reads = load_rules(rules), _model_tokens(model, max_length)
    opened, data_key = (None, key) if ledger is None else _opened(ledger, key, data, loaded)
    begin = time.perf_counter()
    notices: list[str] = []
    with working("Scanning") as progress:
        result = scan_data(
            data,
            loaded,
            column=column,
            unit=None if unit is None else unit.value,
            columns=columns or (),
            chat_template=_chat_template(chat_template, model),
            id_column=id_column,
            key=data_key,
            skip_bad=skip_bad,
            model_tokens=reads,
            engine=_engine(engine, workers, ray_address),
            known=None if opened is None else opened.identities,
            progress=progress,
            notice=notices.append,
        )
    notices += [] if loaded.about_code(data) else unread_files(data)
    notices += scan_notes(result)
    told = [*scan_cautions(result), *notices]

    def review(owner: Path) -> None:
        write_review(result, owner / "review.html", source=data, notices=told, show_text=show_text)

    with working("Writing the result"):
        result.save(output, also=review if html else None)
        if opened is not None and (identities := result.identities) is not None:
            opened.register(identities)
    if reads is not None:
        saved = output / "owner" / DATA_FILE
        is_saved, chosen = saved.is_file(), None if unit is None else unit.value
        corpus = read_corpus(saved) if is_saved else read_corpus(data, column=column, unit=chosen)
        with working("Reading the texts as the model will"):
            unread = unread_of_scan(result, corpus.texts(), reads).sentence(reads.max_length)
        notices += [unread] if unread else []
    options = {"--column": column, "--unit": unit, "--key": key}
    record = scan_record(result, output, data, options, show_text=show_text) | {
        "notices": notices,
        "seconds": time.perf_counter() - begin,
    }
    print_json(record) if json else show_scan(record, Console())


def _opened(folder: Path, key: Path | None, data: str, rules: "Rules") -> "tuple[Ledger, DataKey]":
    """The ledger of a chain, and the data key that is in it or was named."""
    from hush.data.text_readers import kind_of
    from hush.keys import check_key_apart
    from hush.ledger import Ledger

    place = Ledger.key_path(folder) if key is None else key
    check_key_apart(place, data, read_as_data=rules.about_code(data) or kind_of(place) is not None)
    return Ledger.with_key(folder, place)


def _chat_template(name: str | None, model: str | None) -> "ChatTemplate | Callable[[], ChatTemplate]":
    """The named template, or a function that loads the model's where rows are conversations."""
    from hush.data.chat_template import ChatTemplate

    load = partial(ChatTemplate.load, name, model=model)
    return load if name is None else load()


def _model_tokens(model: str | None, max_length: int | None) -> "ModelTokens | None":
    """What the named model reads at once."""
    if model is None:
        if max_length is not None:
            raise InvalidInput("it is about a model; name it", setting="max_length", value=max_length)
        return None
    from hush.scan.long_texts import ModelTokens
    from hush.train.pretrained import model_metadata

    metadata = model_metadata(model, task="causal", max_length=max_length)  # the task does not change the length
    return ModelTokens(metadata.tokenizer, metadata.max_length)


def _engine(choice: EngineChoice, workers: int | None, address: str | None) -> "Engine":
    if choice is EngineChoice.ray:
        from hush.scan.engine_ray import RayEngine

        return RayEngine(address=address, workers=workers)
    if address is not None:
        raise InvalidInput("--ray-address needs --engine ray; pass --engine ray, or drop --ray-address")
    from hush.scan.engines import LocalEngine

    return LocalEngine(workers=workers)


def explain(
    scan: Annotated[Path, typer.Argument(help="Folder of a scan, from hush scan, or of a run.", metavar="SCAN")],
    target: Annotated[
        str,
        typer.Argument(
            help="An example, by number (from 0) or id; or a secret, by id, by number with --secret, or by its text "
            "with --show-text.",
            metavar="EXAMPLE|SECRET",
        ),
    ],
    example: Annotated[bool, flag("--example", "The target is an example; numbers count from 0.")] = False,
    secret: Annotated[bool, flag("--secret", "The target is a secret; numbers count from 0.")] = False,
    show_text: ShowTextOption = False,
    top: TopOption = 10,
    json: JsonOption = False,
) -> None:
    """Explain why an example contains a secret.

    For an example: which secrets it contains, and the reason for each. For a secret: its promise, which examples
    contain it, and why. What a rule found and set aside is listed, too, with the reason. The text of secrets is shown
    only with --show-text.

    Example: `hush explain found 12`, or `hush explain found customers-000003`
    """
    from hush.cli.results.accounting import print_json
    from hush.cli.results.scan import explain_record, set_aside_record, show_explanation, show_set_aside
    from hush.scan.reasons import SetAside
    from hush.scan.result import Scan

    if example and secret:
        raise InvalidInput("--example and --secret exclude each other; pass one of them")
    if not scan.is_dir():
        raise InvalidInput(f"{scan} is not a folder; pass one that hush scan wrote")
    folder = _scan_folder(scan)
    with working("Reading the scan"):
        loaded = Scan.load(folder)
    if loaded.owner is None:
        raise InvalidInput(f"{folder} has no owner/ folder, which holds the reasons; ask the owner of the scan")
    matches = _matches(loaded, target, example=example, secret=secret)
    may_be_text = show_text and not example and not (secret and target.isdecimal())
    found = _with_text(loaded, target) if may_be_text and not matches else None
    if isinstance(found, SetAside):
        record = set_aside_record(found)
        print_json(record) if json else show_set_aside(record, Console(), top=top)
        return
    number, is_example = (found, False) if found is not None else _only_match(loaded, target, matches)
    chosen = {"example": number if is_example else None, "secret": None if is_example else number}
    record = explain_record(loaded, **chosen, show_text=show_text)
    print_json(record) if json else show_explanation(record, Console(), top=top)


def redact(
    scan: Annotated[Path, typer.Argument(help="Folder of a scan, from hush scan, or of a run.", metavar="SCAN")],
    data: Annotated[
        str,
        typer.Argument(
            help="The data that was scanned, or owner/data.parquet of the scan if it wrote one.", metavar="DATA"
        ),
    ],
    output: Annotated[Path, typer.Option(help="File for the texts: .jsonl or .parquet. Only you can read it.")],
    column: ColumnOption = None,
    unit: UnitOption = None,
    copy: Annotated[
        list[str] | None,
        typer.Option(
            help="Column to copy beside the text; repeat it for several. It is copied as it is, so it must hold no "
            "secret [default: none].",
            rich_help_panel=DATA_PANEL,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Your key of the scan, to check that these are the data that was scanned.", rich_help_panel=DATA_PANEL
        ),
    ] = None,
    force: ForceOption = False,
    json: JsonOption = False,
) -> None:
    """Write the texts of a scan without their secrets.

    For rules with `hides: span`. Every example without a secret is written as it is; in an example with slots, each
    slot is replaced by the name of its rule, such as `[customers]`. Examples that are secret as a whole are left out.
    Every text is searched again, by a second route, for all forms of the secrets, before the file appears.

    The result is not protected by a promise, and unprotected does not mean published: it says in full everything that
    no rule found. Keep it with the owner of the data.

    Example: `hush redact found mail.jsonl --output redacted.jsonl`
    """
    from hush.cli.checks import check_output, check_outside_data
    from hush.cli.results.accounting import print_json
    from hush.cli.results.scan import redact_record, show_redacted
    from hush.data import read_corpus
    from hush.keys import DataKey
    from hush.scan.redact import redact as write_redacted
    from hush.scan.result import Scan

    if not scan.is_dir():
        raise InvalidInput(f"{scan} is not a folder; pass one that hush scan wrote")
    check_output(output, Path(data), key, force=force, forms=("jsonl", "parquet"))
    check_outside_data(output, data)
    with working("Reading the scan"):
        loaded = Scan.load(_scan_folder(scan))
    corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
    with working("Redacting") as progress:
        redacted = write_redacted(
            loaded,
            corpus,
            output,
            copy=copy or (),
            key=None if key is None else DataKey.load(key),
            progress=progress,
        )
    record = redact_record(redacted, output)
    print_json(record) if json else show_redacted(record, Console())


def _scan_folder(folder: Path) -> Path:
    """The folder of the scan: of a run's scan, if the folder is that of a run."""
    from hush.run.folder import RunPaths, RunRecord

    paths = RunPaths(folder)
    if not paths.stages.is_file():
        return folder
    if "scan" not in RunRecord.read(paths.stages).stages:
        raise InvalidInput(f"{folder} holds no finished scan yet; continue it with hush run")
    return paths.scan


def _with_text(scan: "Scan", text: str) -> "int | SetAside | None":
    """The secret with this text, by number; or what was found with this text and set aside; None if there is none."""
    if text in (scan.secrets.texts or ()):
        return (scan.secrets.texts or ()).index(text)
    return next((entry for entry in scan.set_aside() if entry.text == text), None)


def _matches(scan: "Scan", target: str, *, example: bool, secret: bool) -> dict[str, tuple[int, bool]]:
    """What has this number or id, in words: the number of an example or a secret, and whether it is an example."""
    number = int(target) if target.isdecimal() and len(target) < 19 else None
    matches: dict[str, tuple[int, bool]] = {}
    if not example:
        if target in scan.secrets.ids:
            matches["the id of a secret"] = scan.secrets.ids.index(target), False
        elif secret and number is not None and number < len(scan.secrets):
            matches["the number of a secret"] = number, False
    if not secret and scan.owner is not None:
        if number is not None and number < scan.incidence.num_examples:
            matches["the number of an example"] = number, True
        by_id = [each for each in scan.owner.numbers_of(target) if (each, True) not in matches.values()]
        if len(by_id) > 1:
            listed = ", ".join(map(str, by_id[:MAX_LISTED_IDS])) + (", …" if len(by_id) > MAX_LISTED_IDS else "")
            raise InvalidInput(f"{len(by_id)} examples have that id ({listed}); pass the number of one of them")
        if by_id and not (example and matches):  # with --example, a number is the number of an example
            matches["the id of an example"] = by_id[0], True
    return matches


def _only_match(scan: "Scan", target: str, matches: dict[str, tuple[int, bool]]) -> tuple[int, bool]:
    """The one match; messages do not repeat what was typed, since it may be the text of a secret."""
    if not matches:
        similar = _ids_containing(scan, target)
        sizes = f"{counted(scan.incidence.num_examples, 'example')} and {counted(len(scan.secrets), 'secret')}"
        raise InvalidInput(
            "no example and no secret of this scan has that number or id"
            + (f"; ids that contain it: {', '.join(similar)}" if similar else "")
            + f"; there are {sizes}, numbered from 0; all ids are in owner/examples.parquet and public/secrets.parquet"
        )
    if len(matches) > 1:
        raise InvalidInput(f"that is {' and '.join(matches)}; pass --example or --secret")
    return next(iter(matches.values()))


def _ids_containing(scan: "Scan", part: str) -> list[str]:
    """A few ids that contain what was typed, such as the path of a source file."""
    batches = () if scan.owner is None else scan.owner.examples("id")
    examples = (name for batch in batches for name in batch.column("id").to_pylist())
    matching = (name for name in chain(scan.secrets.ids, examples) if part and part in name)
    return list(islice(matching, MAX_LISTED_IDS))
