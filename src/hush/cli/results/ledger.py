"""What ``hush ledger`` shows: the releases of a chain, and what each secret was promised, has spent and has left."""

from typing import Any

from rich.console import Console

from hush.console import counted, plain, rounded_up, show_rows
from hush.ledger import Ledger
from hush.ledger.spending import Spending
from hush.report.markup import percent_at_least, percent_at_most

__all__ = ["ledger_record", "show_ledger"]


Record = dict[str, Any]


def ledger_record(ledger: Ledger, spending: Spending) -> Record:
    """The ledger as plain data, the most used secrets first."""
    record = spending.record()
    return {
        "folder": str(ledger.folder),
        "key": ledger.key,
        **record,
        "merged": {name: list(each) for name, each in sorted(ledger.ancestors.items())},
        "open": [entry.number for entry in ledger.entries if entry.is_open],
    }


def show_ledger(record: Record, console: Console, *, top: int) -> None:
    """Print the releases, then the most used secrets."""
    console.print(plain(_headline(record)), soft_wrap=True)
    if not record["releases"]:
        return
    show_rows(
        console,
        ["release", "state", "examples", "secrets", "new", "noise", "kept", "most used"],
        (
            (
                str(row["number"]),
                "abandoned" if row["abandoned"] and row["state"] == "started" else row["state"],
                f"{row['examples']:,}",
                f"{row['secrets']:,}",
                f"{row['new_secrets']:,}",
                rounded_up(row["noise_multiplier"]),
                percent_at_least(row["kept_weight"], 3),
                percent_at_most(row["used_most"], 3),
            )
            for row in record["releases"]
        ),
    )
    shown = record["secrets"][:top]
    show_rows(
        console,
        ["secret", "releases", "prior", "promised", "spent", "left"],
        (
            (
                row["secret"],
                _spans(row["releases"]),
                f"{row['prior']:.3g}",
                f"{row['ceiling']:.3g}",
                rounded_up(row["spent"]),
                percent_at_least(row["left"], 3),
            )
            for row in shown
        ),
    )
    more = len(record["secrets"]) - len(shown)
    if more:
        console.print(f"And {counted(more, 'secret')} that {'is' if more == 1 else 'are'} used less.", soft_wrap=True)
    console.print(
        "Most used: the largest posterior after the releases so far, as a share of its ceiling. Spent: that posterior, "
        "a proven bound. Every training that began counts.",
        soft_wrap=True,
    )
    for number in record["open"]:
        console.print(
            f"Release {number} is not finished. No other training begins until it is, or until you state with "
            f"--abandon {number} that it will not be; it counts either way.",
            style="yellow",
            soft_wrap=True,
        )


def _headline(record: Record) -> str:
    done = len(record["releases"])
    if record["kind"] == "series":
        left = record["releases_left"]
        return f"{done} of {record['count']} announced releases have begun; {left} left."
    if record["kind"] == "filter":
        return (
            f"{counted(done, 'release')}, as they came; each may spend {percent_at_most(record['share'], 3)} of what "
            "is promised."
        )
    return "No training has begun with this ledger."


def _spans(numbers: list[int] | tuple[int, ...]) -> str:
    """Numbers of releases, shortened.

    >>> _spans([1, 2, 3, 5])
    '1-3, 5'
    """
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
