"""The company is the same every time, and leaves out what it says."""

import subprocess
from pathlib import Path

import pytest

from hush.demo.company import FULL, PROJECTS, QUICK, chosen_files, standard_library, write_company
from hush.errors import InvalidInput
from hush.scan.code.repository import Globs, Repository
from hush.scan.code.settings import CodeSecret, CodeSettings, Imports
from hush.scan.code.spread import containment

RULE = CodeSettings(
    secrets=tuple(CodeSecret(name=name, paths=paths) for name, paths in PROJECTS.items()), imports=Imports(depth=None)
)


def small_library(folder: Path, *, files: int = 40) -> Path:
    """A made-up library: a secret project, files that import it through others, and files that do not."""
    sources = {f"free{number}.py": f"x = {number}\n" * 40 for number in range(files)}
    sources |= {
        "json/__init__.py": "SECRET = 1\n" * 20,
        "near.py": "import json\n",
        "far.py": "import near\n",
        "test/test_far.py": "import far\n",
        "site-packages/other.py": "x = 1\n",
        "_sysconfigdata_here.py": "x = 1\n",
        "large.py": "x = 1\n" * 2000,
        "empty.py": "",
    }
    for name, text in sources.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_every_project_is_on_this_machine_and_some_are_imported_from_elsewhere() -> None:
    files = chosen_files(standard_library(), largest=FULL.largest)
    assert files == sorted(set(files))
    assert 100 < len(files) < 1000
    for paths in PROJECTS.values():
        assert any(Globs(paths).verdict(name) for name in files), paths


def test_the_choice_depends_on_names_and_sizes_alone(tmp_path: Path) -> None:
    library = small_library(tmp_path / "library")
    files = chosen_files(library, largest=QUICK.largest)
    free = {f"free{number}.py" for number in range(40)}
    assert set(files) == {"json/__init__.py", "near.py", "far.py"} | free
    one = write_company(tmp_path / "one", QUICK, library=library)
    other = write_company(tmp_path / "other", QUICK, library=library)
    names = [
        sorted(path.relative_to(company.folder) for path in company.folder.rglob("*.py")) for company in (one, other)
    ]
    assert names[0] == names[1]
    assert (one.files, one.project_files, one.secret_files) == (43, 1, 3)


def test_what_is_counted_is_what_is_there(tmp_path: Path) -> None:
    company = write_company(tmp_path / "company", FULL)
    left = Repository.open(company.folder)
    assert left.root == company.folder.resolve()  # a repository of its own, wherever it lies
    assert len(left.files) == company.files
    after = containment(left, RULE)
    assert len(after.reasons) == company.secret_files > company.project_files == sum(after.num_own_files)


def test_a_library_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holds 0 sources of the standard library.*run it with a complete Python"):
        chosen_files(small_library(tmp_path, files=0), largest=10)


def test_it_can_lie_inside_another_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("hush-demo/\n")
    library = small_library(tmp_path / "library")
    company = write_company(tmp_path / "hush-demo" / "code-base", QUICK, library=library)
    assert len(Repository.open(company.folder).examples) == company.files
