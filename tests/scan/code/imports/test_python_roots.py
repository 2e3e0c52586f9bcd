"""Several source roots and distributions in one repository: what Python really imports is in the graph.

The second route is Python itself: a process with a search path that the layout allows runs each import and says which
file it used.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_repositories import plain_folder

from hush.scan.code.imports import import_graph
from hush.scan.code.settings import CodeSecret, CodeSettings, Imports
from hush.scan.code.spread import containment

EXTENDS = '__path__ = __import__("pkgutil").extend_path(__path__, __name__)\n'
DECLARES = "__import__('pkg_resources').declare_namespace(__name__)\n"
LICENCE = "# Licensed to somebody\n# under some terms.\n"


def project(name: str, *requires: str) -> str:
    return f"[project]\nname = {name!r}\ndependencies = {list(requires)!r}\n"


PROVIDERS = {
    **{
        f"providers/{name}/{path}": text
        for name in ("one", "two")
        for path, text in {
            "pyproject.toml": project(f"Air_Flow.{name}", "air-flow-core >= 2; python_version > '3'"),
            "src/air/__init__.py": LICENCE + EXTENDS,
            "src/air/providers/__init__.py": EXTENDS,
            f"src/air/providers/{name}/__init__.py": "VERSION = 1\n",
            f"src/air/providers/{name}/hook.py": "from air import DAG\nfrom air.models import Base\n",
            "tests/unit/__init__.py": "",
            f"tests/unit/{name}/__init__.py": "",
            f"tests/unit/{name}/test_hook.py": f"from air.providers.{name} import hook\nimport air\n",
        }.items()
    },
    "core/pyproject.toml": project("air-flow-core"),
    "core/src/air/__init__.py": EXTENDS + "DAG = 1\n",
    "core/src/air/models.py": "Base = 1\n",
    "tools/run.py": "import air\nfrom air.providers.two.hook import X\nfrom air.providers import one\n",
}


def test_an_import_of_a_shared_package_leads_to_the_file_that_defines_something(tmp_path: Path) -> None:
    """Stubs of the namespace neither count nor hide the package of another root."""
    graph = import_graph(plain_folder(tmp_path, PROVIDERS))
    core = "core/src/air/__init__.py"
    for name in ("one", "two"):
        folder = f"providers/{name}"
        assert graph.imports[f"{folder}/src/air/providers/{name}/hook.py"] == (core, "core/src/air/models.py")
        own = f"{folder}/src/air/providers/{name}/hook.py"
        assert graph.imports[f"{folder}/tests/unit/{name}/test_hook.py"] == (core, own)
    assert graph.imports["tools/run.py"] == (
        core,
        "providers/one/src/air/providers/one/__init__.py",
        "providers/two/src/air/providers/two/hook.py",
    )


def test_a_secret_provider_does_not_spread_by_its_stub(tmp_path: Path) -> None:
    repository = plain_folder(tmp_path, PROVIDERS)
    secret = CodeSecret(name="one", paths=("providers/one/**",))
    contained = containment(repository, CodeSettings(secrets=(secret,), imports=Imports(depth=None)))
    others = {path for path in contained.files_of("one") if not path.startswith("providers/one/")}
    assert others == {"tools/run.py"}


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", False),
        (LICENCE, False),
        ('"""Documentation."""\n', False),
        ("from __future__ import annotations\npass\n", False),
        (EXTENDS, False),
        ("from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n", False),
        ("import pkgutil\n__path__ = pkgutil.extend_path(__path__, __name__)\n", False),
        (
            "try:\n    __import__('pkg_resources').declare_namespace(__name__)\nexcept ImportError:\n    " + EXTENDS,
            False,
        ),
        ("__version__ = '1'\n", True),
        ("__path__ = secret_folders()\n", True),
        ("__path__ = extend_path(__path__, 'other')\n", True),
        ("import os\n", True),
        ("from .core import rate\n", True),
        ("setup()\n", True),
        ("if x:\n    y = 1\n", True),
        ("def f(:\n", True),  # cannot be parsed
    ],
)
def test_a_file_that_defines_nothing_passes_nothing_on(tmp_path: Path, text: str, counts: bool) -> None:
    graph = import_graph(plain_folder(tmp_path, {"shop/__init__.py": text, "main.py": "import shop\n"}))
    assert graph.imports["main.py"] == (("shop/__init__.py",) if counts else ())


def test_a_stub_that_imports_a_file_of_the_repository_passes_it_on(tmp_path: Path) -> None:
    files = {"pkgutil.py": "SECRET = 1\n", "shop/__init__.py": "import pkgutil\n", "main.py": "import shop\n"}
    graph = import_graph(plain_folder(tmp_path, files))
    assert set(graph.edges) == {("main.py", "shop/__init__.py"), ("shop/__init__.py", "pkgutil.py")}


@pytest.mark.parametrize(
    ("importer", "statement", "target"),
    [
        ("main.py", "from pay.proto import invoice_pb2", "pay/proto/__init__.py"),
        ("main.py", "import pay.fast", "pay/__init__.py"),
        ("pay/api.py", "from .proto import invoice_pb2", "pay/proto/__init__.py"),
        ("pay/api.py", "from . import fast", "pay/__init__.py"),
        ("main.py", "from pay import *", None),
        ("main.py", "import pay.proto", None),
    ],
)
def test_an_empty_package_stands_for_its_module_that_is_compiled_or_generated(
    tmp_path: Path, importer: str, statement: str, target: str | None
) -> None:
    files = {"pay/__init__.py": "", "pay/proto/__init__.py": "", importer: statement + "\nX = 1\n"}
    graph = import_graph(plain_folder(tmp_path, files))
    assert graph.imports[importer] == (() if target is None else (target,))


@pytest.mark.parametrize(
    ("importer", "statement"), [("main.py", "from pay import engine"), ("pay/api.py", "from . import engine")]
)
def test_an_empty_module_does_not_hide_the_package_that_defines_its_name(
    tmp_path: Path, importer: str, statement: str
) -> None:
    files = {"pay/__init__.py": "engine = 1\n", "pay/engine/__init__.py": "", importer: statement + "\n"}
    assert import_graph(plain_folder(tmp_path, files)).imports[importer] == ("pay/__init__.py",)


def test_a_stub_does_not_hide_the_source_of_another_root(tmp_path: Path) -> None:
    files = {
        "pyproject.toml": project("top"),
        "lib/pyproject.toml": project("library"),
        "pay/core.pyi": "X: int\n",
        "lib/pay/__init__.py": "",
        "lib/pay/core.py": "X = 1\n",
        "main.py": "import pay.core\n",
    }
    graph = import_graph(plain_folder(tmp_path, files))
    assert graph.imports["main.py"] == ("lib/pay/core.py", "pay/core.pyi")


def test_two_distributions_are_connected_if_a_third_needs_both(tmp_path: Path) -> None:
    names = {"own": (), "other": (), "stranger": (), "all": ("own", "other")}
    files = {f"{name}/pyproject.toml": project(name, *requires) for name, requires in names.items()}
    files |= {f"{name}/src/common.py": "X = 1\n" for name in ("own", "other", "stranger")}
    graph = import_graph(plain_folder(tmp_path, files | {"own/src/main.py": "import common\n"}))
    assert graph.imports["own/src/main.py"] == ("other/src/common.py", "own/src/common.py")


SETUP = "from setuptools import setup\nsetup(name='one', {})\n"
METADATA = {
    "project": ({"pyproject.toml": project("one", "other")}, False),
    "project needs the second": ({"pyproject.toml": project("one", "TWO[extra]>=1")}, True),
    "for tests": ({"pyproject.toml": project("one") + "[dependency-groups]\ntest = ['two']\n"}, True),
    "an extra": ({"pyproject.toml": project("one") + "[project.optional-dependencies]\nx = ['two']\n"}, True),
    "dynamic": ({"pyproject.toml": "[project]\nname = 'one'\ndynamic = ['dependencies']\n"}, True),
    "poetry": ({"pyproject.toml": "[tool.poetry]\nname = 'one'\n[tool.poetry.dependencies]\ntwo = '*'\n"}, True),
    "broken": ({"pyproject.toml": "[project\n"}, True),
    "odd": ({"pyproject.toml": "[project]\nname = 1\ndynamic = 2\ndependencies = 3\n"}, True),
    "a linter": ({"pyproject.toml": "[tool.ruff]\n"}, False),
    "setup.py": ({"setup.py": SETUP.format("install_requires=['other']")}, False),
    "setup.py needs the second": ({"setup.py": SETUP.format("install_requires=['two; x']")}, True),
    "setup.py that computes": ({"setup.py": SETUP.format("install_requires=read()")}, True),
    "setup.py with more": ({"setup.py": SETUP.format("install_requires=['other'], **more")}, True),
    "setup.py that says nothing": ({"setup.py": SETUP.format("version='1'")}, True),
    "setup.cfg": ({"setup.cfg": "[metadata]\nname = one\n[options]\ninstall_requires =\n  other\n  # two\n"}, False),
    "setup.cfg needs": ({"setup.cfg": "[metadata]\nname = one\n[options]\ninstall_requires = two; x\n"}, True),
    "setup.cfg of a file": ({"setup.cfg": "[options]\ninstall_requires = file: x.txt\n"}, True),
}


@pytest.mark.parametrize("name", METADATA)
def test_a_module_of_ones_own_hides_that_of_a_distribution_only_if_none_depends_on_it(
    tmp_path: Path, name: str
) -> None:
    metadata, both = METADATA[name]
    files = {f"one/{path}": text for path, text in metadata.items()} | {
        "two/pyproject.toml": project("two"),
        "one/src/common.py": "X = 1\n",
        "two/src/common.py": "X = 2\n",
        "one/src/main.py": "import common\n",
    }
    expected = ("one/src/common.py", "two/src/common.py") if both else ("one/src/common.py",)
    assert import_graph(plain_folder(tmp_path, files)).imports["one/src/main.py"] == expected


def test_dependencies_count_indirectly_and_in_both_directions(tmp_path: Path) -> None:
    names = ("own", "direct", "indirect", "user", "stranger")
    requires = {"own": ["direct"], "direct": ["indirect"], "user": ["direct"]}
    files = {f"{name}/pyproject.toml": project(name, *requires.get(name, ())) for name in names}
    files |= {f"{name}/src/common.py": "X = 1\n" for name in names}
    graph = import_graph(plain_folder(tmp_path, files | {"own/src/main.py": "import common\n"}))
    reached = {path.partition("/")[0] for path in graph.imports["own/src/main.py"]}
    assert reached == {"own", "direct", "indirect", "user"}


# Random layouts


@dataclass(frozen=True)
class Member:
    """A distribution of a generated repository, or a folder of sources without metadata."""

    folder: str
    root: str
    name: str | None
    requires: tuple[str, ...] | None  # None: cannot be read
    optional: tuple[str, ...] = ()
    modules: dict[str, str] = field(default_factory=dict)  # paths below the root, with texts


NAMESPACES = {"none": None, "extends": EXTENDS, "empty": "", "defines": EXTENDS + "NAME = 1\n"}
DEFINES = "NAME = 1\n"
FOLDERS = ("one", "group/two", "group/three", "four")


@st.composite
def members(draw: st.DrawFn) -> list[Member]:
    chosen: list[Member] = []
    for number, folder in enumerate(FOLDERS[: draw(st.integers(2, 4))]):
        root = folder + draw(st.sampled_from(["/src", "", "/code"]))
        package = f"part{number}"
        stub = NAMESPACES[draw(st.sampled_from(sorted(NAMESPACES)))]
        modules = {f"acme/{package}/__init__.py": draw(st.sampled_from(["", DEFINES]))}
        modules |= {} if stub is None else {"acme/__init__.py": stub}
        modules[f"acme/{package}/core.py"] = DEFINES
        if draw(st.booleans()):
            modules["acme/common.py"] = DEFINES
        if draw(st.booleans()):
            modules["helper/__init__.py"] = draw(st.sampled_from(["", DEFINES]))
            modules["helper/tool.py"] = DEFINES
        others = [f"dist{other}" for other in range(len(FOLDERS)) if other != number]
        requires, optional = (
            tuple(draw(st.lists(st.sampled_from(others), unique=True, max_size=most))) for most in (2, 1)
        )
        kind = draw(st.sampled_from(["project", "project", "dynamic", "none"]))
        chosen.append(
            Member(
                folder=folder,
                root=root,
                name=None if kind == "none" else f"dist{number}",
                requires=None if kind == "dynamic" else requires,
                optional=optional,
                modules=modules,
            )
        )
    return chosen


IMPORTS = (
    "import acme",
    "import acme.common",
    "import helper",
    "import helper.tool",
    "from acme import NAME",
    "from acme import common",
    "from acme.common import NAME",
    "from helper import tool",
    "from helper import NAME",
    "from helper.tool import NAME",
    *(f"import acme.part{number}" for number in range(4)),
    *(f"import acme.part{number}.core" for number in range(4)),
    *(f"from acme import part{number}" for number in range(4)),
    *(f"from acme.part{number} import core" for number in range(4)),
    *(f"from acme.part{number}.core import NAME" for number in range(4)),
)
RELATIVE = (
    "from . import core",
    "from .core import NAME",
    "from .. import common",
    "from .. import NAME",
    *(f"from ..part{number} import core" for number in range(4)),
    *(f"from ..part{number}.core import NAME" for number in range(4)),
)

ORACLE = """
import importlib, json, sys
standard = set(sys.modules)
for line in sys.stdin:
    asked = json.loads(line)
    sys.path[:] = asked["path"]
    answers = []
    for statement, wanted in asked["statements"]:
        for name in set(sys.modules) - standard:
            del sys.modules[name]
        sys.path_importer_cache.clear()
        importlib.invalidate_caches()
        inside = {"__name__": asked["name"], "__package__": asked["name"].rpartition(".")[0]}
        try:
            if inside["__package__"]:
                importlib.import_module(inside["__package__"])
            exec(statement, inside)
        except ImportError:
            continue
        module, name = wanted
        if name is not None and f"{module}.{name}" in sys.modules:
            if getattr(sys.modules[module], name) is sys.modules[f"{module}.{name}"]:
                module = f"{module}.{name}"
        answers.append([statement, getattr(sys.modules[module], "__file__", None)])
    print(json.dumps(answers), flush=True)
"""


@pytest.fixture(scope="module")
def python() -> Iterator[subprocess.Popen[str]]:
    """A process that answers which files imports use."""
    command = [sys.executable, "-I", "-S", "-B", "-c", ORACLE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def wanted_module(statement: str, package: str) -> tuple[str, str | None]:
    words = statement.split()
    if words[0] == "import":
        return words[1], None
    dotted = words[1].lstrip(".")
    level = len(words[1]) - len(dotted)
    parts = package.split(".")[: len(package.split(".")) - level + 1] if level else []
    return ".".join([*parts, *([dotted] if dotted else [])]), words[3]


def connected(one: Member, other: Member, everybody: list[Member]) -> bool:
    """Whether one of two distributions depends on the other, as far as it can be read."""

    def needs(member: Member) -> set[str] | None:
        reached, waiting = {member.name}, [member]
        while waiting:
            member = waiting.pop()
            if member.requires is None:
                return None
            names = {*member.requires, *member.optional}
            new = [each for each in everybody if each.name in names and each.name not in reached]
            reached |= {each.name for each in new}
            waiting += new
        return {name for name in reached if name is not None}

    if one.name is None or other.name is None:
        return False
    first, second = needs(one), needs(other)
    return first is None or second is None or other.name in first or one.name in second


def environment(own: Member, everybody: list[Member], rng: random.Random) -> list[Member]:
    """The own member with all that it always needs, and others, of which no two define the same module unless they are
    connected."""

    def defined(member: Member) -> set[str]:
        return {path for path, text in member.modules.items() if "NAME" in text}

    chosen = [own]
    for member in chosen:  # which grows
        needed = () if own.name is None else member.requires or ()
        chosen += [other for other in everybody if other.name in needed and other not in chosen]
    for member in rng.sample(everybody, rng.randint(0, len(everybody))):
        if member not in chosen and all(
            connected(member, other, everybody) or not defined(member) & defined(other) for other in chosen
        ):
            chosen.append(member)
    return rng.sample(chosen, len(chosen))


@settings(max_examples=40)
@given(members(), st.randoms(use_true_random=False), st.sampled_from(["inside", "tests"]))
def test_every_file_that_python_imports_is_in_the_graph(
    tmp_path_factory: pytest.TempPathFactory,
    python: subprocess.Popen[str],
    everybody: list[Member],
    rng: random.Random,
    place: str,
) -> None:
    number = rng.randrange(len(everybody))
    own = everybody[number]
    statements = [*IMPORTS, *(RELATIVE if place == "inside" else ())]
    user = f"{own.root}/acme/part{number}/user.py" if place == "inside" else f"{own.folder}/tests/user.py"
    name = f"acme.part{number}.user" if place == "inside" else "user"
    files = {f"{member.root}/{path}": text for member in everybody for path, text in member.modules.items()}
    for member in everybody:
        if member.name is not None:
            text = f"[project]\nname = {member.name!r}\ndynamic = ['dependencies']\n"
            if member.requires is not None:
                text = project(member.name, *member.requires)
                text += f"[project.optional-dependencies]\nmore = {list(member.optional)!r}\n"
            files[f"{member.folder}/pyproject.toml"] = text
    folder = tmp_path_factory.mktemp("layout")
    repository = plain_folder(folder, files | {user: "\n".join(statements) + "\n"})
    found = import_graph(repository).imports[user]
    roots = [str(folder / member.root) for member in environment(own, everybody, rng)]
    search_path = roots if place == "inside" else [str(folder / own.folder / "tests"), *roots]
    package = name.rpartition(".")[0]
    asked = [(statement, wanted_module(statement, package)) for statement in statements]
    assert python.stdin is not None
    assert python.stdout is not None
    python.stdin.write(json.dumps({"path": search_path, "name": name, "statements": asked}) + "\n")
    python.stdin.flush()
    for statement, imported in json.loads(python.stdout.readline()):
        if imported is not None:
            path = Path(imported).relative_to(folder).as_posix()
            assert path in found or "NAME" not in files[path], (statement, path)


def test_a_package_that_continues_in_another_root_is_followed_by_relative_imports(tmp_path: Path) -> None:
    files = {
        "one/src/acme/one.py": "from . import two\nfrom .three import X\n",
        "two/src/acme/two.py": "X = 1\n",
        "two/src/acme/three/__init__.py": "X = 1\n",
    }
    graph = import_graph(plain_folder(tmp_path, files))
    assert graph.imports["one/src/acme/one.py"] == ("two/src/acme/three/__init__.py", "two/src/acme/two.py")
