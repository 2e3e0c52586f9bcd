"""Contributors are those that git names: commits agree with git shortlog, changes of each file with its git log."""

import re
from collections import Counter
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_repositories import ANA, BO, CAI, commit, git, new_repository

from hush.errors import InvalidInput
from hush.scan.code.history import History, read_history

MAILMAP = "Ana Lopez <ana@acme.com>\nAna Lopez <ana@acme.com> <ana@home.org>\nBo Berg <bo@acme.com> BoB <bob@old.com>\n"


def shortlog(folder: Path) -> dict[str, int]:
    lines = git(folder, "shortlog", "--summary", "--numbered", "--email", "HEAD").splitlines()
    return {who: int(count) for count, _, who in (line.partition("\t") for line in lines)}


def as_shortlog(history: History) -> dict[str, int]:
    return {f"{author.name} <{author.email}>": count for author, count in history.commits().items()}


def changes_of(history: History, path: str) -> NDArray[np.intp]:
    """The numbers of all changes of a file."""
    return np.flatnonzero(history.path_E == history.paths.index(path))


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several people, some under two names; a merge, a rename, an empty commit, a binary file, odd names."""
    folder = new_repository(tmp_path_factory.mktemp("busy"), {".mailmap": MAILMAP, "a.py": "1\n2\n"})
    commit(folder, {"a.py": "1\n2\n3\n"}, author="Ana <ana@home.org>", day="2024-02-01")
    commit(folder, {"sub/ü\tb\n.py": "x\n", "p.bin": b"\0\1"}, author="BoB <bob@old.com>", day="2024-03-01")
    git(folder, "switch", "--quiet", "--create", "side")
    commit(folder, {"c.py": "c\n"}, author=CAI, day="2024-04-01")
    git(folder, "switch", "--quiet", "main")
    commit(folder, {"a.py": "1\n3\n"}, author=BO, day="2024-04-02")
    git(folder, "merge", "--quiet", "--no-edit", "side", author="Ana <ana@home.org>", day="2024-04-03")
    git(folder, "mv", "c.py", "d.py")
    commit(folder, {}, author="Ünal \x02 O'Neil <u@acme.com>", day="2024-05-01")
    commit(folder, {}, author=CAI, day="2024-05-02")
    return folder


@pytest.mark.parametrize("lines", [True, False])
def test_commits_by_author_are_those_of_git_shortlog(busy: Path, lines: bool) -> None:
    counted = as_shortlog(read_history(busy, lines=lines))
    assert counted == shortlog(busy)
    assert counted["Ana Lopez <ana@acme.com>"] == 3
    assert counted["Bo Berg <bo@acme.com>"] == 1, "mapped by name and address together"


def test_changes_of_each_file_are_those_of_git_log(busy: Path) -> None:
    history = read_history(busy)
    for path in history.paths:
        log = git(
            busy, "log", "--no-renames", "--full-history", "--no-merges", "--format=%aN <%aE>", "--", path
        ).splitlines()
        authors = [history.authors[number] for number in history.author_E[changes_of(history, path)]]
        assert Counter(f"{author.name} <{author.email}>" for author in authors) == Counter(log)
    assert "sub/ü\tb\n.py" in history.paths


def test_lines_are_those_that_each_change_added_where_they_were_asked_for(busy: Path) -> None:
    history = read_history(busy)
    assert history.lines_E is not None
    assert history.lines_E[changes_of(history, "a.py")].tolist() == [0, 1, 2]  # the latest first
    assert history.lines_E[changes_of(history, "p.bin")].tolist() == [0]
    quick = read_history(busy, lines=False)
    assert quick.lines_E is None
    with pytest.raises(InvalidInput, match="lines=True"):
        quick.shares(since=None, of="lines")


def test_shares_are_of_the_changes_since_the_day(busy: Path) -> None:
    history = read_history(busy)

    def shares(since: date | None, of: str) -> dict[str, float]:
        found = history.shares(since=since, of="lines" if of == "lines" else "commits")
        return {history.authors[who].email: share for who, share in found["a.py"].items()}

    assert shares(None, "commits") == {"ana@acme.com": pytest.approx(2 / 3), "bo@acme.com": pytest.approx(1 / 3)}
    assert shares(None, "lines") == {"ana@acme.com": 1.0, "bo@acme.com": 0.0}
    assert shares(date(2024, 2, 1), "commits") == {"ana@acme.com": 0.5, "bo@acme.com": 0.5}
    assert shares(date(2024, 2, 2), "lines") == {"bo@acme.com": 1.0}, "no line was added since, so commits count"
    assert history.shares(since=date(2025, 1, 1), of="commits") == {}


PEOPLE = [ANA, BO, CAI, "ana <ANA@acme.com>", "Bo <ana@acme.com>"]
CHANGES = st.lists(st.tuples(st.sampled_from(PEOPLE), st.sampled_from(["a", "b", "d/c"]), st.booleans()), max_size=8)


@given(CHANGES)
@settings(max_examples=8)
def test_any_history_agrees_with_git_shortlog(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, str, bool]]
) -> None:
    folder = new_repository(tmp_path_factory.mktemp("any"))
    for number, (who, path, two) in enumerate(changes):
        commit(folder, {path: str(number), **({"e": str(number)} if two else {})}, author=who)
    history = read_history(folder)
    assert as_shortlog(history) == (shortlog(folder) if changes else {})
    for shares in history.shares(since=None, of="commits").values():
        assert sum(shares.values()) == pytest.approx(1.0)


def test_a_history_with_a_hole_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    folder = new_repository(tmp_path, {"a.py": "1"})
    commit(folder, {"a.py": "2"})
    oldest = git(folder, "rev-parse", "HEAD~1").strip()
    (folder / ".git" / "objects" / oldest[:2] / oldest[2:]).unlink()
    with pytest.raises(InvalidInput, match=re.compile("git log failed .*git fsck", re.DOTALL)):
        read_history(folder)


def test_dates_that_no_calendar_knows_count_as_recent(tmp_path: Path) -> None:
    folder, odd = new_repository(tmp_path / "repository", {"a.py": "1\n"}), tmp_path / "odd"
    for stamp in ("99999999999999999999", "9223372036854775808", "99999999999999", "-5"):
        (folder / f"{stamp}.py").write_text("1\n")
        git(folder, "add", "--all")
        tree, parent = git(folder, "write-tree").strip(), git(folder, "rev-parse", "HEAD").strip()
        who = f"author {BO} {stamp} +0000\ncommitter {BO} 1 +0000"
        odd.write_text(f"tree {tree}\nparent {parent}\n{who}\n\nodd\n")
        made = git(folder, "hash-object", "-t", "commit", "-w", "--literally", str(odd)).strip()
        git(folder, "reset", "--soft", made)
    history = read_history(folder)
    assert as_shortlog(history) == shortlog(folder) == {ANA: 1, BO: 4}
    recent = history.shares(since=date(2025, 1, 1), of="commits")
    assert len(recent) == 4
