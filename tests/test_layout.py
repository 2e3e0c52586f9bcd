"""The shape of the package: imports point down the flow, and importing hush stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hush

PACKAGE = Path(hush.__file__).parent

# From the ground up: a stage may import the ones before it and itself.
ORDER = [
    "errors",
    "settings",
    "numbers",
    "arrays",
    "storage",
    "keys",
    "console",
    "protection",
    "secret_table",
    "incidence",
    "certificate",
    "data",
    "scan",
    "accounting",
    "weights",
    "plan",
    "train",
    "audit",
    "report",
    "run",
    "demo",
    "cli",
    "__main__",
]

MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def stage_of(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


def imported_from_hush(source: str, module: Path) -> set[str]:
    """Stages that a module imports, wherever the import stands; ``hush`` where it reaches through the front door."""
    package = ("hush", *module.parent.parts)
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            names.update(f"{base}.{alias.name}" for alias in node.names)
    inside = [name.split(".") for name in names if name.split(".")[0] == "hush"]
    return {[*parts, "hush"][1] for parts in inside} - {"__version__"}


def test_the_reader_of_imports_sees_every_form() -> None:
    source = (
        "import hush.plan\nfrom hush.scan import x\nfrom . import y\nfrom ..errors import z\nimport numpy\nimport hush"
    )
    assert imported_from_hush(source, Path("accounting/law.py")) == {"plan", "scan", "accounting", "errors", "hush"}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_point_down_the_flow_only(module: Path) -> None:
    stage = stage_of(module)
    assert stage in ORDER, f"{module} is in no stage; add it to ORDER where it belongs in the flow"
    allowed = set(ORDER[: ORDER.index(stage) + 1])
    stray = imported_from_hush((PACKAGE / module).read_text(), module) - allowed
    assert not stray, f"{module} may import only {sorted(allowed)}, not {sorted(stray)}"


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_hush_loads_nothing_heavy() -> None:
    heavy = {"torch", "pyarrow", "matplotlib", "scipy", "numpy", "typer", "rich"}
    assert not heavy & loaded_after("import hush")


def test_help_loads_no_numerical_library() -> None:
    heavy = {"torch", "pyarrow", "matplotlib", "scipy", "numpy", "pydantic", "yaml", "numba"}
    statement = "import sys; sys.argv = ['hush', '--help']\nimport contextlib, io\nfrom hush.cli import main\n"
    shown = "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit): main()"
    assert not heavy & loaded_after(statement + shown)


def test_the_ground_floor_loads_no_table_or_plot_library() -> None:
    statement = "import hush; hush.Protection(0.1, 0.2); hush.Secrets([]); hush.Incidence"
    assert not {"torch", "pyarrow", "matplotlib", "scipy"} & loaded_after(statement)


@pytest.mark.parametrize("name", hush.__all__)
def test_every_public_name_exists_and_is_listed(name: str) -> None:
    assert getattr(hush, name) is not None
    assert name in dir(hush)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hush.nothing  # pyright: ignore[reportAttributeAccessIssue]
