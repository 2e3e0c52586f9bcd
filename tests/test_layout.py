"""The shape of the package: imports point down the flow, no modules import each other, and importing hush is fast."""

import ast
import re
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
    "slots",
    "certificate",
    "data",
    "scan",
    "accounting",
    "weights",
    "plan",
    "ledger",
    "train",
    "audit",
    "report",
    "rehearse",
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


def type_checking_blocks(tree: ast.Module) -> set[ast.AST]:
    """Everything inside ``if TYPE_CHECKING:``, which never runs."""
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    guarded = (node for node in blocks if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING")
    return {inner for node in guarded for statement in node.body for inner in ast.walk(statement)}


def imported_modules(source: str, module: str, modules: set[str], *, is_package: bool = False) -> set[str]:
    """The modules among ``modules`` that a module imports, at its top or inside a function."""
    tree = ast.parse(source)
    skipped = type_checking_blocks(tree)
    package = module.split(".") if is_package else module.split(".")[:-1]
    names: set[str] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            # ``from package import name``: the submodule of this name if there is one, else the package itself.
            names.update(inner if (inner := f"{base}.{alias.name}") in modules else base for alias in node.names)
    return (names & modules) - {module}


def import_cycles(imports: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components with more than one module."""

    def reachable(start: str) -> set[str]:
        seen, waiting = set[str](), [start]
        while waiting:
            new = imports[waiting.pop()] - seen
            seen |= new
            waiting.extend(new)
        return seen

    reached = {module: reachable(module) for module in imports}
    components = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imports
        if module in reached[module]
    }
    return sorted(sorted(component) for component in components)


def test_the_search_for_cycles_sees_local_imports_and_skips_type_checking() -> None:
    modules = {"p", "p.a", "p.b", "p.c"}
    local = "def f():\n    from p.b import x\n"
    guarded = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import a\n"
    assert imported_modules(local, "p.a", modules) == {"p.b"}
    assert imported_modules(guarded, "p.b", modules) == set()
    assert imported_modules("from p import a, name\nfrom . import c\nimport p.b", "p.b", modules) == {"p.a", "p", "p.c"}
    assert imported_modules("from .a import x", "p", modules, is_package=True) == {"p.a"}
    assert import_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]


def test_no_modules_import_each_other() -> None:
    paths = {}
    for path in PACKAGE.rglob("*.py"):
        parts = ("hush", *path.relative_to(PACKAGE).with_suffix("").parts)
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    imports = {
        module: imported_modules(path.read_text(), module, set(paths), is_package=path.name == "__init__.py")
        for module, path in paths.items()
    }
    assert import_cycles(imports) == []


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def loaded_by_command(*arguments: str) -> set[str]:
    """The modules that a command of hush loads, which must succeed."""
    return loaded_after(
        f"import sys; sys.argv = ['hush', *{arguments}]\nimport contextlib, io\nfrom hush.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    try: main()\n"
        "    except SystemExit as ended: assert not ended.code, ended.code"
    )


LEARNING = {"torch", "transformers", "tokenizers", "datasets", "accelerate", "peft", "opacus", "optuna"}
DRAWING = {"matplotlib", "plotly"}


def test_import_hush_loads_nothing_heavy() -> None:
    heavy = {"pyarrow", "scipy", "numpy", "numba", "typer", "rich", "pydantic", "cryptography"}
    assert not (heavy | LEARNING | DRAWING) & loaded_after("import hush")


def test_help_loads_no_numerical_library() -> None:
    heavy = {"pyarrow", "scipy", "numpy", "pydantic", "yaml", "numba", "cryptography"}
    assert not (heavy | LEARNING | DRAWING) & loaded_by_command("--help")


def test_a_dry_run_loads_no_learning_library_for_a_model_that_is_not_there_yet(config_file: Path) -> None:
    heavy = {"numba", "pandas", "ray", "spacy", "presidio_analyzer"}
    assert not (heavy | LEARNING | DRAWING) & loaded_by_command("run", str(config_file), "--dry-run")


def test_a_dry_run_loads_no_modules_of_a_model_whose_files_tell_that_it_fits(config_file: Path, tmp_path: Path) -> None:
    from hush.run.sections import SmallModel
    from hush.run.stage_train import base_model

    base_model(tmp_path, SmallModel(width=8, length=16)).rename(tmp_path / "model")
    text = config_file.read_text()
    (small,) = re.findall(r"^  small: .*$", text, re.MULTILINE)
    config_file.write_text(text.replace(small, "  name: model"))
    heavy = {"transformers.modeling_utils", "torch.distributed.tensor", "torch._dynamo", "torch.distributed.fsdp"}
    loaded = loaded_by_command("run", str(config_file), "--dry-run")
    assert "transformers" in loaded  # its tokenizer was read
    assert not (heavy | DRAWING | {"numba", "datasets", "accelerate", "peft"}) & loaded


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """What ``hush init`` writes, with data in its place."""
    from hush.run.config import template

    (tmp_path / "data.jsonl").write_text('{"text": "the code is AB-1234"}\n')
    path = tmp_path / "hush.yaml"
    path.write_text(template("text"))
    return path


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


def test_the_tree_in_contributing_names_every_module() -> None:
    text = (PACKAGE.parents[1] / "CONTRIBUTING.md").read_text()
    tree = text[text.index("```text\nsrc/hush/") :]
    words = set(re.findall(r"[\w*]+", tree[: tree.index("\n```\n", 5)]))
    named = {module.stem for module in MODULES if module.name != "__init__.py"}
    missing = {name for name in named if name not in words and not name.endswith("_kernels")}
    assert not missing, f"add {sorted(missing)} to the tree in CONTRIBUTING.md"
