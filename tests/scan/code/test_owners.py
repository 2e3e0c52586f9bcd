"""CODEOWNERS as GitHub documents it; for patterns with the same meaning in .gitignore, git agrees."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pathspec import GitIgnoreSpec
from small_repositories import write

from hush.errors import InvalidInput
from hush.scan.code.history import Owners

# The examples of GitHub's documentation, with what it says of each.
DOCUMENTED = r"""
*       @global-owner1 @global-owner2
*.js    @js-owner #This is an inline comment.
*.go docs@example.com
*.txt @octo-org/octocats
/build/logs/ @doctocat
docs/*  docs@example.com
apps/ @octocat
/docs/ @doctocat
/scripts/ @doctocat @octocat
**/logs @octocat
/apps/ @octocat
/apps/github
/apps/github/both @doctocat
"""


@pytest.mark.parametrize(
    ("path", "owners"),
    [
        ("README", ("@global-owner1", "@global-owner2")),
        ("a/b/c.js", ("@js-owner",)),
        ("a/b.go", ("docs@example.com",)),
        ("x.txt", ("@octo-org/octocats",)),
        ("build/logs/a/b", ("@octocat",)),
        ("sub/build/x", ("@global-owner1", "@global-owner2")),
        ("docs/deep/a.md", ("@doctocat",)),
        ("sub/apps/x.go", ("@octocat",)),
        ("scripts/logs/x", ("@octocat",)),
        ("deeply/nested/logs/x.js", ("@octocat",)),
        ("apps/x", ("@octocat",)),
        ("apps/github/x", ()),
        ("apps/github", ()),
        ("apps/github/both/x", ("@doctocat",)),
    ],
)
def test_the_documented_examples(path: str, owners: tuple[str, ...]) -> None:
    assert Owners.parse(DOCUMENTED).of(path) == owners


@pytest.mark.parametrize(
    ("pattern", "meant", "not_meant"),
    [
        ("docs/*", ["docs/a.md"], ["docs/sub/a.md", "x/docs/a.md"]),
        ("/a*", ["ab", "a/b"], ["b/a"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "x/a/b"]),
        ("a/**/z", ["a/z", "a/b/z", "a/b/c/z/q"], ["a/zz"]),
        ("with\\ space", ["with space", "x/with space/y"], ["with"]),
        ("*.p?", ["a.py", "b/c.pl/d"], ["a.p"]),
        ("a.b", ["a.b"], ["axb"]),
        ("/", [], ["a", "a/b"]),
        ("Case", ["Case"], ["case"]),
    ],
)
def test_patterns(pattern: str, meant: list[str], not_meant: list[str]) -> None:
    owners = Owners.parse(f"{pattern} @me")
    assert [path for path in (*meant, *not_meant) if owners.of(path)] == meant


def test_lines_that_github_leaves_out_are_left_out_and_counted() -> None:
    text = "* @all\n!a.py @x\n[ab].py @x\nc.py nobody\n# comment\n\nd.py @me # why\n"
    owners = Owners.parse(text)
    assert owners.skipped == (2, 3, 4)
    assert [owners.of(path) for path in ("a.py", "c.py", "d.py")] == [("@all",), ("@all",), ("@me",)]


NAMES = st.sampled_from(["a", "b", "ab", "x.py"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)
SEGMENTS = st.sampled_from(["a", "b", "a*", "*.py", "?", "**"])
PATTERNS = st.builds(
    lambda head, middle, last, tail: head + "/".join([*middle, last]) + tail,
    st.sampled_from(["", "/"]),
    st.lists(SEGMENTS, max_size=2),
    st.sampled_from(["a", "b", "a*", "*.py", "?"]),  # not "*", where GitHub differs on purpose
    st.sampled_from(["", "/"]),
)


@given(st.lists(PATTERNS, min_size=1, max_size=3), PATHS)
def test_the_last_match_wins_and_patterns_mean_what_they_do_in_gitignore(patterns: list[str], path: str) -> None:
    owners = Owners.parse("\n".join(f"{pattern} @owner{number}" for number, pattern in enumerate(patterns)))
    matching = [
        number for number, pattern in enumerate(patterns) if GitIgnoreSpec.from_lines([pattern]).match_file(path)
    ]
    assert owners.of(path) == ((f"@owner{matching[-1]}",) if matching else ())


def test_the_first_place_that_has_the_file_counts(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no CODEOWNERS.*\.github/CODEOWNERS"):
        Owners.read(tmp_path)
    for place in ("docs/CODEOWNERS", "CODEOWNERS", ".github/CODEOWNERS"):
        write(tmp_path, {place: f"* @{place.split('/')[0].strip('.')}"})
        assert Owners.read(tmp_path).of("a") == (f"@{place.split('/')[0].strip('.')}",)


def test_owners_that_are_not_text_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"CODEOWNERS": b"* @caf\xe9"})
    with pytest.raises(InvalidInput, match="CODEOWNERS cannot be read: it is not UTF-8"):
        Owners.read(tmp_path)
