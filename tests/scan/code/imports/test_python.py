"""The import graph of Python agrees with grimp on third-party packages; every form of import and error is covered."""

import importlib.util
from pathlib import Path

import grimp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_repositories import plain_folder

from hush.scan.code.imports import import_graph
from hush.scan.code.imports.python import imported_names, syntax_tree, tolerantly_imported_names
from hush.scan.code.imports.python_modules import Imported, PythonModules
from hush.scan.code.repository import Repository


def installed(package: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@pytest.mark.parametrize("package", ["rich", "requests", "typer", "click", "pygments"])
def test_edge_for_edge_the_graph_is_that_of_grimp(package: str) -> None:
    """Over the modules that grimp knows, which leaves out folders without __init__, and but for imports of oneself."""
    peer = grimp.build_graph(package, cache_dir=None)
    known = frozenset(peer.modules)
    expected = {(one, other) for one in known for other in peer.find_modules_directly_imported_by(one)}
    folder = installed(package)
    files = {f"{package}/{path.relative_to(folder).as_posix()}": path for path in sorted(folder.rglob("*.py"))}
    modules = PythonModules(tuple(files))
    edges: set[tuple[str, str]] = set()
    for file, path in files.items():
        names = imported_names(syntax_tree(path.read_text("utf-8")))
        edges |= {(module_name(file), module_name(target)) for target in modules.imports_of(file, names)}
    inside = {edge for edge in edges if known.issuperset(edge)}
    assert inside == {(one, other) for one, other in expected if one != other}
    assert len(inside) > 50
    assert {one for one, _ in edges - inside} <= {module_name(file) for file in files} - known


@pytest.mark.parametrize("package", ["rich", "click"])
def test_the_tolerant_parser_sees_what_python_sees(package: str) -> None:
    for path in sorted(installed(package).rglob("*.py")):
        text = path.read_text("utf-8")
        strict = {name for name in imported_names(syntax_tree(text)) if name.module != "__future__"}
        assert set(tolerantly_imported_names(text)) == strict


LAYOUT = {
    "src/shop/__init__.py": "X = 1",
    "src/shop/core.py": "X = 1",
    "src/shop/db/__init__.py": "NAME = 1",
    "src/shop/db/table.py": "from ..core import thing",
    "src/shop/all_forms.py": """
import shop.core
import shop.db.table as t, os
from shop import db, core as c
from . import db as d
from .db import table, NAME
from .db.table import *
if TYPE_CHECKING:
    from shop.lazy import x
def late():
    import shop.late
""",
    "src/shop/lazy.py": "X = 1",
    "src/shop/late.py": "from . import missing",
    "tests/test_shop.py": "import helper\nfrom shop.core import x\nimport json",
    "tests/helper.py": "X = 1",
    "scripts/json.py": "import tools.run",
    "tools/run.py": "from tools import other",  # a namespace: no __init__
    "tools/other.py": "from .... import beyond\nfrom .run import x",
}


def test_every_form_of_import_and_layout(tmp_path: Path) -> None:
    graph = import_graph(plain_folder(tmp_path, LAYOUT))
    everything = {"core.py", "db/__init__.py", "db/table.py", "lazy.py", "late.py"}
    assert set(graph.imports["src/shop/all_forms.py"]) == {f"src/shop/{name}" for name in everything}
    assert graph.imports["src/shop/db/table.py"] == ("src/shop/core.py",)
    assert graph.imports["src/shop/late.py"] == ("src/shop/__init__.py",)
    assert graph.imports["tests/test_shop.py"] == ("src/shop/core.py", "tests/helper.py")
    assert graph.imports["scripts/json.py"] == ("tools/run.py",)
    assert graph.imports["tools/run.py"] == ("tools/other.py",)
    assert graph.imports["tools/other.py"] == ("tools/run.py",)
    assert graph.with_errors == ()


def test_of_two_packages_of_one_name_the_own_is_meant_if_they_are_distributions(tmp_path: Path) -> None:
    files = {f"{service}/{path}": "import common.a" for service in ("one", "two") for path in
             ("common/__init__.py", "common/a.py", "app/__init__.py", "app/main.py")}  # fmt: skip
    outside = import_graph(plain_folder(tmp_path / "outside", files))
    assert outside.imports["one/app/main.py"] == ("one/common/a.py", "two/common/a.py"), "the search path is not known"
    files |= {f"{name}/pyproject.toml": f"[project]\nname = '{name}'\ndependencies = []\n" for name in ("one", "two")}
    graph = import_graph(plain_folder(tmp_path / "inside", files))
    assert graph.imports["one/app/main.py"] == ("one/common/a.py",)
    assert graph.imports["two/app/main.py"] == ("two/common/a.py",)


def test_a_module_beside_a_script_does_not_hide_one_of_the_whole_name(tmp_path: Path) -> None:
    files = {
        "billing/core.py": "X = 1",
        "shop/billing.py": "X = 1",  # which is meant by scripts of the folder, if they ask for a name inside
        "shop/one.py": "import billing.core",
        "shop/two.py": "from billing import core",
        "shop/three.py": "from billing import rate",
    }
    graph = import_graph(plain_folder(tmp_path, files))
    assert graph.imports["shop/one.py"] == ("billing/core.py",)
    assert graph.imports["shop/two.py"] == ("billing/core.py", "shop/billing.py")
    assert graph.imports["shop/three.py"] == ("shop/billing.py",)


def test_a_common_name_far_away_is_not_meant(tmp_path: Path) -> None:
    files = {
        "scripts/helper.py": "X = 1",  # a script's folder is for files there
        "old/queue/__init__.py": "X = 1",  # a package with a name of the standard library
        "app/main.py": "import helper, queue",
        "scripts/run.py": "import helper",
        "old/run.py": "import queue",
    }
    graph = import_graph(plain_folder(tmp_path, files))
    assert set(graph.edges) == {("scripts/run.py", "scripts/helper.py"), ("old/run.py", "old/queue/__init__.py")}


@pytest.mark.parametrize(
    "broken",
    [
        "import a\ndef f(:\n    from b import x\n",
        "print 'two'\nimport a, b\n",
        "import a\nimport b\nx = '",
        "import a\nimport b\n" + "(" * 3000 + ")" * 3000,
        "import a\nimport b\n\0",
    ],
    ids=["signature", "python 2", "open string", "too deep", "null"],
)
def test_a_file_with_errors_is_named_and_its_imports_still_count(tmp_path: Path, broken: str) -> None:
    graph = import_graph(plain_folder(tmp_path, {"a.py": "X = 1", "b.py": "X = 1", "c.py": "#" * 8000 + "\n" + broken}))
    assert graph.with_errors == ("c.py",)
    assert graph.imports["c.py"] == ("a.py", "b.py")


def test_imports_in_a_circle_and_of_oneself_end(tmp_path: Path) -> None:
    graph = import_graph(plain_folder(tmp_path, {"a.py": "import b, a", "b.py": "import c", "c.py": "import a"}))
    assert set(graph.edges) == {("a.py", "b.py"), ("b.py", "c.py"), ("c.py", "a.py")}
    assert graph.importers() == {"b.py": ["a.py"], "c.py": ["b.py"], "a.py": ["c.py"]}


IDENTIFIERS = st.sampled_from(["a", "b", "core"])
DOTTED = st.lists(IDENTIFIERS, min_size=1, max_size=3).map(".".join)


@given(st.integers(0, 3), DOTTED | st.just(""), IDENTIFIERS | st.just("*"), st.sampled_from(["{}", "({})", "({},)"]))
def test_both_parsers_read_what_was_written(level: int, module: str, name: str, form: str) -> None:
    if not level and not module:
        module = "a"
    form = "{}" if name == "*" else form
    text = f"from {'.' * level}{module} import {form.format(name)}\nimport {module or 'a'} as z"
    expected = [Imported(level, module, name), Imported(0, module or "a", None)]
    assert imported_names(syntax_tree(text)) == expected
    assert tolerantly_imported_names(text) == expected


def test_a_folder_of_a_repository_still_sees_the_imports_of_the_whole(tmp_path: Path) -> None:
    repository = plain_folder(tmp_path, {"a/x.py": "import b.y", "b/y.py": "X = 1"})
    inside = Repository(
        root=repository.root, files=repository.files, sizes=repository.sizes, below="a/", passed_over={}, tracked=False
    )
    assert import_graph(inside).imports["a/x.py"] == ("b/y.py",)


def test_a_name_that_several_folders_know_equally_well_leads_to_all_of_them(tmp_path: Path) -> None:
    files = {f"{service}/utils/{name}.py": "X = 1" for service in ("one", "two") for name in ("__init__", "core")}
    scripts = {"one/main.py": "import utils.core\n", "tools/run.py": "from utils import core\n"}
    graph = import_graph(plain_folder(tmp_path, files | scripts))
    assert graph.imports["one/main.py"] == ("one/utils/core.py", "two/utils/core.py")
    assert graph.imports["tools/run.py"] == ("one/utils/core.py", "two/utils/core.py")
