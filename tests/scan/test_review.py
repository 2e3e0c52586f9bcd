"""The review page: all content is escaped, it loads nothing, and it shows no secret text unless asked."""

import json
import re
import stat
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hush.scan import Scan, review, scan
from hush.scan.review import Table, histogram_of, page, review_html, write_review

TOKEN = "hunter2-Zq81x"
VOID = {"meta", "input"}
NASTY = "<img src=x onerror=alert(1)>\"'&</td></script>"


class Reader(HTMLParser):
    """An independent reading of a page: its tables, and every tag and attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._title = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.tables[self._title].append([])
        if tag in ("td", "th"):
            self.tables[self._title][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "h2":
            self.tables[self._title] = []

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["h2"]:
            self._title = data
        elif "td" in self.open or "th" in self.open:
            self.tables[self._title][-1][-1] += data


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def scanned(folder: Path, rows: list[dict[str, Any]], **more: Any) -> Scan:
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    rules = {
        "defaults": {"prior": 1e-10, "ceiling": 1e-3},
        "rules": [
            {"name": "keys", "find": "literals", "values": [TOKEN, "nowhere"]},
            {"name": "team", "find": "fields", "column": "team", "public_names": True},
        ],
    }
    return scan(path, rules, id_column="id", **more)


names = st.text(st.characters(exclude_categories=("Cs", "Cc")) | st.sampled_from("<>&\"'"), min_size=1).filter(
    lambda name: name == name.strip() and name
)


@settings(max_examples=40)
@given(team=names, name=names, source=names)
@example(team=NASTY, name="a", source="a")
@example(team="a", name=NASTY, source=NASTY)
def test_whatever_names_hold_the_page_says_it_as_text(team: str, name: str, source: str) -> None:
    with TemporaryDirectory() as folder:
        found = scanned(
            Path(folder), [{"id": name, "team": team, "text": "a"}, {"id": "b", "team": None, "text": TOKEN}]
        )
        plain = read(review_html(found, source="x"))
        reader = read(review_html(found, source=source))
    secrets, pairs = reader.tables["Secrets"], reader.tables["Who contains what, and why"]
    assert sorted(row[0] for row in secrets[1:]) == sorted(["keys-000000", "keys-000001", f"team:{team}"])
    assert [name, f"team:{team}", "column team"] in [row[1:4] for row in pairs]
    # Names add no tag: the page has the same ones as for any other.
    assert [tag for tag, _ in reader.seen] == [tag for tag, _ in plain.seen]


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    html = review_html(scanned(tmp_path, [{"id": "http", "team": NASTY, "text": TOKEN}]), source=NASTY)
    reader = read(html)
    policy = next(attributes["content"] for tag, attributes in reader.seen if "http-equiv" in attributes)
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    loading = {"src", "href", "srcset", "action", "data", "poster"}
    assert not any(loading & set(attributes) for _, attributes in reader.seen)
    assert not re.search(r"url\(|@import|https?://", html)
    assert [tag for tag, _ in reader.seen].count("script") == 1


def test_texts_of_secrets_are_shown_only_when_asked_for(tmp_path: Path) -> None:
    found = scanned(tmp_path, [{"id": "a", "team": None, "text": f"x {TOKEN} y"}])
    assert TOKEN not in review_html(found, source="data")
    asked = read(review_html(found, source="data", show_text=True))
    assert asked.tables["Secrets"][1][-1] == TOKEN
    assert asked.tables["Who contains what, and why"][1][1:] == [
        "a",
        "keys-000000",
        "literal 1 of the list",
        "2 to 15",
        TOKEN,
    ]


def test_tables_agree_with_the_scan(tmp_path: Path) -> None:
    rows = [
        {"id": f"e{n}", "team": "core" if n % 2 else None, "text": f"{TOKEN if n < 3 else '-'} {n}"} for n in range(10)
    ]
    found = scanned(tmp_path, rows)
    tables = read(review_html(found, source="data")).tables
    counts = {row[0]: int(row[2]) for row in tables["Secrets"][1:]}
    assert counts == dict(zip(found.secrets.ids, found.incidence.examples_per_secret.tolist(), strict=True))
    assert [row[2] for row in tables["Secrets"][1:]] == ["5", "3", "0"]  # the most widespread first
    assert len(tables["Who contains what, and why"]) - 1 == found.incidence.num_entries
    assert tables["Examples with most secrets"][1][:2] == ["1", "e1"]


def test_what_is_left_out_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = scanned(tmp_path, [{"id": f"e{n}", "team": "core", "text": "-"} for n in range(4)])
    monkeypatch.setattr(review, "MAX_PAIRS_SHOWN", 3)
    monkeypatch.setattr(review, "MAX_SECRETS_SHOWN", 2)
    html = review_html(found, source="data")
    assert "The first 3 rows; all of them are in reasons.parquet." in html
    assert "2 of 3, the most widespread; all of them are in public/secrets.parquet." in html
    assert len(read(html).tables["Who contains what, and why"]) == 4


def test_the_file_is_its_owners_alone_and_never_replaced(tmp_path: Path) -> None:
    found = scanned(tmp_path, [{"id": "a", "team": "core", "text": "-"}])
    write_review(found, tmp_path / "review.html", source="data")
    assert stat.S_IMODE((tmp_path / "review.html").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_review(found, tmp_path / "review.html", source="data")


def test_numbers_sort_as_numbers() -> None:
    html = page("t", warning="", tiles=[], tables=[Table(title="T", columns=("a", "b"), rows=[("x", 12000), ("y", 7)])])
    assert [attributes.get("data-value") for tag, attributes in read(html).seen if tag == "td"] == [
        None,
        "12000",
        None,
        "7",
    ]
    assert read(html).tables["T"][1:] == [["x", "12,000"], ["y", "7"]]


@given(counts=st.lists(st.integers(0, 10**6), max_size=50))
def test_every_count_falls_into_exactly_one_bin(counts: list[int]) -> None:
    bins = histogram_of(np.array(counts, dtype=np.int64))
    assert sum(bins.count) == len(counts)
    for least, most, count in zip(bins.least, bins.most, bins.count, strict=True):
        assert count == sum(least <= each <= most for each in counts)
    assert not bins.count or (bins.count[0] and bins.count[-1])
