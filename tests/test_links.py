"""Every relative link of the README, the documentation and the other pages of the repository leads somewhere.

Anchors are made as the site makes them; GitHub makes the same ones for the headings that are linked here.
"""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from markdown.extensions.toc import slugify

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    {*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks/README.md", ROOT / "experiments/README.md"}
)

CODE = re.compile(r"^( *)(```|~~~).*?^\1\2\s*$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(\s*<?(?P<target>[^)\s>]+)>?[^)]*\)|(?:src|href)=\"(?P<attribute>[^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(?P<text>.+?)(?: *\{#(?P<id>[\w-]+)\})? *#*$", re.MULTILINE)


def targets(page: str) -> list[str]:
    """What a page links to, code aside."""
    found = LINK.finditer(CODE.sub("", page))
    return [link["target"] or link["attribute"] for link in found]


def anchors_of(page: str) -> set[str]:
    """Names of a page's headings; one that repeats gets a number."""
    names: set[str] = set()
    for heading in HEADING.finditer(re.sub(r"^( *)```.*?^\1```\s*$", "", page, flags=re.MULTILINE | re.DOTALL)):
        name = heading["id"] or slugify(re.sub(r"[`*_]|\]\([^)]*\)|\[", "", heading["text"]), "-")
        names.add(
            name if name not in names else next(f"{name}_{i}" for i in range(1, 99) if f"{name}_{i}" not in names)
        )
    return names


@cache
def anchors(path: Path) -> frozenset[str]:
    return frozenset(anchors_of(path.read_text()))


def problem(page: Path, target: str) -> str | None:
    """What is wrong with a relative link, None if it leads somewhere."""
    place, _, anchor = target.partition("#")
    path = (page.parent / unquote(place)).resolve() if place else page
    if not path.is_relative_to(ROOT) or not path.exists():
        return f"{target}: there is no {path}"
    if page.is_relative_to(ROOT / "docs") and not path.is_relative_to(ROOT / "docs"):
        return f"{target}: the site holds docs/ alone"
    if anchor and path.suffix == ".md" and anchor not in anchors(path):
        return f"{target}: {path.name} has no heading #{anchor}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    relative = [target for target in targets(page.read_text()) if not re.match(r"[a-z]+:", target)]
    assert [found for target in relative if (found := problem(page, target))] == []


def test_every_page_of_the_documentation_is_in_its_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    listed = set(re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.md)$", text, re.MULTILINE))
    sources = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]  # notebooks become pages
    assert listed == {path.relative_to(ROOT / "docs").with_suffix(".md").as_posix() for path in sources}


def test_the_reader_of_links_sees_what_a_reader_sees() -> None:
    page = (
        "# A title\n## Why `this`?\n## Why this?\n[one](a.md#b) ![two](c.svg)\n`[three](d.md)`\n"
        '```text\n# no heading\n[four](e.md)\n```\n<img src="f.png">\n[five\nsix](g.md "title")\n'
    )
    assert targets(page) == ["a.md#b", "c.svg", "f.png", "g.md"]
    assert anchors_of(page) == {"a-title", "why-this", "why-this_1"}


@pytest.mark.parametrize("target", ["nothing.md", "../README.md", "faq.md#nothing", "#nothing", "../../outside.md"])
def test_dead_links_are_found(target: str) -> None:
    assert problem(ROOT / "docs" / "limits.md", target)
    assert problem(ROOT / "docs" / "limits.md", "faq.md#is-this-differential-privacy") is None
