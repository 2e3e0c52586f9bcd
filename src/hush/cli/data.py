"""What commands that read the owner's data share: its keyed fingerprint, and whether it is what was scanned."""

from pathlib import Path

from hush.cli.options import TextUnit
from hush.console import counted
from hush.errors import InvalidInput

__all__ = ["check_scanned", "read_data_fingerprint"]


def read_data_fingerprint(
    data: str | None, key: Path | None, *, column: str | None, unit: TextUnit | None, rows: int
) -> str | None:
    """The fingerprint of the data under the key at this path, which is made on first use; None without data."""
    from hush.corpus import read_corpus
    from hush.corpus.formats import check_key_apart
    from hush.keyed import DataKey

    if data is None:
        stray = {"--key": key, "--column": column, "--unit": unit}
        for option in [name for name, value in stray.items() if value is not None]:
            raise InvalidInput(f"{option} is about data, but --data is not given; pass --data, or drop {option}")
        return None
    if key is None:
        raise InvalidInput("--data needs --key KEYFILE: only a keyed fingerprint of private data may stand in a plan")
    check_key_apart(key, data, code=False)
    corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
    if len(corpus) != rows:
        raise InvalidInput(
            f"{data} has {counted(len(corpus), 'row')} but the incidence {counted(rows, 'example')}; pass the data "
            "whose row i is example i"
        )
    return DataKey.load_or_create(key).fingerprint_rows(corpus.texts())


def check_scanned(incidence: Path, fingerprint: str | None) -> None:
    """Refuse data other than what the incidence was scanned from, where its scan lies beside it."""
    from hush.keyed import key_id_of
    from hush.scan.files import scanned_fingerprint

    scanned = None if fingerprint is None else scanned_fingerprint(incidence)
    if fingerprint is None or scanned is None or scanned == fingerprint:
        return
    if key_id_of(scanned) != key_id_of(fingerprint):
        raise InvalidInput(f"{incidence} was scanned under another key than --key; pass that one, or scan again")
    raise InvalidInput(
        f"--data is not what {incidence} was scanned from: a text, the order or the column is another, so who contains "
        "what would be wrong; pass the very data, with the same --column and --unit, or scan again"
    )
