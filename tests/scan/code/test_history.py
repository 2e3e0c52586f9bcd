"""Contributors agree with git: commits with git shortlog, changes of each file with its git log."""

import re
from collections import Counter
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from small_repositories import ANA, BO, CAI, commit, git, new_repository, write

from hush.errors import InvalidInput
from hush.scan.code.history import Author, History, read_history

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
        log = git(busy, "log", "--follow", "--diff-filter=d", "--no-merges", "--format=%aN <%aE>", "--", path)
        authors = [history.authors[number] for number in history.author_E[changes_of(history, path)]]
        assert Counter(f"{author.name} <{author.email}>" for author in authors) == Counter(log.splitlines())
    assert "sub/ü\tb\n.py" in history.paths
    assert len(changes_of(history, "d.py")) == 2, "it was another's before it was moved"


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


def authors_of(history: History, path: str) -> set[str]:
    return {history.authors[who].email for who in history.shares(since=None, of="commits")[path]}


@pytest.mark.parametrize("lines", [True, False])
def test_a_file_stays_its_authors_wherever_it_is_moved_also_from_another_branch(tmp_path: Path, lines: bool) -> None:
    text = "".join(f"line {number}\n" for number in range(40))
    folder = new_repository(tmp_path, {"old/a.py": text})
    git(folder, "switch", "--quiet", "--create", "side")
    commit(folder, {"old/a.py": f"{text}more\n"}, author=CAI, day="2024-03-01")  # later than the first move
    git(folder, "switch", "--quiet", "main")
    for place in ("new", "newer"):
        (folder / place).mkdir()
        git(folder, "mv", "old/a.py" if place == "new" else "new/a.py", f"{place}/a.py")
        write(folder, {f"{place}/a.py": f"{place}\n{text}"})  # moved and changed at once
        commit(folder, {}, author=BO, day="2024-02-01")
    git(folder, "merge", "--quiet", "--no-edit", "side", author=BO, day="2024-04-01")
    assert (folder / "newer" / "a.py").read_text().endswith("more\n")
    history = read_history(folder, lines=lines)
    assert authors_of(history, "newer/a.py") == {"ana@acme.com", "bo@acme.com", "cai@acme.com"}
    if lines:
        shares = history.shares(since=None, of="lines")["newer/a.py"]
        assert max(shares, key=lambda who: shares[who]) == history.authors.index(Author("Ana", "ana@acme.com"))


def test_a_file_that_a_merge_brings_in_is_of_its_author_and_others_are_not(tmp_path: Path) -> None:
    folder = new_repository(tmp_path, {"a.py": "1\n2\n3\n4\n5\n"})
    git(folder, "switch", "--quiet", "--create", "side")
    commit(folder, {"a.py": "0\n1\n2\n3\n4\n5\n", "b.py": "b\n"})
    git(folder, "switch", "--quiet", "main")
    commit(folder, {"a.py": "1\n2\n3\n4\n5\n6\n"})
    git(folder, "merge", "--quiet", "--no-commit", "side")
    commit(folder, {"lib/c.py": "c\n"}, author=BO)
    history = read_history(folder)
    assert authors_of(history, "lib/c.py") == {"bo@acme.com"}
    assert authors_of(history, "a.py") == authors_of(history, "b.py") == {"ana@acme.com"}
    assert as_shortlog(history) == shortlog(folder)


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
