"""docs/paper-map.md is complete: every proof is mapped, and everything it names exists."""

import re
from importlib import import_module
from pathlib import Path

import hush.accounting

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (?!statement|---)(?P<cells>.+) \|$", re.MULTILINE)


def rows() -> list[list[str]]:
    """The cells of each row: statement, source, function, test, proof."""
    text = (ROOT / "docs" / "paper-map.md").read_text()
    return [[cell.strip() for cell in match["cells"].split(" | ")] for match in ROW.finditer(text)]


def anchors() -> set[str]:
    """Anchors of the sections of the proofs page."""
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / "proofs.md").read_text(), re.MULTILINE)
    return {heading.lower().replace(" ", "-") for heading in headings}


def test_every_row_has_five_cells() -> None:
    assert rows()
    assert {len(row) for row in rows()} == {5}


def test_every_function_named_exists() -> None:
    for row in rows():
        module, _, name = row[2].strip("`").rpartition(".")
        assert hasattr(import_module(module), name), row[2]


def test_every_test_named_exists() -> None:
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert {row[3].strip("`") for row in rows()} <= defined


def test_every_proof_is_mapped_and_every_mapped_proof_exists() -> None:
    mapped = {re.search(r"proofs\.md#([\w-]+)", row[4])[1] for row in rows()}  # type: ignore[index]
    assert mapped == anchors()


def test_every_public_function_of_the_accountant_is_mapped() -> None:
    mapped = {row[2].strip("`").rpartition(".")[2] for row in rows()}
    assert {name for name in hush.accounting.__all__ if name[0].islower()} <= mapped
