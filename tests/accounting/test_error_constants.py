"""Every constant of an error term names its line on the page of proofs, and every line is used.

In the accountant every small number is looked at; in training, what names a line.
"""

import ast
import re
from pathlib import Path

import pytest

import hush

LABEL = re.compile(r"\((E\d+)\)")
FILES = sorted((Path(hush.__file__).parent / "accounting").glob("*.py"))
TRAINING = sorted((Path(hush.__file__).parent / "train").rglob("*.py"))
PROOFS = Path(__file__).parents[2] / "docs" / "proofs.md"
SMALL = 1e-9  # a smaller literal is an error term or a guard, not a step or a share


def defined_labels() -> set[str]:
    """The labels of lines on the page, which stand in bold; other mentions refer to them."""
    bold = re.findall(r"\*\*(.+?)\*\*", PROOFS.read_text(), re.DOTALL)
    return {label for text in bold for label in LABEL.findall(text)}


def unexplained(source: str) -> list[int]:
    """Lines with a statement that uses EPS or a small literal, and neither it nor the comment above names a label.

    A constant that only affects tightness may say so instead.
    """
    tree, lines = ast.parse(source), source.splitlines()
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    missing: set[int] = set()
    for node in (node for node in ast.walk(tree) if isinstance(node, ast.expr)):
        is_small = isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < abs(node.value) <= SMALL
        if not (is_small or (isinstance(node, ast.Name) and node.id == "EPS" and isinstance(node.ctx, ast.Load))):
            continue
        around = [each for each in statements if each.lineno <= node.lineno <= (each.end_lineno or each.lineno)]
        innermost = min(around, key=lambda each: (each.end_lineno or each.lineno) - each.lineno)
        text = lines[innermost.lineno - 1 : innermost.end_lineno]
        above = lines[innermost.lineno - 2].strip() if innermost.lineno > 1 else ""
        comments = " ".join(line.partition("#")[2] for line in [above if above.startswith("#") else "", *text])
        if not (LABEL.search(comments) or "tightness only" in comments):
            missing.add(innermost.lineno)
    return sorted(missing)


def test_the_reader_of_comments_sees_what_is_missing() -> None:
    source = (
        "A = 1e-12\nB = 1e-12  # (E1)\n# (E2)\nC = 4 * EPS\nD = 1e-300  # tightness only\nE = 4 * EPS  # no label\n"
    )
    assert unexplained(source) == [1, 6]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_error_term_names_its_line_of_the_proofs(path: Path) -> None:
    source = path.read_text()
    assert unexplained(source) == []
    assert set(LABEL.findall(source)) <= defined_labels()


def test_every_labelled_line_of_the_proofs_is_used() -> None:
    named = {label for path in FILES + TRAINING for label in LABEL.findall(path.read_text())}
    assert defined_labels() == named
    assert len(named) >= 30
