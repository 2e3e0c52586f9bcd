"""Patterns for paths match what git matches with the same lines in .gitignore."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_repositories import new_repository, write

from hush.errors import InvalidInput
from hush.scan.code.repository import Globs

NAMES = ["a", "b", "ab", "x.py", "y.sql"]
PATHS = [f"{one}/{two}" for one in NAMES[:3] for two in NAMES] + [f"a/b/{name}" for name in NAMES] + NAMES[3:]
SEGMENTS = st.sampled_from(["a", "b", "*", "a*", "**", "?", "*.py", "[ab]", "x.py"])
PATTERNS = st.builds(
    lambda head, segments, tail: head + "/".join(segments) + tail,
    st.sampled_from(["", "/", "**/"]),
    st.lists(SEGMENTS, min_size=1, max_size=3),
    st.sampled_from(["", "/", "/**"]),
).filter(lambda pattern: not pattern.endswith("**/"))  # which pathspec takes for **, and that means more files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_repository(tmp_path_factory.mktemp("globs"))


@given(st.lists(PATTERNS, min_size=1, max_size=3))
@settings(max_examples=60)
def test_patterns_match_what_git_ignores(folder: Path, patterns: list[str]) -> None:
    write(folder, {".gitignore": "\n".join(patterns) + "\n"})
    asked = ["git", "check-ignore", "--no-index", "--stdin"]
    done = subprocess.run(asked, cwd=folder, input="\n".join(PATHS), capture_output=True, text=True, check=False)
    globs = Globs(tuple(patterns))
    assert [path for path in PATHS if globs.match(path)] == done.stdout.split()


def test_a_pattern_that_is_none_is_refused_without_showing_it() -> None:
    with pytest.raises(InvalidInput, match="not valid") as caught:
        Globs(("ok", "!")).match("a")
    assert "ok" not in str(caught.value)
