"""The page in real Chromium: drawn, quick, quiet, and usable with keyboard, narrow screen, dark room and paper."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from chromium import Tab, chromium
from made_plans import AUDIT, LARGE, TRAINING, large_plan, small_plan

from hush.numbers import rounded_up
from hush.plan import Plan
from hush.protection import Protection
from hush.report.markup import at_least, at_most
from hush.report.numbers import MethodNoise
from hush.report.report import Report
from hush.scan.result import Scan
from hush.secret_table import Secrets

ENTER, RIGHT, END = "\ue007", "\ue014", "\ue010"
HOSTILE = "<img src=x onerror=document.title='broken'>"


def hostile_plan() -> Plan:
    plan = small_plan()
    ids = (HOSTILE, *plan.secret_ids[1:-1], "@green</script>")
    return replace(plan, **{field.name: getattr(plan, field.name) for field in fields(plan)} | {"secret_ids": ids})


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """full.html: everything there is to show. large.html: as many secrets as a page has to hold."""
    folder = tmp_path_factory.mktemp("pages")
    rows = [
        {"capacity": kind, "bound": bound, "noise_multiplier": noise / step, "kept_weight": 1 - step / 10}
        for kind, bound, noise in (("accounted", "blowup", 4.0), ("paper", "kl", 90.0))
        for step in (1, 2, 4)
    ]
    noise = [
        MethodNoise(name="KL (the paper), all data", noise_multiplier=90.0, kept_weight=1.0, bound="kl"),
        MethodNoise(name="blow-up (hush)", noise_multiplier=2.0, kept_weight=0.9, bound="blowup", chosen=True),
    ]
    plan = hostile_plan()
    texts = [f"hunter{place}" for place in range(12)]
    secrets = Secrets([Protection(1e-10, 1e-3)] * 12, ids=plan.secret_ids, texts=texts)
    scan = Scan(incidence=plan.incidence, secrets=secrets, rules=(("words", 12),))
    parts = {"noise": noise, "training": TRAINING, "audit": AUDIT, "scan": scan, "frontier": {"rows": rows}}
    Report(plan=plan, **parts).write(folder / "full.html")
    Report(plan=plan, **parts, show_text=True).write(folder / "owner.html")
    Report(plan=large_plan()).write(folder / "large.html")
    return folder


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with chromium() as opened:
        yield opened


def test_every_plot_is_drawn_nothing_is_fetched_and_the_console_stays_empty(tab: Tab, pages: Path) -> None:
    tab.open(pages / "full.html")
    plots = tab.run("return [...document.querySelectorAll('[data-plot]')].map(each => each.dataset.plot)")
    assert plots == ["signal", "frontier", "noise", "curves", "counts", "scatter", "training-0",
                     "training-1", "audit"]  # fmt: skip
    marks = tab.run(
        "return [...document.querySelectorAll('[data-plot]')]"
        ".map(each => each.querySelectorAll('.main-svg .point, .main-svg path.js-line').length)"
    )
    assert all(count > 0 for count in marks), dict(zip(plots, marks, strict=True))
    assert tab.run("return performance.getEntriesByType('resource').length") == 0
    assert tab.complaints() == []


def test_what_ids_say_is_shown_and_never_obeyed(tab: Tab, pages: Path) -> None:
    tab.open(pages / "full.html")
    assert tab.search("onerror") == "1 of 12 secrets"
    assert tab.rows()[0][0].endswith(HOSTILE)
    assert tab.run("return document.querySelectorAll('img').length") == 0
    assert tab.driver.title == "Protection of secrets in training"
    for _ in range(12):  # a point for each secret
        tab.press("#plot-scatter", RIGHT)
        if HOSTILE in tab.find("#figure-scatter .readout").text:
            break
    hovered = "document.querySelector('#plot-scatter .hovertext')?.textContent"
    tab.until(f"return {hovered}.startsWith({json.dumps(HOSTILE)})")  # Plotly shows it a moment after it is asked to
    assert tab.complaints() == []


def test_a_script_that_slipped_in_would_not_run(tab: Tab, pages: Path) -> None:
    tab.ensure(pages / "full.html")
    tab.run(
        "const one = document.createElement('script'); one.textContent = 'window.ran = 1'; document.body.append(one)"
    )
    assert tab.run("return window.ran") is None
    assert any("Content Security Policy" in line for line in tab.complaints())


def test_numbers_in_the_table_are_rounded_as_everywhere_else(tab: Tab, pages: Path) -> None:
    tab.ensure(pages / "full.html")
    rng = np.random.default_rng(0)
    values = [*(10.0 ** rng.uniform(-300, 20, 3000)), 1e-10, 1e-3, 0.07, 1.0, 9999.5, 999950.0, 0.99995, 1e-5, 0.0001]
    assert tab.run("return arguments[0].map(each => numbers.atMost(each))", values) == list(map(at_most, values))
    assert tab.run("return arguments[0].map(each => numbers.atLeast(each))", values) == list(map(at_least, values))
    padded = tab.run("return arguments[0].map(each => numbers.atMost(each, 4, false))", values)
    assert padded == list(map(rounded_up, values))


def test_a_column_is_sorted_both_ways_by_mouse_and_keyboard(tab: Tab, pages: Path) -> None:
    tab.open(pages / "full.html")
    plan = hostile_plan()
    counts = plan.incidence.examples_per_secret
    tab.click("th[data-column=before] button")
    assert [int(row[5]) for row in tab.rows()] == sorted(counts.tolist(), reverse=True)
    tab.press("th[data-column=before] button", ENTER)
    assert [int(row[5]) for row in tab.rows()] == sorted(counts.tolist())
    assert tab.find("th[data-column=before]").get_attribute("aria-sort") == "ascending"
    tab.click("th[data-column=id] button")
    assert [row[0].removeprefix("◆ ") for row in tab.rows()] == sorted(plan.secret_ids)


def test_search_and_the_filter_of_binding_secrets_narrow_the_table(tab: Tab, pages: Path) -> None:
    tab.open(pages / "full.html")
    assert tab.search("S-1") == "2 of 12 secrets"  # s-1 and s-10
    assert tab.search("") == "12 of 12 secrets"
    tab.click("#only-binding")
    binding = hostile_plan().binding
    assert len(tab.rows()) == len(binding)
    assert all(row[0].startswith("◆") for row in tab.rows())


def test_a_point_of_a_plot_leads_to_its_row_by_keyboard(tab: Tab, pages: Path) -> None:
    tab.open(pages / "full.html")
    tab.press("#plot-scatter", RIGHT, RIGHT)
    name = tab.find("#figure-scatter .readout").text.split(",")[0]
    tab.press("#plot-scatter", ENTER)
    assert tab.rows()[0][0].removeprefix("◆ ") == name
    for plot in ("frontier", "noise", "curves", "counts", "audit"):
        tab.press(f"#plot-{plot}", RIGHT)
        assert tab.find(f"#figure-{plot} .readout").text
    assert tab.complaints() == []


def test_a_hundred_thousand_secrets_open_and_answer_at_once(
    tab: Tab, pages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = tab.open(pages / "large.html")
    assert tab.run("return document.querySelectorAll('#secrets-rows tbody tr').length") < 100
    begin = time.perf_counter()
    assert tab.search("-09999") == f"10 of {LARGE:,} secrets"
    searched = time.perf_counter() - begin
    tab.search("")
    begin = time.perf_counter()
    tab.click("th[data-column=after] button")
    sorted_ = time.perf_counter() - begin
    tab.press("#secrets-rows", END)
    tab.until(f"return document.querySelector('#secrets-rows [aria-rowindex=\"{LARGE + 1}\"]') !== null")
    time.sleep(0.2)  # rows that come and go must not push the table away from where it was scrolled to
    plan = large_plan()
    falling = np.lexsort([-(plan.posterior / plan.ceiling).max(axis=1), -large_after()])  # equal ones as they were
    last = [plan.secret_ids[secret] for secret in falling[-5:]]
    assert [row[0].removeprefix("◆ ") for row in tab.rows()[-5:]] == last
    size = (pages / "large.html").stat().st_size
    measured = (
        f"{LARGE:,} secrets: {size / 1e6:.1f} MB, open {seconds:.2f} s, search {searched:.2f} s, sort {sorted_:.2f} s"
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{measured}\n")
    assert tab.complaints() == []


def test_the_table_opens_with_the_secrets_closest_to_their_ceilings(tab: Tab, pages: Path) -> None:
    tab.open(pages / "large.html")
    plan = large_plan()
    closest = np.argsort(-(plan.posterior / plan.ceiling).max(axis=1), kind="stable")[:20]
    assert [row[0].removeprefix("◆ ") for row in tab.rows()[:20]] == [plan.secret_ids[secret] for secret in closest]
    assert tab.find("th[data-column=share]").get_attribute("aria-sort") == "descending"


def large_after() -> np.ndarray:
    plan = large_plan()
    return np.add.reduceat(plan.weights[plan.incidence.example_of_entry], plan.incidence.offset_S[:-1])


@pytest.mark.parametrize("page", ["full.html", "large.html"])
def test_a_narrow_screen_never_scrolls_sideways(tab: Tab, pages: Path, page: str) -> None:
    tab.open(pages / page, width=360)
    tab.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert tab.run("return document.documentElement.scrollWidth") <= 360
    wide = tab.run("return [...document.querySelectorAll('.main-svg')].map(each => each.getBoundingClientRect().right)")
    assert max(wide) <= 360


CUT_HEADERS = """
return [...document.querySelectorAll("thead th")].filter(head => {
  const words = document.createRange(), box = head.getBoundingClientRect();
  words.selectNodeContents(head.querySelector("button") || head);
  const text = words.getBoundingClientRect();
  const clipped = [head, ...head.children].some(each => each.scrollWidth > each.clientWidth);
  return clipped || text.left < box.left || text.right > box.right || text.top < box.top || text.bottom > box.bottom;
}).map(head => head.textContent)"""


@pytest.mark.parametrize("width", [400, 1000, 1280])
@pytest.mark.parametrize("page", ["full.html", "owner.html"])
def test_no_table_header_is_cut(tab: Tab, pages: Path, page: str, width: int) -> None:
    tab.open(pages / page, width=width)
    tab.run("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    for column in ("share", "after"):  # the arrow of a sorted column needs room too
        tab.click(f"th[data-column={column}] button")
        assert tab.run(CUT_HEADERS) == []


TORN_PLOTS = """
const kept = each => ["breakAfter", "breakInside"].every(name => getComputedStyle(each)[name] === "avoid");
const together = each => kept(each) || (each.matches("h2, h3") && getComputedStyle(each).breakAfter === "avoid");
const torn = [];
for (const plot of document.querySelectorAll(".plot")) {
  const section = plot.closest("section"), heading = section.querySelector("h2");
  const caption = plot.closest("figure").querySelector("figcaption");
  const first = section.querySelector(".plot") === plot;
  const start = first ? heading : plot.closest("figure").querySelector("h3") || plot;
  for (let each = plot; each !== section; each = each.parentElement)
    for (let before = each.previousElementSibling; before; before = before.previousElementSibling) {
      if (before.matches("figure, .rows")) break;
      if (!together(before)) torn.push(`${plot.id}: ${before.tagName}`);
    }
  if (!kept(plot)) torn.push(plot.id);
  const height = caption.getBoundingClientRect().bottom - start.getBoundingClientRect().top;
  if (height > arguments[0]) torn.push(`${plot.id}: ${height} px do not fit on a page`);
}
return torn"""


@pytest.mark.parametrize("page", ["full.html", "large.html"])
def test_on_paper_headings_stay_with_their_plots(tab: Tab, pages: Path, page: str) -> None:
    """No break is allowed from the heading of a section to the caption of its first plot, and these fit on a page."""
    tab.open(pages / page, width=720)  # A4 between margins of 1 cm, at 96 dots per inch
    tab.run("dispatchEvent(new Event('beforeprint'))")
    tab.emulate_paper()
    assert tab.run(TORN_PLOTS, 1040) == []
    assert tab.run(CUT_HEADERS) == []
    assert tab.run("return document.documentElement.scrollWidth") <= 720


def test_dark_and_light_follow_the_reader_even_while_the_page_is_open(tab: Tab, pages: Path) -> None:
    light = lightness(tab, pages, dark=False)
    dark = lightness(tab, pages, dark=True)
    assert light["body"] > 200 > 60 > dark["body"]
    assert light["tick"] < 80 < 180 < dark["tick"]
    tab.prefer(dark=False)
    tab.until("return document.querySelector('#plot-frontier').layout.font.color === '#1d2127'")


def lightness(tab: Tab, pages: Path, *, dark: bool) -> dict[str, float]:
    tab.open(pages / "full.html", dark=dark)
    body, tick = tab.run(
        "return [getComputedStyle(document.body).backgroundColor,"
        "getComputedStyle(document.querySelector('#plot-frontier .xtick text')).fill]"
    )
    return {
        name: sum(int(part) for part in colour[4:-1].split(",")[:3]) / 3
        for name, colour in (("body", body), ("tick", tick))
    }


def test_paper_gets_light_plots_and_the_first_rows(tab: Tab, pages: Path) -> None:
    tab.open(pages / "large.html", dark=True)
    tab.run("dispatchEvent(new Event('beforeprint'))")
    assert tab.run("return document.querySelector('#plot-counts').layout.font.color") == "#1d2127"
    assert len(tab.rows()) == 40
    assert f"The first 40 of {LARGE:,}" in tab.find("#rows-note").text
    tab.run("dispatchEvent(new Event('afterprint'))")
    assert tab.run("return document.querySelector('#plot-counts').layout.font.color") == "#e7eaee"
    assert "first 40" not in tab.find("#rows-note").text


def test_texts_stand_in_the_owners_table_alone(tab: Tab, pages: Path) -> None:
    tab.open(pages / "full.html")
    assert tab.run("return document.documentElement.textContent.includes('hunter')") is False
    assert all("hunter" not in cell for row in tab.rows() for cell in row)
    tab.open(pages / "owner.html")
    assert tab.search("hunter7") == "1 of 12 secrets"
    assert tab.rows()[0][-1] == "hunter7"
