"""Output of ``hush plan`` and ``hush frontier``: one record per result, printed as JSON or as tables."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

from hush.cli.inputs import Promises
from hush.cli.results.accounting import Record
from hush.cli.results.cautions import plan_cautions, show_cautions
from hush.console import counted, plain, rounded_down, rounded_up, show_rows
from hush.plan import Plan, noise_without_forcing
from hush.plan.make import held_out_examples
from hush.plan.plan import are_canaries, drawable_examples, kept_weight, unlisted_secrets
from hush.plan.settings import PlanSettings
from hush.plan.signal import Outlook, Remaining, shown_signal
from hush.report.markup import at_least
from hush.settings import AUTO
from hush.storage import whole_file
from hush.weights import Frontier

__all__ = [
    "frontier_record",
    "plan_record",
    "show_frontiers",
    "show_outlook",
    "show_plan",
    "show_without_noise",
    "write_rows",
]


CSV_COLUMNS = (
    "capacity", "bound", "setting", "noise_multiplier", "noise_per_gradient", "kept_weight", "kept_fraction",
    "total_weight", "effective_size", "num_binding", "default", "batch_size", "rounds", "signal", "elbow",
)  # fmt: skip


KIND = ("capacity", "bound", "batch_size", "rounds")  # of a frontier


def plan_record(plan: Plan, folder: Path, seconds: float, *, outlook: Outlook, settings: PlanSettings) -> Record:
    """A plan in numbers, its binding secrets, the noise without a secret that alone forces it, and its outlook.

    settings: as they were asked for, to say which of them were chosen automatically.
    """
    numbers = {"batch_size": plan.batch_size, "rounds": plan.rounds, "keep": kept_weight(plan)}
    share_SQ = plan.posterior / plan.ceiling
    point_S = share_SQ.argmax(axis=1) if share_SQ.size else np.empty(0, dtype=int)
    ranked = sorted(plan.binding.tolist(), key=lambda secret: (-share_SQ[secret].max(), secret))
    forcing = noise_without_forcing(plan)
    return {
        "noise_multiplier": plan.noise_multiplier,
        "noise_per_gradient": plan.noise_multiplier / plan.batch_size,
        "kept_fraction": plan.kept_fraction,
        "kept_weight": kept_weight(plan),
        "total_weight": plan.total_weight,
        "effective_size": plan.effective_size,
        "largest_rate": float(plan.rates.max()),
        "num_examples": plan.incidence.num_examples,
        "num_secrets": plan.incidence.num_secrets,
        "num_unlisted": unlisted_secrets(plan.incidence),
        "num_canaries": int(are_canaries(plan).sum()),
        "num_drawable": int(drawable_examples(plan).sum()),
        "num_held_out": held_out_examples(plan).size,
        "draw": "secrets" if plan.draws_secrets_only else "all",
        "scope": None if plan.certificate.scope is None else dict(plan.certificate.scope),
        "rounds": plan.rounds,
        "batch_size": plan.batch_size,
        "clip_norm": plan.clip_norm,
        "bound": plan.bound,
        "capacity": plan.capacity,
        "binding": [
            {
                "id": plan.secret_ids[secret],
                "prior": float(plan.prior[secret, point_S[secret]]),
                "ceiling": float(plan.ceiling[secret, point_S[secret]]),
                "posterior": float(plan.posterior[secret, point_S[secret]]),
            }
            for secret in ranked
        ],
        "forcing": None if forcing is None else {"id": forcing[0], "noise_without": forcing[1]},
        "auto": {name: value for name, value in numbers.items() if getattr(settings, name) == AUTO},
        "chain": None if plan.certificate.releases is None else dict(plan.certificate.releases),
        "outlook": outlook.record(),
        "cautions": plan_cautions(plan),
        "fingerprints": dict(plan.certificate.fingerprints),
        "certificate": str(folder / "certificate.md"),
        "seconds": seconds,
    }


def show_plan(record: Record, console: Console, *, top: int) -> None:
    """Print the plan as a table, its binding secrets, and the path of the certificate."""
    examples, batch, scope = record["num_examples"], record["batch_size"], record.get("scope")
    drawable = f"the {record['num_drawable']:,} with a secret"
    used_of = drawable if record.get("draw") == "secrets" or scope is not None else f"{examples:,}"
    rows = [
        ["noise multiplier", rounded_up(record["noise_multiplier"], 5)],
        ["noise per averaged gradient", rounded_up(record["noise_per_gradient"])],
        ["examples used", f"{_percent(record['kept_fraction'])} of {used_of}"],
        ["weight that examples with secrets keep", _percent(record["kept_weight"])],
        ["sum of weights", rounded_down(record["total_weight"], 6)],
        ["effective size", rounded_down(record["effective_size"], 6)],
        ["expected batch", f"{batch:g}, rates up to {rounded_up(record['largest_rate'], 3)}"],
    ]
    secrets = record["num_secrets"]
    if record["chain"] is not None:
        rows += _chain_rows(record["chain"])
    if scope is not None:
        rows += _scope_rows(record)
    elif record.get("draw") == "secrets":
        rows.append(["learnt without noise", f"{counted(_free(record), 'example')} without a secret"])
    if record["num_unlisted"]:
        rows.append(["secrets in some example", f"{secrets - record['num_unlisted']:,} of {secrets:,}"])
    if record["num_canaries"]:
        rows.append(["secrets that are canaries, by their ids", f"{record['num_canaries']:,} of {secrets:,}"])
    outlook: Record = record["outlook"]
    if outlook["signal"] is not None:
        rows.append(["signal, a forecast", shown_signal(outlook["signal"])])
        rows.append(["elbow: batch size beyond which more buys nothing", shown_signal(outlook["elbow"] or math.inf)])
    rows += [[f"{row['method']} instead, without noise, leaves", _left(row)] for row in outlook["without_noise"]]
    title = f"plan for {counted(secrets, 'secret')}, {counted(record['rounds'], 'round')}"
    show_rows(console, [title, ""], rows)
    if record["auto"]:
        console.print(plain(f"Chosen automatically: {_chosen(record['auto'])}."), soft_wrap=True)
    binding: list[Record] = record["binding"]
    if binding and top > 0:
        cells = [
            [row["id"], at_least(row["prior"], 6), *(rounded_up(row[name]) for name in ("posterior", "ceiling"))]
            for row in binding[:top]
        ]
        title = f"Binding secrets: {len(binding)}" + (f", the first {top}" if len(binding) > top else "")
        show_rows(console, ["secret", "prior", "posterior at most", "ceiling"], cells, title=title)
    if record["forcing"] is not None:
        without = rounded_up(record["forcing"]["noise_without"])
        text = f" alone forces this noise; without its promise the same rates would need only {without}."
        console.print(plain(record["forcing"]["id"]) + Text(text))
    console.print(Text(f"Certificate: {record['certificate']}"), soft_wrap=True)
    show_outlook(outlook, console)
    show_cautions(record["cautions"], console)
    console.print(f"{record['seconds']:.1f} s", highlight=False, style="dim")


def show_outlook(outlook: Record, console: Console) -> None:
    """Print what the private rounds can teach; in red if that is next to nothing."""
    for sentence in outlook["sentences"]:
        console.print(plain(sentence), style="bold red" if sentence.startswith("Hopeless") else "", soft_wrap=True)


def show_without_noise(outlook: Record, console: Console) -> None:
    """Print what dropping and redacting would leave."""
    for row in outlook["without_noise"]:
        console.print(
            plain(f"{row['method'].capitalize()} instead, without noise, leaves {_left(row)}."), soft_wrap=True
        )


def _chosen(auto: Record) -> str:
    names = {"batch_size": "batch size {:g}", "rounds": "{:,} rounds", "keep": "{:.0%} of the weight kept"}
    return ", ".join(names[name].format(value) for name, value in auto.items())


def _left(row: Record) -> str:
    """What dropping or redacting leaves."""
    text = "" if row["text_share"] is None else f", {_percent(row['text_share'])} of the text"
    return f"{counted(row['examples'], 'example')}, {_percent(row['share'])}{text}"


def _scope_rows(record: Record) -> list[list[str]]:
    """What the promises of a plan with slots cover, and what is public."""
    scope: Record = record["scope"]
    covered = [
        f"{scope[name]:,} {what}"
        for name, what in (
            ("secrets_in_slots", "in slots"),
            ("secrets_in_whole_examples", "as whole examples"),
            ("secrets_in_both", "both"),
        )
    ]
    in_slots = f"{counted(scope['slots'], 'slot')} in {counted(scope['examples_with_slots'], 'example')}"
    free = counted(_free(record), "example")
    return [
        ["secret text", f"{in_slots}, {counted(scope['whole_examples'], 'whole example')}"],
        ["secrets covered", ", ".join(covered)],
        ["learnt without noise", f"{counted(scope['examples_with_slots'], 'skeleton')}, {free} without a secret"],
    ]


def _chain_rows(chain: Record) -> list[list[str]]:
    """Which release of a chain this is, and what its promises are about."""
    number = f"{chain['number']:,}"
    if chain["kind"] == "series":
        rows = [["release", f"{number} of {chain['announced']:,}, all of which the promises are about"]]
    else:
        share = rounded_up(100 * chain["share"], 3)
        rows = [["release", f"{number}, which may spend {share} % of the budget of each promise"]]
    for name, what in (("merged", "secrets with earlier ids"), ("raised", "secrets with a higher ceiling than before")):
        rows += [[what, f"{chain[name]:,}"]] if chain[name] else []
    return rows


def _free(record: Record) -> int:
    """The number of examples without a secret that are not held out, if only those with a secret are drawn."""
    return record["num_examples"] - record["num_drawable"] - record["num_held_out"]


def frontier_record(
    frontiers: Sequence[Frontier],
    promises: Promises,
    settings: Sequence[float] = (),
    *,
    without: Sequence[Remaining] = (),
) -> Record:
    """Every row of every frontier, with the default choice of each marked, and the settings without a plan.

    settings: those that the user passed; a sweep goes down and ends before the first setting without a plan. without:
    what dropping and redacting would leave.
    """
    rows: list[Record] = []
    for frontier in frontiers:
        for row, record in zip(frontier.rows, frontier.records(), strict=True):
            ids = promises.ids
            binding = list(row.binding) if ids is None else [ids[secret] for secret in row.binding]
            kind = {"capacity": frontier.capacity, "bound": frontier.bound}
            rows.append(kind | record | {"binding": binding, "default": row is frontier.best})
    sizes = {"num_examples": promises.incidence.num_examples, "num_secrets": promises.incidence.num_secrets}
    reached = max((min(row.setting for row in frontier.rows) for frontier in frontiers), default=0.0)
    omitted = sorted({setting for setting in settings if setting < reached}, reverse=True)
    return sizes | {
        "rounds": frontiers[0].rounds if frontiers else promises.rounds,
        "rows": rows,
        "without_noise": [row.record() for row in without],
        "settings_without_plan": omitted,
    }


def show_frontiers(record: Record, console: Console) -> None:
    """Print a table per capacity, bound, batch size and rounds; a star marks the default choice.

    With several batch sizes or rounds another table compares them.
    """
    rows: list[Record] = record["rows"]
    kinds = list(dict.fromkeys(tuple(row[name] for name in KIND) for row in rows))
    columns = ["noise", "noise / B", "weight kept", "examples", "signal", "elbow", "binding", ""]
    without: list[Record] = record["without_noise"]
    for kind in kinds:
        cells = [
            [
                rounded_up(row["noise_multiplier"], 5),
                rounded_up(row["noise_per_gradient"], 3),
                _percent(row["kept_weight"]),
                _percent(row["kept_fraction"]),
                _signal(row["signal"]),
                _signal(row["elbow"]),
                str(len(row["binding"])),
                "*" if row["default"] else "",
            ]
            for row in rows
            if tuple(row[name] for name in KIND) == kind
        ]
        left = [[row["method"], "0", "–", _percent(row["share"]), "–", "–", "–", ""] for row in without]
        sizes = f"batch {kind[2]:g}, {counted(kind[3], 'round')}"
        show_rows(console, columns, [*cells, *left], title=f"Capacities: {kind[0]}, bound: {kind[1]}, {sizes}")
    if len({kind[2:] for kind in kinds}) > 1:
        firsts = [next(row for row in rows if tuple(row[name] for name in KIND) == kind) for kind in kinds]
        _show_sizes(firsts, without, console)
    console.print(
        "* the row with the least noise that keeps 90 % of the weight of examples with secrets, or else the one "
        "with the most data; hush plan also searches between the rows. Signal and elbow are forecasts: beyond the "
        "elbow a larger batch buys nothing."
    )
    if record["settings_without_plan"]:
        omitted = ", ".join(f"{setting:g}" for setting in record["settings_without_plan"])
        console.print(
            f"Omitted, because no plan with this batch size exists: {omitted}.", highlight=False, soft_wrap=True
        )


def _show_sizes(firsts: Sequence[Record], without: Sequence[Record], console: Console) -> None:
    """Print the row with the most data of every batch size and number of rounds, and where the elbow is.

    Not the default choices: they keep different shares, and a smaller share has more signal at any batch size.
    """
    cells = [
        [
            f"{row['batch_size']:g}",
            f"{row['rounds']:,}",
            rounded_up(row["noise_multiplier"], 5),
            _percent(row["kept_weight"]),
            _signal(row["signal"]),
            _signal(row["elbow"]),
            "beyond the elbow" if row["elbow"] is not None and row["batch_size"] >= row["elbow"] else "",
        ]
        for row in firsts
    ]
    cells += [[row["method"], "–", "0", "–", "–", "–", _left(row)] for row in without]
    columns = ["batch", "rounds", "noise", "weight kept", "signal", "elbow", ""]
    show_rows(console, columns, cells, title="Batch sizes and rounds, with the most data of each")


def _signal(value: float | None) -> str:
    return "–" if value is None else shown_signal(value)


def _percent(share: float) -> str:
    return f"{rounded_down(round(100 * share, 9))} %"


def write_rows(record: Record, path: Path) -> None:
    """Write the rows as JSON, or as CSV without the lists of binding secrets."""
    if path.suffix.lower() == ".json":
        text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"num_binding": len(row["binding"])} for row in record["rows"])
        text = table.getvalue()
    with whole_file(path) as file:
        file.write(text.encode())
