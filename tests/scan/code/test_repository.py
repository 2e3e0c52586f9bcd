"""Every file of a repository is an example or listed by kind; none is lost, and no program of the repository runs."""

import os
from pathlib import Path

import pytest
from small_repositories import commit, git, new_repository, plain_folder, write

from hush.errors import InvalidInput
from hush.scan.code import Repository, code_corpus
from hush.scan.code.history import read_history

ODD = {
    "good.py": "x = 1\n",
    "dir with space/ünïcode – name.py": "y = 2\n",
    "new\nline.py": "z = 3\n",
    "picture.bin": b"\x00\x01\x02",
    "latin.py": "# café".encode("latin-1"),
    "huge.txt": "a" * 2000,
    "empty.py": "",
}


def test_each_tracked_file_is_an_example_or_is_passed_over_by_kind(tmp_path: Path) -> None:
    library = new_repository(tmp_path / "library", {"a.py": "1"})
    top = new_repository(tmp_path / "top", ODD)
    git(top, "submodule", "--quiet", "add", str(library), "library")
    (top / "loop").symlink_to(top)
    (top / "gone.py").write_text("gone")
    commit(top, {})
    (top / "gone.py").unlink()
    write(top, {"untracked.py": "never added"})
    repository = Repository.open(top, max_bytes=1000)
    assert repository.files == (
        ".gitmodules",
        "dir with space/ünïcode – name.py",
        "empty.py",
        "good.py",
        "new\nline.py",
    )
    assert repository.passed_over == {
        "binary": ("picture.bin",),
        "link": ("loop",),
        "missing": ("gone.py",),
        "not UTF-8": ("latin.py",),
        "submodule": ("library",),
        "too large": ("huge.txt",),
    }
    tracked = git(top, "ls-files", "-z").split("\0")[:-1]
    assert sorted(tracked) == sorted([*repository.files, *sum(repository.passed_over.values(), ())])
    assert "1 binary" in str(repository)


def test_a_name_that_is_not_utf8_is_passed_over(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "r", {"good.py": "1"})
    try:
        Path(os.fsdecode(os.fsencode(folder) + b"/caf\xe9.py")).write_text("1")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    commit(folder, {})
    repository = Repository.open(folder)
    assert repository.files == ("good.py",)
    assert repository.passed_over == {"odd name": ("caf\\xe9.py",)}


def test_a_plain_folder_is_walked_without_hidden_and_ignored_files_and_without_following_links(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.py": "1",
            "sub/b.py": "2",
            "sub/.secret/c.py": "3",
            "build/d.py": "4",
            "sub/keep.log": "5",
            "x.log": "6",
            ".gitignore": "build/\n*.log\n",
            "sub/.gitignore": "!keep.log\n",
        },
    )
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    repository = Repository.open(tmp_path, use_git=False)
    assert repository.files == ("a.py", "sub/b.py", "sub/keep.log")
    assert repository.passed_over == {
        "hidden": (".gitignore", "sub/.gitignore", "sub/.secret/"),
        "ignored": ("build/", "x.log"),
        "link": ("sub/up",),
    }
    new_repository(tmp_path)
    git(tmp_path, "add", "--all")
    tracked = set(git(tmp_path, "ls-files").split())
    assert {path for path in tracked if "/." not in f"/{path}"} - {"sub/up"} == set(repository.files)


def test_a_link_in_place_of_a_tracked_folder_leads_nowhere(tmp_path: Path) -> None:
    write(tmp_path / "outside", {"a.py": "private"})
    folder = new_repository(tmp_path / "r", {"sub/a.py": "1", "b.py": "2"})
    (folder / "sub" / "a.py").unlink()
    (folder / "sub").rmdir()
    (folder / "sub").symlink_to(tmp_path / "outside")
    assert Repository.open(folder).files == ("b.py",)


def test_a_folder_inside_a_repository_gives_what_is_below_it_under_the_same_ids(tmp_path: Path) -> None:
    top = new_repository(tmp_path, {"a.py": "1\n", "sub/b.py": "2\n", "subway.py": "3\n"})
    inside = Repository.open(top / "sub")
    assert inside.examples == ("sub/b.py",)
    assert inside.files == Repository.open(top).files
    assert list(code_corpus(inside).rows("id")) == [("sub/b.py#L1-L1",)]


def test_an_empty_repository_has_no_examples_and_no_authors(tmp_path: Path) -> None:
    repository = Repository.open(new_repository(tmp_path))
    assert repository.files == ()
    assert read_history(tmp_path).commits() == {}
    with pytest.raises(InvalidInput, match=r"no text file.*git add"):
        code_corpus(repository)
    with pytest.raises(InvalidInput, match="no commit yet"):
        repository.require_history()


def test_a_shallow_clone_is_refused_where_history_counts_and_told_how_to_mend_it(tmp_path: Path) -> None:
    origin = new_repository(tmp_path / "origin", {"a.py": "1"})
    commit(origin, {"a.py": "2"})
    git(tmp_path, "clone", "--quiet", "--depth=1", origin.as_uri(), "clone")
    repository = Repository.open(tmp_path / "clone")
    assert repository.files == ("a.py",)
    with pytest.raises(InvalidInput, match="git fetch --unshallow"):
        repository.require_history()
    git(tmp_path / "clone", "fetch", "--quiet", "--unshallow")
    Repository.open(tmp_path / "clone").require_history()


def test_a_bare_repository_is_refused_with_what_to_do(tmp_path: Path) -> None:
    origin = new_repository(tmp_path / "origin", {"a.py": "1"})
    git(tmp_path, "clone", "--quiet", "--bare", origin.as_uri(), "bare.git")
    with pytest.raises(InvalidInput, match=r"bare repository.*git clone"):
        Repository.open(tmp_path / "bare.git")


def test_a_broken_git_folder_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {".git/HEAD": "nonsense", "a.py": "1"})
    with pytest.raises(InvalidInput, match=r"a \.git that git cannot read"):
        Repository.open(tmp_path)
    with pytest.raises(InvalidInput, match="is not a folder"):
        Repository.open(tmp_path / "nowhere")


def test_a_plain_folder_has_no_history(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no git history"):
        plain_folder(tmp_path, {"a.py": "1"}).require_history()


def test_programs_that_a_repository_names_are_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho run >> {mark}\n")
    program.chmod(0o755)
    folder = new_repository(tmp_path / "r", {"a.py": "1\n", ".gitattributes": "*.py diff=odd filter=odd\n"})
    commit(folder, {"a.py": "2\n"})
    names = "core.fsmonitor core.pager core.editor diff.external diff.odd.command diff.odd.textconv filter.odd.clean "
    for setting in (names + "filter.odd.smudge gpg.program core.sshCommand").split():
        git(folder, "config", setting, str(program))
    git(folder, "config", "log.showSignature", "true")
    hooks = folder / ".git" / "hooks"
    for hook in ("post-index-change", "reference-transaction"):
        (hooks / hook).symlink_to(program)
    mark.unlink(missing_ok=True)
    Repository.open(folder).require_history()
    assert read_history(folder).commits()
    assert not mark.exists()
    git(folder, "status")
    assert mark.exists(), "this repository would run programs, had it been asked in another way"


def test_where_git_is_pointed_elsewhere_it_still_reads_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = new_repository(tmp_path / "other", {"b.py": "1"})
    folder = new_repository(tmp_path / "r", {"a.py": "1"})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))  # as inside a hook
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert Repository.open(folder).files == ("a.py",)


def test_without_git_a_repository_is_refused_and_a_plain_folder_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "plain", {"a.py": "1"})
    folder = new_repository(tmp_path / "r", {"a.py": "1"})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Repository.open(tmp_path / "plain").files == ("a.py",)
    with pytest.raises(InvalidInput, match="install git"):
        Repository.open(folder)


def test_a_file_that_changes_to_something_else_is_named_and_not_shown(tmp_path: Path) -> None:
    repository = plain_folder(tmp_path, {"a.py": "token = 'hunter2'\n"})
    corpus = code_corpus(repository)
    write(tmp_path, {"a.py": b"token = 'hunter2' \xff\n"})
    with pytest.raises(InvalidInput, match=r"a\.py was text and is now not UTF-8") as caught:
        repository.read("a.py")
    assert "hunter2" not in str(caught.value)
    (broken,) = corpus.rows("text")
    assert "a.py" in str(broken)
    assert "hunter2" not in str(broken)
