"""The pictures of the documentation are what its scripts draw, with numbers computed afresh."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
QUICK = (
    "concepts/flow",
    "concepts/promise",
    "concepts/graph",
    "concepts/round",
    "concepts/curve",
    "concepts/hands",
    "stopping",
)
DRAWN = sorted(path for path in IMAGES.rglob("*.svg") if "studies" not in path.parts)


def draw(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "docs" / "pictures", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def texts(path: Path) -> list[str]:
    """The words and numbers of a picture, which matplotlib notes beside the shapes of their letters."""
    return re.findall(r"<!-- (.*?) -->", path.read_text())


@pytest.fixture(scope="module")
def afresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    done = draw("--output", folder, *QUICK)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", QUICK)
def test_a_picture_says_what_is_computed_today(name: str, afresh: Path) -> None:
    kept = texts(IMAGES / f"{name}.svg")
    assert kept
    assert texts(afresh / f"{name}.svg") == kept


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.stem)
def test_a_picture_is_whole_and_follows_the_theme_of_the_page(path: Path) -> None:
    svg = path.read_text()
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "prefers-color-scheme: dark" in svg
    body = svg.split("</style>", 1)[1]
    stated = set(re.findall(r"(?:fill|stroke|stop-color): (#[0-9a-f]{6}|white|black)\b", body))
    assert stated == set(), "colours that do not follow the theme"


def test_every_picture_is_drawn_by_the_scripts_and_shown_on_a_page() -> None:
    refused = draw("nothing")
    assert refused.returncode == 2
    names = set(re.search(r"there are (.*)", refused.stderr)[1].split(", "))  # type: ignore[index]
    assert names == {path.relative_to(IMAGES).with_suffix("").as_posix() for path in DRAWN}
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert {name for name in names if f"images/{name}.svg" not in pages} == set()
