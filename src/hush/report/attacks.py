"""The audit on the page: what the attacks reached, compared with what was certified, as a plot and a table.

Reads the record that an audit writes (audit.json), and only the fields that are shown; missing fields become a dash, so
that the record of an older or newer version still makes a page.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

from hush.audit.headline import comparison_summary
from hush.errors import InvalidInput
from hush.numbers import counted, is_number
from hush.report.markup import at_least, at_most, shown, table
from hush.report.plots import Plot

__all__ = ["AuditResult", "attacks_plot", "attacks_table"]


MAX_DRAWN_ROWS = 24  # in the plot
MAX_LISTED_ROWS = 500  # in the table
MAX_LABEL_CHARACTERS = 22  # of a label in the plot
VERDICT_SENTENCES = {
    "kept": "No attack did better than was certified by more than chance explains",
    "failed": "An attack did better than was certified",
    "model not judged": "The simulated attack on the plan stays within what was certified, but no attack on the model "
    "itself could have shown a broken promise, so this says nothing about what training did",
    "nothing to compare": "No attack could have shown a broken promise",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One row of an audit's record; None where the record lacks a number."""

    attack: str
    name: str
    prior: float | None
    certified: float | None
    ceiling: float | None
    lower: float | None
    upper: float | None
    status: str
    releases: float = 1.0

    @property
    def attack_shown(self) -> str:
        """The attack, and how many releases it used together."""
        return self.attack if self.releases == 1 else f"{self.attack}, {self.releases:.0f} releases"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """The rows of an audit, the most important first, and its verdict."""

    rows: tuple[AuditRow, ...]
    status: str
    level: float | None
    counts: str
    notes: tuple[str, ...]
    extraction: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """Read an audit's record."""
        stated = record.get("rows")
        if not isinstance(stated, list) or not all(isinstance(row, Mapping) and "attack" in row for row in stated):
            raise InvalidInput("the audit's record has no list of attacks; pass the audit.json that hush audit wrote")
        rows = [_audit_row(row) for row in stated]
        rank = {"failed": 0, "kept": 1}
        rows.sort(key=lambda row: (rank.get(row.status, 2), -_lower_over_certified(row)))
        notes = [*_exposure(record.get("exposure")), *_texts(record.get("notices")), *_texts([record.get("why_not")])]
        return cls(
            rows=tuple(rows),
            status=_status(record.get("verdict"), rows),
            level=_number(record.get("level")),
            counts=comparison_summary(record),
            notes=tuple(notes),
            extraction=tuple(_extraction(record.get("extraction"))),
        )

    @property
    def sentence(self) -> str:
        """The verdict in words; an audit that found nothing never claims that there is nothing to find."""
        verdict = VERDICT_SENTENCES.get(self.status, f"The audit says: {self.status}")
        level = ""
        if self.level is not None:
            level = f" The probability of a false alarm in any row is at most {at_most(self.level)}."
        return f"{verdict}. {self.counts}{level}"


def attacks_plot(result: AuditResult) -> Plot | None:
    """The limits of each attack's success and its certified bound; None where nothing was measured."""
    rows = [row for row in result.rows if row.lower is not None and row.upper is not None][:MAX_DRAWN_ROWS]
    if not rows:
        return None
    rows.reverse()  # the first on top
    values = [value for row in rows for value in (row.lower, row.upper, row.certified, row.ceiling) if value]
    floor = min(values, default=1e-3) / 3
    labels = [f"{shown(_shortened(row.name))}<br>{shown(_shortened(row.attack_shown))}" for row in rows]
    # Invisible tags make equal labels distinct: Plotly would draw their rows on one line.
    labels = [f"{label}{'<i></i>' * labels[:index].count(label)}" for index, label in enumerate(labels)]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter", "mode": "lines", "name": "attack success, between its limits", "hoverinfo": "skip",
            "x": [x for row in rows for x in (max(row.lower or 0.0, floor), max(row.upper or 0.0, floor), None)],
            "y": [y for label in labels for y in (label, label, None)], "line": {"color": "@blue", "width": 5},
        }
    ]  # fmt: skip
    for field, name, symbol, colour in (
        ("lower", "attack success, at least", "triangle-right", "@blue"),
        ("certified", "certified, at most", "diamond", "@green"),
        ("ceiling", "ceiling", "line-ns-open", "@red"),
    ):
        marks = [(row, label) for row, label in zip(rows, labels, strict=True) if getattr(row, field)]
        traces.append(
            {
                "type": "scatter", "mode": "markers", "name": name, "hoverinfo": "text",
                "x": [getattr(row, field) for row, _ in marks], "y": [label for _, label in marks],
                "marker": {"symbol": symbol, "size": 12, "color": colour, "line": {"width": 2, "color": colour}},
                "text": [f"{shown(row.attack_shown)}: {shown(row.name)}<br>{_hover_text(row)}" for row, _ in marks],
            }
        )  # fmt: skip
    return Plot(
        name="audit",
        title="What attacks reached, and what was certified",
        summary="For each attack: the limits of its success, the certified bound and the ceiling. A promise is broken "
        "where the lower limit of an attack lies to the right of the certified bound.",
        traces=tuple(traces),
        layout={
            "xaxis": {"title": {"text": "probability of success"}, "type": "log"},
            "yaxis": {"automargin": True, "showgrid": True, "type": "category"},
        },
        numbers="",
        height=120 + 44 * len(rows),
    )


def attacks_table(result: AuditResult) -> str:
    """The rows of the audit, up to ``MAX_LISTED_ROWS``, and what extraction found."""
    cells = [
        (
            row.name,
            row.attack_shown,
            _down(row.prior),
            _down(row.lower),
            _up(row.upper),
            _up(row.certified),
            _up(row.ceiling),
            row.status,
        )
        for row in result.rows[:MAX_LISTED_ROWS]
    ]
    columns = ["secret", "attack", "prior", "success ≥", "success ≤", "certified ≤", "ceiling", "verdict"]
    more = len(result.rows) - MAX_LISTED_ROWS
    rest = f"<p>{counted(more, 'more row')} in audit.json.</p>" if more > 0 else ""
    parts = [table(columns, cells, caption="The audit, row by row"), rest]
    if result.extraction:
        columns = ["sequences", "prompt", "continuation", "came out", "at least", "at most"]
        caption = "Sequences extracted from the model (lengths in tokens)"
        parts.append(table(columns, result.extraction, caption=caption))
    return "".join(parts)


def _audit_row(row: Mapping[str, Any]) -> AuditRow:
    numbers = {name: _number(row.get(name)) for name in ("prior", "certified", "ceiling", "lower", "upper")}
    return AuditRow(
        attack=str(row.get("attack", "attack")),
        name=str(row.get("name", "–")),
        status=str(row.get("status", "–")),
        releases=_number(row.get("releases")) or 1.0,
        **numbers,
    )


def _status(stated: object, rows: Sequence[AuditRow]) -> str:
    """The verdict that a record states, or that follows from its rows; a simulation alone does not judge the model."""
    kept = {row.attack for row in rows if row.status == "kept"}
    if any(row.status == "failed" for row in rows):
        return "failed"
    if stated not in (None, "kept"):
        return str(stated)
    return "kept" if kept - {"mechanism"} else "model not judged" if kept else "nothing to compare"


def _extraction(extractions: object) -> Iterator[tuple[str, ...]]:
    """Sequences that came out of the model, by the lengths of prompt and continuation."""
    for extraction in _mappings(extractions):
        for cell in _mappings(extraction.get("cells")):
            count = f"{cell.get('hits', '–')} of {cell.get('tried', '–')}"
            limits = (_down(_number(cell.get("lower"))), _up(_number(cell.get("upper"))))
            sizes = (str(cell.get("prompt") or "all"), str(cell.get("continuation", "–")))
            yield str(extraction.get("what", "sequences")), *sizes, count, *limits


def _exposure(exposure: object) -> list[str]:
    """A note on the exposure of the canaries; only the rows are judged."""
    if not isinstance(exposure, Mapping):
        return []
    named, total, mean, chance = (exposure.get(name, "–") for name in ("named", "canaries", "mean", "by_chance"))
    bits = [f"{value:.2f}" if isinstance(value, float) else str(value) for value in (mean, chance)]
    return [f"Canaries that rank first: {named} of {total}; mean exposure {bits[0]} bits, expected by chance {bits[1]}"]


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [text for text in value if isinstance(text, str) and text] if isinstance(value, list) else []


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) and value >= 0 else None


def _lower_over_certified(row: AuditRow) -> float:
    return row.lower / row.certified if row.lower and row.certified else 0.0


def _hover_text(row: AuditRow) -> str:
    return (
        f"success from {_down(row.lower)} to {_up(row.upper)}<br>certified at most {_up(row.certified)}"
        f"<br>ceiling {_up(row.ceiling)}"
    )


def _up(value: float | None) -> str:
    return "–" if value is None else at_most(value)


def _down(value: float | None) -> str:
    return "–" if value is None else at_least(value)


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_LABEL_CHARACTERS else f"{text[: MAX_LABEL_CHARACTERS - 1]}…"
