"""The audit's part of the page: what attacks reached beside what was certified.

Reads the record that an audit writes (audit.json), and of it only what is drawn; fields that are not there are shown
as a dash, so that an older or newer audit still makes a page.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

from hush.audit.headline import what_counts
from hush.errors import InvalidInput
from hush.numbers import counted, is_number
from hush.report.markup import at_least, at_most, shown, table
from hush.report.plots import Plot

__all__ = ["AuditResult", "attacks_plot", "attacks_table"]


DRAWN, LISTED = 24, 500  # rows in the picture and in the table
WORDS = {
    "kept": "No attack did better than was certified by more than chance explains",
    "failed": "An attack did better than was certified",
    "model not judged": "The plan was simulated and keeps to what was certified; nothing tried on the model itself "
    "could have shown a broken promise, so this says nothing about what training did",
    "nothing to compare": "Nothing that was tried could have shown a broken promise",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One row; None where the record says nothing."""

    attack: str
    name: str
    prior: float | None
    certified: float | None
    ceiling: float | None
    lower: float | None
    upper: float | None
    status: str


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """All rows, those that matter most first, and what they come to."""

    rows: tuple[Attack, ...]
    status: str
    level: float | None
    counts: str
    notes: tuple[str, ...]
    extraction: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """From an audit's record."""
        given = record.get("rows")
        if not isinstance(given, list) or not all(isinstance(row, Mapping) and "attack" in row for row in given):
            raise InvalidInput("the audit's record has no list of attacks; pass what hush audit wrote as audit.json")
        rows = [_attack(row) for row in given]
        rank = {"failed": 0, "kept": 1}
        rows.sort(key=lambda row: (rank.get(row.status, 2), -_share(row)))
        notes = [*_exposure(record.get("exposure")), *_texts(record.get("notices")), *_texts([record.get("why_not")])]
        return cls(
            rows=tuple(rows),
            status=_status(record.get("verdict"), rows),
            level=_number(record.get("level")),
            counts=what_counts(record),
            notes=tuple(notes),
            extraction=tuple(_extraction(record.get("extraction"))),
        )

    @property
    def sentence(self) -> str:
        """The verdict in words; an audit that found nothing never says that there is nothing."""
        told = WORDS.get(self.status, f"The audit says: {self.status}")
        level = "" if self.level is None else f" All together are wrong with probability at most {at_most(self.level)}."
        return f"{told}. {self.counts}{level}"


def attacks_plot(result: AuditResult) -> Plot | None:
    """Limits of each attack's success beside its certified bound; None where nothing was measured."""
    rows = [row for row in result.rows if row.lower is not None and row.upper is not None][:DRAWN]
    if not rows:
        return None
    rows.reverse()  # the first on top
    values = [value for row in rows for value in (row.lower, row.upper, row.certified, row.ceiling) if value]
    floor = min(values, default=1e-3) / 3
    labels = [f"{shown(_cut(row.name))}<br>{shown(_cut(row.attack))}" for row in rows]
    labels = [f"{label}{'<i></i>' * labels[:place].count(label)}" for place, label in enumerate(labels)]  # told apart
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines", "name": "attack, between its limits", "hoverinfo": "skip",
            "x": [x for row in rows for x in (max(row.lower or 0.0, floor), max(row.upper or 0.0, floor), None)],
            "y": [y for label in labels for y in (label, label, None)], "line": {"color": "@blue", "width": 5},
        }
    ]  # fmt: skip
    for field, name, symbol, colour in (
        ("lower", "attack, at least", "triangle-right", "@blue"),
        ("certified", "certified, at most", "diamond", "@green"),
        ("ceiling", "ceiling", "line-ns-open", "@red"),
    ):
        some = [(row, label) for row, label in zip(rows, labels, strict=True) if getattr(row, field)]
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": name, "hoverinfo": "text",
                "x": [getattr(row, field) for row, _ in some], "y": [label for _, label in some],
                "marker": {"symbol": symbol, "size": 12, "color": colour, "line": {"width": 2, "color": colour}},
                "text": [f"{shown(row.attack)}: {shown(row.name)}<br>{_told(row)}" for row, _ in some],
            }
        )  # fmt: skip
    return Plot(
        name="audit",
        title="What attacks reached, and what was certified",
        summary="For each attack the limits of its success, the certified bound and the ceiling. A promise is broken "
        "where an attack's lower limit lies right of the certified bound.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "probability of success"}, "type": "log"},
            "yaxis": {"automargin": True, "showgrid": True, "type": "category"},
        },
        numbers="",
        height=120 + 44 * len(rows),
    )


def attacks_table(result: AuditResult) -> str:
    """Every row, up to a number that a page can hold."""
    cells = [
        (
            row.name,
            row.attack,
            _down(row.prior),
            _down(row.lower),
            _up(row.upper),
            _up(row.certified),
            _up(row.ceiling),
            row.status,
        )
        for row in result.rows[:LISTED]
    ]
    columns = ["secret", "attack", "prior", "attack ≥", "attack ≤", "certified ≤", "ceiling", "verdict"]
    more = len(result.rows) - LISTED
    rest = f"<p>In audit.json besides: {counted(more, 'row')}.</p>" if more > 0 else ""
    parts = [table(columns, cells, caption="The audit, row by row"), rest]
    if result.extraction:
        columns = ["sequences", "prompt", "continuation", "came out", "at least", "at most"]
        parts.append(table(columns, result.extraction, caption="Sequences that the model gives back (in tokens)"))
    return "".join(parts)


def _attack(row: Mapping[str, Any]) -> Attack:
    numbers = {name: _number(row.get(name)) for name in ("prior", "certified", "ceiling", "lower", "upper")}
    return Attack(
        attack=str(row.get("attack", "attack")),
        name=str(row.get("name", "–")),
        status=str(row.get("status", "–")),
        **numbers,
    )


def _status(stated: object, rows: Sequence[Attack]) -> str:
    """The verdict that a record states, or that its rows come to; a simulation alone is none on the model."""
    kept = {row.attack for row in rows if row.status == "kept"}
    if any(row.status == "failed" for row in rows):
        return "failed"
    if stated not in (None, "kept"):
        return str(stated)
    return "kept" if kept - {"mechanism"} else "model not judged" if kept else "nothing to compare"


def _extraction(found: object) -> Iterator[tuple[str, ...]]:
    """Sequences that came out of the model, by the lengths of prompt and continuation."""
    for one in _mappings(found):
        for cell in _mappings(one.get("cells")):
            count = f"{cell.get('hits', '–')} of {cell.get('tried', '–')}"
            limits = (_down(_number(cell.get("lower"))), _up(_number(cell.get("upper"))))
            sizes = (str(cell.get("prompt") or "all"), str(cell.get("continuation", "–")))
            yield str(one.get("what", "sequences")), *sizes, count, *limits


def _exposure(found: object) -> list[str]:
    """What became of the canaries; it describes, the rows count."""
    if not isinstance(found, Mapping):
        return []
    named, total, mean, chance = (found.get(name, "–") for name in ("named", "canaries", "mean", "by_chance"))
    bits = [f"{value:.2f}" if isinstance(value, float) else str(value) for value in (mean, chance)]
    return [f"Canaries that rank first: {named} of {total}; mean exposure {bits[0]} bits, by chance {bits[1]}"]


def _mappings(given: object) -> list[Mapping[str, Any]]:
    return [entry for entry in given if isinstance(entry, Mapping)] if isinstance(given, list) else []


def _texts(given: object) -> list[str]:
    return [text for text in given if isinstance(text, str) and text] if isinstance(given, list) else []


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) and value >= 0 else None


def _share(row: Attack) -> float:
    return row.lower / row.certified if row.lower and row.certified else 0.0


def _told(row: Attack) -> str:
    return f"attack from {_down(row.lower)} to {_up(row.upper)}<br>certified at most {_up(row.certified)}" + (
        f"<br>ceiling {_up(row.ceiling)}"
    )


def _up(value: float | None) -> str:
    return "–" if value is None else at_most(value)


def _down(value: float | None) -> str:
    return "–" if value is None else at_least(value)


def _cut(text: str) -> str:
    return text if len(text) <= 22 else f"{text[:21]}…"
