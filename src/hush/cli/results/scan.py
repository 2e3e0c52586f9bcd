"""Output of ``hush scan``, ``hush explain`` and ``hush redact``: one record per result, printed as JSON or tables."""

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hush.cli.results.accounting import Record
from hush.cli.results.cautions import graph_cautions, show_cautions
from hush.console import counted, plain, rounded_down, rounded_up, show_rows
from hush.plan.plan import unlisted_secrets
from hush.scan.causes import causes
from hush.scan.reasons import SetAside
from hush.scan.redact import Redacted
from hush.scan.result import Scan
from hush.scan.review import Histogram, example_ids, histogram_of, scan_cautions

__all__ = [
    "explain_record",
    "redact_record",
    "scan_record",
    "set_aside_record",
    "show_explanation",
    "show_redacted",
    "show_scan",
    "show_set_aside",
]


BAR_WIDTH = 40  # characters of the longest bar
MAX_LISTED_CAUSES = 3  # of a secret
MAX_LISTED_REASONS = 12  # for which rules set findings aside
MAX_LISTED_FILES = 5  # files with skipped rows that are listed
SUGGESTED_BATCH_SIZE, SUGGESTED_ROUNDS = 256, 1000  # in the command for the next step


def scan_record(scan: Scan, folder: Path, source: str, options: Mapping[str, object], *, show_text: bool) -> Record:
    """The summary of a scan, histograms of its counts, and the command for the next step."""
    summary = scan.summary()
    if show_text and scan.secrets.texts is not None:
        text_of = dict(zip(scan.secrets.ids, scan.secrets.texts, strict=True))
        for row in summary["most_widespread"]:
            row["text"] = text_of[row["secret"]]
    for row in summary["most_widespread"]:
        row["why"] = next(scan.why(secret=row["secret"])).reason
    for name, counts in (
        ("examples_per_secret", scan.incidence.examples_per_secret),
        ("secrets_per_example", scan.incidence.secrets_per_example),
    ):
        summary[name] = {"quantiles": summary[name], "histogram": asdict(histogram_of(counts))}
    data, written = source, folder / "owner" / "data.parquet"
    if written.is_file():  # the examples are not the rows of the source
        data, options = str(written), {"--key": options.get("--key")}
    return summary | {
        "source": source,
        "folder": str(folder),
        "data": data,
        "review": str(folder / "owner" / "review.html") if (folder / "owner" / "review.html").is_file() else None,
        "explain": _explain_command(summary, folder),
        "prior": _prior_command(folder, data, options) if len(scan.slots) else None,
        "next": _plan_command(scan, folder, data, options),
        "causes": _causes(scan, [row["secret"] for row in summary["most_widespread"]]),
        "unlisted": unlisted_secrets(scan.incidence),
        "cautions": [*graph_cautions(scan.incidence), *scan_cautions(scan)],
    }


def _causes(scan: Scan, secret_ids: Sequence[str]) -> list[Record]:
    """The causes of most pairs of each secret; none of a secret whose pairs all have the same."""
    if scan.owner is None:
        return []
    number = {scan.secrets.ids.index(name): name for name in secret_ids}
    return [
        {
            "secret": number[secret],
            "cause": cause.cause,
            "pairs": cause.pairs,
            "of": len(scan.incidence.examples_of(secret)),
        }
        for secret, found in causes(scan.owner, number).items()
        if len(found) > 1
        for cause in found[:MAX_LISTED_CAUSES]
    ]


def _explain_command(summary: Record, folder: Path) -> str:
    """The command that explains the secret in most examples, or the first example if there is no secret."""
    widespread: list[Record] = summary["most_widespread"]
    target = widespread[0]["secret"] if widespread else "0"
    return " ".join(shlex.quote(str(word)) for word in ("hush", "explain", folder, target))


def _prior_command(folder: Path, data: str, options: Mapping[str, object]) -> str:
    """The command that guesses the slots of this scan."""
    words: list[object] = ["hush", "prior", folder, data]
    for name in ("--column", "--unit"):
        words += [] if options.get(name) is None else [name, options[name]]
    return " ".join(shlex.quote(str(word)) for word in words)


def _plan_command(scan: Scan, folder: Path, data: str, options: Mapping[str, object]) -> str:
    """The command that plans for this scan; with a key, bound to the data."""
    public = folder / "public"
    words: list[object] = ["hush", "plan", public / "incidence.parquet", "--secrets", public / "secrets.parquet"]
    if options.get("--key") is not None:
        words += ["--data", data]
        for name, value in options.items():
            words += [] if value is None else [name, value]
    drawn = scan.incidence.num_examples
    if len(scan.slots):  # then only examples with a secret are drawn
        drawn = int((scan.incidence.secrets_per_example > 0).sum())
    batch = max(1, min(SUGGESTED_BATCH_SIZE, drawn // 10))
    names = (f"my-plan-{number}" if number > 1 else "my-plan" for number in itertools.count(1))
    output = next(name for name in names if not Path(name).exists())
    words += ["--batch-size", batch, "--rounds", SUGGESTED_ROUNDS, "--output", output]
    return " ".join(shlex.quote(str(word)) for word in words)


def show_scan(record: Record, console: Console) -> None:
    """Print sizes, rules, histograms, the most frequent secrets, what was skipped, and the next step."""
    rows = [
        ["examples", f"{record['examples']:,}"],
        ["of them with secrets", f"{record['examples_with_secrets']:,}"],
        ["secrets", f"{record['secrets']:,}"],
        ["of them in some example", f"{record['secrets'] - record['unlisted']:,}"],
        ["pairs of example and secret", f"{record['pairs']:,}"],
        ["of them from copies alone", f"{record['pairs_from_copies']:,}"],
    ]
    show_rows(console, ["found", ""], rows)
    cells = [
        [rule["rule"], *(f"{rule[name]:,}" for name in ("secrets", "secrets_found", "pairs"))]
        for rule in record["rules"]
    ]
    show_rows(console, ["rule", "secrets", "in some example", "pairs"], cells)
    _show_secret_text(record, console)
    for title, name in (
        ("Secrets by how many examples contain them", "examples_per_secret"),
        ("Examples by how many secrets they contain", "secrets_per_example"),
    ):
        _show_histogram(console, title, Histogram(**record[name]["histogram"]))
    _show_largest(record, console)
    _show_set_aside_counts(record["set_aside"], console)
    if record["skipped"]:
        files: dict[str, int] = record["skipped_by_file"]
        named = ", ".join(f"{name} {count:,}" for name, count in list(files.items())[:MAX_LISTED_FILES])
        others = len(files) - MAX_LISTED_FILES
        more = f" and {counted(others, 'more file')}" if others > 0 else ""
        line = f"Skipped {counted(record['skipped'], 'row')} that cannot be read: {named}{more}."
        console.print(plain(line), soft_wrap=True)
    for notice in record["notices"]:
        console.print(plain(f"Note: {notice}"), soft_wrap=True)
    if record["data"] != record["source"]:
        line = f"The examples are not the rows of the source: plan for {record['data']}, and train on it."
        console.print(plain(line), soft_wrap=True)
    if record["review"] is not None:
        line = f"Review what was found, most widespread first, before you plan: {record['review']}"
        console.print(Text(line), soft_wrap=True)
    console.print(Text(f"Reasons: {record['explain']}"), soft_wrap=True)
    if record["prior"] is not None:
        line = f"Is a prior too low? The slots are guessed by: {record['prior']}"
        console.print(Text(line), soft_wrap=True)
    console.print(Text(f"Next: {record['next']}"), soft_wrap=True)
    show_cautions(record["cautions"], console)
    console.print(f"{record['seconds']:.1f} s", highlight=False, style="dim")


def _show_secret_text(record: Record, console: Console) -> None:
    """How much text each rule makes secret, under either choice of what it hides."""
    about: Record | None = record["secret_text"]
    if about is None or not about["characters"] or not record["pairs"]:
        return
    slots = {rule["rule"]: rule.get("examples_with_slots", 0) for rule in record["rules"]}
    cells = [
        [
            row["rule"],
            row["hides"],
            f"{slots[row['rule']]:,}",
            *(f"{100 * row[choice]:.2f} %" for choice in ("example", "span")),
        ]
        for row in about["rules"]
    ]
    console.print(Text("Share of the characters that is secret (for your eyes only)", style="bold"))
    show_rows(console, ["rule", "hides", "examples with slots", "hides: example", "hides: span"], cells)
    console.print(f"In all, {100 * about['share']:.2f} % of the characters are secret.", highlight=False)


def _show_largest(record: Record, console: Console) -> None:
    widespread: list[Record] = record["most_widespread"]
    if widespread:
        texts = ["text"] if "text" in widespread[0] else []
        rows = [
            [row["secret"], f"{row['examples']:,}", row["why"], *(row[name] for name in texts)] for row in widespread
        ]
        console.print(Text("Most widespread secrets", style="bold"))
        show_rows(console, ["secret", "examples", "first found by", *texts], rows)
    _show_causes(record["causes"], console)
    crowded: list[Record] = record["most_secrets"]
    if crowded:
        rows = [[str(row["example"]), f"{row['secrets']:,}"] for row in crowded]
        console.print(Text("Examples with the most secrets", style="bold"))
        show_rows(console, ["example", "secrets"], rows)


def _show_causes(rows: Sequence[Record], console: Console) -> None:
    if rows:
        console.print(Text("Why most of their pairs were found", style="bold"))
        for row in rows:
            line = f"  {row['pairs']:,} of {counted(row['of'], 'pair')} of {row['secret']}: {row['cause']}"
            console.print(plain(line), soft_wrap=True)
        console.print()


def _show_set_aside_counts(rows: list[Record], console: Console) -> None:
    """What rules found and set aside, by reason, in most examples first."""
    if not rows:
        return
    console.print(Text("Found but set aside, so not protected", style="bold"))
    cells = [
        [row["rule"], row["why"], f"{row['texts']:,}", f"{row['examples']:,}"] for row in rows[:MAX_LISTED_REASONS]
    ]
    show_rows(console, ["rule", "why", "texts", "examples"], cells)
    if len(rows) > MAX_LISTED_REASONS:
        console.print(f"and {counted(len(rows) - MAX_LISTED_REASONS, 'more reason')}; all are in the review")


def _show_histogram(console: Console, title: str, bins: Histogram) -> None:
    if not bins.count:
        return
    console.print(Text(title, style="bold"))
    for label, count in zip(bins.labels, bins.count, strict=True):
        bar = "█" * (round(BAR_WIDTH * count / max(bins.count)) or bool(count))
        console.print(Text(f"{label:>18}  {bar} {count:,}"), soft_wrap=True)
    console.print()


def explain_record(scan: Scan, *, example: int | None, secret: int | None, show_text: bool) -> Record:
    """An example or a secret, and the reason of each of its pairs."""
    reasons: list[Record] = [
        {name: getattr(reason, name) for name in ("example", "secret_id", "rule", "reason", "begin", "end")}
        for reason in scan.why(example=example, secret=secret)
    ]
    if secret is not None:
        ids = example_ids(scan, [reason["example"] for reason in reasons])
        reasons = [reason | {"example_id": ids.get(reason["example"])} for reason in reasons]
    texts = scan.secrets.texts if show_text else None
    if texts is not None:
        text_of = dict(zip(scan.secrets.ids, texts, strict=True))
        reasons = [reason | {"text": text_of[reason["secret_id"]]} for reason in reasons]
    target: Record = {}
    if example is not None:
        place: dict[str, Any] = {} if scan.owner is None else scan.owner.example(example)
        target["example"] = {"number": example} | {name: place.get(name) for name in ("id", "file", "row")}
        set_aside = [] if scan.owner is None else scan.set_aside()
        target |= _slots_record(scan, example, reasons)
        target["set_aside"] = [
            {"rule": entry.rule, "why": entry.why, "examples": len(entry.examples)}
            | ({"text": entry.text} if show_text else {})
            for entry in set_aside
            if example in entry.examples
        ]
    if secret is not None:
        target["secret"] = {
            "number": secret,
            "id": scan.secrets.ids[secret],
            "points": [list(point) for point in scan.secrets.protections[secret].points],
            "examples": len(scan.incidence.examples_of(secret)),
        } | ({} if texts is None else {"text": texts[secret]})
        target["causes"] = _causes(scan, [scan.secrets.ids[secret]])
    return target | {"reasons": reasons}


def _slots_record(scan: Scan, example: int, reasons: Sequence[Record]) -> Record:
    """The slots of an example, or why it is secret as a whole; neither if it holds no secret."""
    if not reasons or scan.owner is None:
        return {}
    secret_text = scan.owner.secret_text()
    hides = {} if secret_text is None else {row.rule: row.hides for row in secret_text.rules}
    if "span" not in hides.values():  # nothing hides spans, so there is nothing to explain
        return {}
    slots = [
        {
            "begin": begin,
            "end": end,
            "rule": scan.slots.rules[int(scan.slots.rule_L[slot])],
            "secret_ids": [scan.secrets.ids[secret] for secret in scan.slots.secrets_of(slot).tolist()],
        }
        for slot, (begin, end) in zip(scan.slots.of_example(example), scan.spans.of_example(example), strict=True)
    ]
    causes: list[str] = []
    for reason in reasons if not slots else ():
        if hides.get(reason["rule"]) != "span":
            causes.append(f"rule {reason['rule']} hides whole examples")
        elif reason["begin"] < 0:
            causes.append(f"no place of {reason['secret_id']} in the text is known ({reason['reason'].split('; ')[0]})")
    return {"slots": slots, "secret_as_a_whole": list(dict.fromkeys(causes))}


def show_explanation(record: Record, console: Console, *, top: int) -> None:
    """Print a sentence about the example or the secret, and a row for each reason."""
    reasons: list[Record] = record["reasons"]
    other = "example"
    if "example" in record:
        place, other = record["example"], "secret_id"
        where = "" if place["id"] is None else f" ({place['id']}: row {place['row']} of {place['file']})"
        count = counted(len({reason["secret_id"] for reason in reasons}), "secret")
        console.print(plain(f"Example {place['number']}{where} contains {count}."), soft_wrap=True)
        if record.get("slots"):
            line = f"Its secrets stand in {counted(len(record['slots']), 'slot')}; the text around them is public."
            console.print(plain(line), soft_wrap=True)
        elif record.get("secret_as_a_whole"):
            console.print(plain(f"It is secret as a whole: {'; '.join(record['secret_as_a_whole'])}."), soft_wrap=True)
    if "secret" in record:
        about = record["secret"]
        points = (
            f"from {rounded_down(prior, 3)} to at most {rounded_up(ceiling, 3)}" for prior, ceiling in about["points"]
        )
        line = f"Secret {about['id']} (number {about['number']}) is in {counted(about['examples'], 'example')}"
        text = f" Its text: {about['text']}" if "text" in about else ""
        console.print(plain(f"{line}; promised: {', '.join(points)}.{text}"), soft_wrap=True)
        _show_causes(record["causes"], console)
    for entry in record.get("set_aside", ()):
        text = f" Its text: {entry['text']}" if "text" in entry else ""
        line = f"Found but set aside, so not protected: rule {entry['rule']}, {entry['why']}.{text}"
        console.print(plain(line), soft_wrap=True)
    if not reasons:
        return
    texts = ["text"] if other == "secret_id" and "text" in reasons[0] else []
    ids = ["example_id"] if other == "example" else []
    table = Table(other.removesuffix("_id"), *(["id"] if ids else []), "why", "characters", *texts, box=SIMPLE_HEAD)
    for column in table.columns:
        column.overflow = "fold"  # wrap a cell that is too wide instead of cutting it
    for reason in reasons[:top]:
        span = f"{reason['begin']} to {reason['end']}" if reason["begin"] >= 0 else ""
        cells = (str(reason[other]), *(reason[name] or "" for name in ids), reason["reason"], span)
        cells += tuple(reason[name] for name in texts)
        table.add_row(*map(plain, cells))
    console.print(table)
    if len(reasons) > top:
        console.print(
            f"The first {top:,} of {counted(len(reasons), 'reason')}; --top or --json show more.", highlight=False
        )


def set_aside_record(found: SetAside) -> Record:
    """What a rule found and set aside; only the owner who has its text asks for it."""
    return {"set_aside": {"rule": found.rule, "why": found.why, "text": found.text, "examples": list(found.examples)}}


def show_set_aside(record: Record, console: Console, *, top: int) -> None:
    """Print why a text was set aside, and in which examples it is."""
    about = record["set_aside"]
    examples: list[int] = about["examples"]
    listed = ", ".join(map(str, examples[:top])) + (", …" if len(examples) > top else "")
    line = f"Rule {about['rule']} found this text and set it aside, so it is not protected: {about['why']}."
    console.print(plain(f"{line} It is in {counted(len(examples), 'example')}: {listed}."), soft_wrap=True)


def redact_record(redacted: Redacted, output: Path) -> Record:
    """What hush redact wrote."""
    return asdict(redacted) | {"output": str(output)}


def show_redacted(record: Record, console: Console) -> None:
    """Print what was written and what was left out."""
    line = (
        f"Wrote {counted(record['rows'], 'text')} to {record['output']}, {record['skeletons']:,} of them with "
        f"{counted(record['slots'], 'slot')} in place of secrets."
    )
    console.print(plain(line), soft_wrap=True)
    if record["left_out"]:
        line = f"Left out {counted(record['left_out'], 'example')}: secret as a whole."
        console.print(plain(line), soft_wrap=True)
    line = "Only you can read the file. Unprotected does not mean published: what no rule found is in it."
    console.print(plain(line), soft_wrap=True)
