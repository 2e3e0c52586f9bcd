"""The notebooks of the documentation run from the top, and show what they showed when they were committed, in kind."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def beside(name: str) -> ModuleType:
    """A program that lies beside the notebooks."""
    spec = importlib.util.spec_from_file_location(name, NOTEBOOKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def committed(name: str) -> dict[str, Any]:
    return json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cell: Any) -> list[list[str]]:
    """What a cell shows: streams by name, everything else by its forms."""
    return [[output["name"]] if "name" in output else sorted(output["data"]) for output in cell["outputs"]]


def test_there_are_two() -> None:
    assert NAMES == ["fine-tuning", "planning"]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_committed_as_it_ran_from_the_top_without_warnings(name: str) -> None:
    cells = code_cells(committed(name))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    shown = [kind for cell in cells for kind in kinds(cell)]
    assert sum("image/png" in kind for kind in shown) >= 2
    assert ["stderr"] not in shown


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_and_shows_what_it_shows_in_the_repository(name: str, tmp_path: Path) -> None:
    done = beside("renew").run(NOTEBOOKS / f"{name}.ipynb", tmp_path)
    for before, after in zip(code_cells(committed(name)), code_cells(done), strict=True):
        assert kinds(before) == kinds(after), "".join(before["source"])


def test_a_cell_that_raises_is_an_error(tmp_path: Path) -> None:
    import nbformat
    from nbclient.exceptions import CellExecutionError

    broken = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("assert 1 == 2")])
    nbformat.write(broken, tmp_path / "broken.ipynb")
    with pytest.raises(CellExecutionError, match="AssertionError"):
        beside("renew").run(tmp_path / "broken.ipynb", tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_holds_every_text_every_line_of_code_and_every_picture(name: str) -> None:
    notebook = committed(name)
    page = beside("as_pages").page(notebook)
    for cell in notebook["cells"]:
        assert "".join(cell["source"]) in page
    pictures = sum("image/png" in kind for cell in code_cells(notebook) for kind in kinds(cell))
    assert page.count("](data:image/png;base64,") == pictures
    assert page.count("```") % 2 == 0
