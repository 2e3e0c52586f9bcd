"""The page as a file: harmless whatever it is given, silent about texts, the same every time."""

import base64
import hashlib
import json
import re
import stat
import subprocess
import sys
import tomllib
import zlib
from collections import Counter
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_plans import AUDIT, LARGE, TRAINING, large_plan, small_plan

from hush.audit.statistics import Success
from hush.audit.verdict import Attempt, judge
from hush.errors import InvalidInput
from hush.numbers import rounded_down
from hush.protection import Protection
from hush.report import page as page_module
from hush.report.markup import at_most
from hush.report.numbers import MethodNoise
from hush.report.report import Report
from hush.scan.reasons import OwnerFiles
from hush.scan.result import Scan
from hush.secret_table import Secrets
from hush.weights import frontier

METHODS = [
    MethodNoise(name="KL (the paper), all data", noise_multiplier=30.0, kept_weight=1.0, bound="kl"),
    MethodNoise(name="blow-up (hush)", noise_multiplier=2.0, kept_weight=0.9, bound="blowup", chosen=True),
]
HOSTILE = (
    '</script><script>alert("1")</script>', "<img src=x onerror=alert(1)>", "a&lt;b", "@green", "two\nlines",
    "\N{RIGHT-TO-LEFT OVERRIDE}abc", '" onmouseover="alert(1)', "{{7*7}}",
)  # fmt: skip


class Elements(HTMLParser):
    """Counts elements, and collects what scripts hold and where links lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.policy = ""
        self._inside: dict[str, str | None] | None = None
        self.blocks: dict[str, str] = {}
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given_ = dict(attrs)
        self.tags[f"{tag} {sorted(given_)}"] += 1
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]
        if given_.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(given_["content"])
        self._inside = given_ if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._inside is None:
            return
        if "id" in self._inside:
            self.blocks[str(self._inside["id"])] = data
        else:
            self.scripts.append(data)
        self._inside = None


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megabytes that these tests need not parse."""
    monkeypatch.setattr(page_module, "_plotly", lambda: "var Plotly;")


def unpacked(page: str) -> bytes:
    """What the table's block of bytes holds."""
    return zlib.decompress(base64.b64decode(Elements(page).blocks["rows"]))


def scan_of(texts: list[str]) -> Scan:
    plan = small_plan()
    protections = [Protection(1e-10, 1e-3)] * len(texts)
    return Scan(
        incidence=plan.incidence,
        secrets=Secrets(protections, ids=plan.secret_ids, texts=texts),
        rules=(("words", 5), ("tokens", len(texts) - 5)),
    )


@pytest.mark.usefixtures("without_plotly")
@settings(max_examples=15)
@given(words=st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(min_size=1)), min_size=12, max_size=12, unique=True))
def test_no_word_from_outside_changes_what_the_page_is_made_of(words: list[str]) -> None:
    ids = tuple(words)
    audit = AUDIT | {"rows": [row | {"name": word} for row, word in zip(AUDIT["rows"], words, strict=False)]}
    training = [row | {"run": words[place % 2]} for place, row in enumerate(TRAINING)]
    plain = [row | {"run": "ab"[place % 2]} for place, row in enumerate(TRAINING)]
    hostile = Report(plan=renamed(ids), title=words[0], folder=words[1], audit=audit, training=training).page()
    harmless = Report(plan=small_plan(), title="t", folder="f", audit=AUDIT, training=plain).page()
    assert Elements(hostile).tags == Elements(harmless).tags
    assert Elements(hostile).scripts == Elements(harmless).scripts


def renamed(ids: tuple[str, ...]) -> Any:
    plan = small_plan()
    return replace(plan, **{field.name: getattr(plan, field.name) for field in fields(plan)} | {"secret_ids": ids})


def test_the_policy_names_exactly_the_scripts_of_the_page_and_forbids_every_request() -> None:
    found = Elements(Report(plan=small_plan(), audit=AUDIT).page())
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in found.scripts]
    assert len(digests) == 2
    allowed = re.search(r"script-src ([^;]*);", found.policy)
    assert allowed is not None
    assert allowed[1] == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert found.policy.startswith("default-src 'none';")
    assert all(link.startswith("#") or link == "data:," for link in found.links)


@pytest.mark.usefixtures("without_plotly")
def test_texts_are_in_the_file_only_if_asked_for_and_then_for_the_owner_alone(tmp_path: Path) -> None:
    texts = [f"hunter{place}two" for place in range(12)]
    for asked in (False, True):
        path = tmp_path / f"{asked}.html"
        Report(plan=small_plan(), scan=scan_of(texts), show_text=asked).write(path)
        page = path.read_text()
        assert ("hunter3two" in unpacked(page).decode("latin-1")) == asked
        assert "hunter" not in page
        assert ("Contains the texts of secrets" in page) == asked
        assert bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)) == (not asked)


@pytest.mark.usefixtures("without_plotly")
@pytest.mark.parametrize(
    ("given", "is_owners"), [({}, False), ({"audit": AUDIT}, True), ({"show_text": True}, True)], ids=str
)
def test_only_the_owners_page_says_how_the_scan_came_to_its_pairs(
    tmp_path: Path, given: dict[str, Any], is_owners: bool
) -> None:
    owner = OwnerFiles(tmp_path)
    owner.write_counts(skipped={"mail.jsonl": 417}, inherited=523)
    scan = replace(scan_of(["x"] * 12), owner=owner, skipped=417, inherited=523)
    page = Report(plan=small_plan(), scan=scan, **given).page()
    assert ("523 of them through copies; skipped rows: 417" in page) == is_owners
    assert f"in {scan.incidence.num_entries} pairs of example and secret" in page


@pytest.mark.usefixtures("without_plotly")
def test_texts_without_an_owners_side_and_scans_of_another_graph_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="owner's side"):
        Report(plan=small_plan(), show_text=True).write(tmp_path / "a.html")
    with pytest.raises(InvalidInput, match="another graph"):
        Report(plan=small_plan(secrets=13), scan=scan_of(["x"] * 12)).write(tmp_path / "a.html")
    assert not list(tmp_path.iterdir())


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    pages = []
    for name in ("a", "b"):
        path = tmp_path / name
        Report(plan=small_plan(), audit=AUDIT, training=TRAINING, noise=METHODS).write(path)
        pages.append(path.read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.usefixtures("without_plotly")
def test_what_is_not_given_is_left_out_and_the_page_says_how_to_get_it() -> None:
    plan = small_plan()
    swept = frontier(plan.incidence, prior=1e-10, ceiling=1e-3, batch_size=20, rounds=50, settings=[1.0, 2.0])
    parts: dict[str, dict[str, Any]] = {
        "frontier": {"frontier": swept}, "noise": {"noise": METHODS}, "training": {"training": TRAINING},
        "audit": {"audit": AUDIT}, "scan": {"scan": scan_of(["x"] * 12)},
    }  # fmt: skip
    bare = Report(plan=plan).page()
    for name, given_ in parts.items():
        assert f'<section id="{name}"' not in bare
        assert f'<section id="{name}"' in Report(plan=plan, **given_).page()
    assert all(
        how in bare for how in ("hush frontier", "compare the methods", "evaluations.jsonl", "hush audit", "hush scan")
    )
    whole = Report(plan=plan, **{key: value for given_ in parts.values() for key, value in given_.items()}).page()
    assert '<section id="missing"' not in whole
    assert "hush verify PLAN\n" in whole
    titles = re.findall(r'<h2 id="[a-z]+-title">(.+?)</h2>', whole)
    missing = re.findall(r"<li>([^:<]+): ", bare[bare.index('<section id="missing"') :])
    assert missing == [title for title in titles if f">{title}</h2>" not in bare]
    docs = Path(__file__).parents[2] / "docs"
    listed = (docs / "running.md").read_text().partition("### report, output")[2]
    assert re.findall(r"^\| \*(.+?)\* \|", listed, re.MULTILINE) == titles
    first_look = (docs / "quickstart.md").read_text().partition("**The report.**")[2].partition("\n\n")[0]
    assert set(re.findall(r"\*([^*]+)\*", " ".join(first_look.split()))) <= set(titles)


@pytest.mark.usefixtures("without_plotly")
def test_a_plan_without_secrets_has_a_page_too() -> None:
    from hush.incidence import Incidence
    from hush.plan import make_plan

    empty = Incidence.from_pairs([], [], num_examples=9, num_secrets=0)
    page = Report(plan=make_plan(empty, prior=1e-10, ceiling=1e-3, batch_size=2, rounds=5)).page()
    assert "no secrets" in page
    assert '<section id="secrets"' not in page


@pytest.mark.usefixtures("without_plotly")
def test_a_mark_and_a_failed_audit_stand_at_the_top() -> None:
    plan = small_plan()
    marked = replace(plan.certificate, marks=("insecure_seed was set",))
    hit = Attempt(
        attack="naming", name="s-1", prior=1e-4, certified=2e-4, ceiling=1e-3, measured=Success(hits=1, runs=1)
    )
    verdict = judge([hit])
    record = {"verdict": verdict.status, "level": verdict.level, "rows": [row.to_dict() for row in verdict.rows]}
    page = Report(plan=plan, certificate=marked, audit=record).page()
    top = page[: page.index("<nav")]
    assert "insecure_seed was set" in top
    assert "The audit failed" in top
    assert "Not a certificate" not in Report(plan=plan).page()
    closest = "The closest secret reaches"  # what was planned is not what was trained
    assert closest not in Report(plan=plan, certificate=marked).page()
    assert closest in Report(plan=plan).page()


@pytest.mark.usefixtures("without_plotly")
def test_the_audit_of_another_run_is_refused() -> None:
    """Its verdict would stand over a model that nobody attacked."""
    plan = small_plan()
    certificate = replace(plan.certificate, fingerprints={**plan.certificate.fingerprints, "model": "a" * 64})
    stated = {"model": "a" * 64, "noise_multiplier": plan.training_noise_multiplier, "rounds": plan.rounds}
    assert "Kept" in Report(plan=plan, certificate=certificate, audit=AUDIT | stated).page()
    for other in ({"model": "b" * 64}, {"noise_multiplier": 9.5}, {"rounds": 1}):
        with pytest.raises(InvalidInput, match="about another run"):
            Report(plan=plan, certificate=certificate, audit=AUDIT | stated | other).page()


@pytest.mark.parametrize("record", [{}, {"rows": 3}, {"rows": ["x"]}])
def test_what_is_no_audit_is_refused(record: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="hush audit"):
        Report(plan=small_plan(), audit=record).page()


@pytest.mark.usefixtures("without_plotly")
def test_sections_of_ones_own_come_first() -> None:
    own = page_module.Section(name="mine", link="Mine", title="My part", html="<p>words</p>\n")
    page = Report(plan=small_plan(), sections=[own]).page()
    assert page.index('<section id="mine"') < page.index('<section id="curve"')
    assert page.index('<a href="#mine">') < page.index('<a href="#curve">')


@pytest.mark.usefixtures("without_plotly")
def test_a_run_looks_as_it_is_told_to() -> None:
    page = Report(plan=small_plan(), training=TRAINING, looks={"hush": ("@purple", "longdash", "star")}).page()
    drawn = json.loads(Elements(page).blocks["plots"])
    for name in ("training-0", "training-1"):
        looks = {trace["name"]: trace["line"]["color"] for trace in drawn[name]["data"]}
        assert looks == {"no protection": "@green", "hush": "@purple"}


def planted(scan: Scan, *, stray: bool = False) -> Any:
    """The scan's graph with two canaries after it; stray: one of them also in an example of the scan's."""
    from hush.incidence import Incidence
    from hush.plan import make_plan

    graph = scan.incidence
    secret = np.repeat(np.arange(12), graph.examples_per_secret)
    example = np.concatenate([graph.example_of_entry, [300, 301, 301, *([0] if stray else [])]])
    larger = Incidence.from_pairs(
        example, np.concatenate([secret, [12, 12, 13, *([13] if stray else [])]]), num_examples=302, num_secrets=14
    )
    ids = (*scan.secrets.ids, "canary-0", "canary-1")
    return make_plan(larger, prior=1e-10, ceiling=1e-3, batch_size=20, rounds=50, secret_ids=ids)


@pytest.mark.usefixtures("without_plotly")
def test_a_scan_fits_a_plan_with_canaries_after_it() -> None:
    scan = scan_of([f"hunter{place}two" for place in range(12)])
    page = Report(plan=planted(scan), scan=scan, show_text=True).page()
    assert "2 canaries were planted after the scan" in page
    assert "hunter3two" in unpacked(page).decode("latin-1")
    with pytest.raises(InvalidInput, match="another graph"):
        Report(plan=planted(scan, stray=True), scan=scan).page()
    with pytest.raises(InvalidInput, match="lacks some secrets"):
        Report(plan=renamed(tuple(f"t-{place}" for place in range(12))), scan=scan, show_text=True).page()


def test_what_the_page_is_made_of_is_in_the_wheel() -> None:
    """A wheel holds everything in the package's folder that git does not ignore, and nothing narrows that."""
    root = Path(__file__).parents[2]
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build == {"targets": {"wheel": {"packages": ["src/hush"]}}}
    assets = [root / "src/hush/report/assets" / name for name in (*page_module.SCRIPTS, "report.css")]
    assert all(path.is_file() for path in assets)
    ignored = subprocess.run(["git", "check-ignore", *assets], cwd=root, capture_output=True, text=True, check=False)
    assert not ignored.stdout


def test_a_missing_plotly_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(InvalidInput, match="a report needs plotly, which is not installed; pip install plotly"):
        Report(plan=small_plan()).page()


def test_a_hundred_thousand_secrets_stay_far_below_fifteen_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    Report(plan=large_plan()).write(path)
    size = path.stat().st_size
    assert size < 15e6
    layout = json.loads(Elements(path.read_text()).blocks["rows-layout"])
    assert layout["rows"] == LARGE


@pytest.mark.usefixtures("without_plotly")
@pytest.mark.parametrize(
    ("audit", "said"),
    [
        (None, "Not on this page"),  # it may have been made: whoever shares a page leaves it out
        (AUDIT, "Kept"),
        (AUDIT | {"verdict": "model not judged"}, "Plan simulated, model not judged"),
    ],
)
def test_the_headline_says_of_an_audit_what_is_known(audit: dict[str, Any] | None, said: str) -> None:
    page = Report(plan=small_plan(), audit=audit).page()
    assert f'<p class="big">{said}</p>' in page
    assert "No attack was run" not in page


@pytest.mark.usefixtures("without_plotly")
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_a_simulation_says_what_the_promises_need_and_saves_no_more_for_it(scale: float) -> None:
    plan = replace(small_plan(), noise_scale=scale)
    page = Report(plan=plan, noise=METHODS).page()
    assert f"need up to {rounded_down(30.0 / plan.noise_multiplier, 3)} times the noise." in page
    assert (f"all posteriors below, need a noise of {at_most(plan.noise_multiplier)}." in page) == (scale != 1)
    assert ("Not a certificate" in page) == (scale != 1)
