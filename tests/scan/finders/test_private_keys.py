"""Private keys: whole or cut anywhere, every piece is found, and little else is taken for a piece."""

import base64
import textwrap
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.scan.finders.credentials import KEY_LINE, MAX_KEY_CHARACTERS, MIN_MIDDLE_LINES, private_keys

KINDS = [
    "RSA PRIVATE KEY",
    "PRIVATE KEY",
    "ENCRYPTED PRIVATE KEY",
    "OPENSSH PRIVATE KEY",
    "PGP PRIVATE KEY BLOCK",
]


def key_of(kind: str, content: bytes, width: int, *, indent: str = "", end: str = "\n") -> list[str]:
    """The lines of a key, each with its end."""
    lines = textwrap.wrap(base64.b64encode(content).decode(), width)
    lines += ["=aB1/"] if kind.startswith("PGP") else []
    return [f"{indent}{line}{end}" for line in (f"-----BEGIN {kind}-----", *lines, f"-----END {kind}-----")]


keys = st.builds(
    key_of,
    st.sampled_from(KINDS),
    st.builds(lambda seed, size: Random(seed).randbytes(size), st.integers(0, 999), st.integers(600, 900)),
    st.sampled_from([64, 70, 76]),
    indent=st.sampled_from(["", "    "]),
    end=st.sampled_from(["\n", "\r\n"]),
)


@given(keys, st.data())
def test_a_key_cut_anywhere_is_found_in_every_piece(lines: list[str], data: st.DataObject) -> None:
    least = MIN_MIDDLE_LINES + 1  # of PGP, one may be the checksum
    first = data.draw(st.integers(1, len(lines) - 1 - least))
    last = data.draw(st.integers(first + least, len(lines) - 1))
    pieces = ["".join(lines[begin:end]) for begin, end in ((0, first), (first, last), (last, None))]
    assert all(list(private_keys(piece)) for piece in pieces)
    middle = pieces[1]
    assert [middle[begin:end] for begin, end in private_keys(middle)] == [middle.strip()]


@given(keys, st.text(max_size=20), st.text(max_size=20))
def test_a_whole_key_is_one_key_whatever_stands_around_it(lines: list[str], before: str, after: str) -> None:
    text = f"{before}\n{''.join(lines)}\n{after}"
    whole = "".join(lines).strip()
    assert [text[begin:end] for begin, end in private_keys(text)] == [whole]


@given(keys, st.data())
def test_a_piece_with_an_end_of_the_key_is_found_with_its_content(lines: list[str], data: st.DataObject) -> None:
    """All keys of a kind share the first line and the last: alone they are no secret, and reveal nothing of one."""
    cut = data.draw(st.integers(2, len(lines) - 2))
    for piece in ("".join(lines[:cut]), "".join(lines[cut:])):
        text = f"a first line\n{piece}a last line\n"
        ((begin, end),) = private_keys(text)
        assert text[begin:end] == piece.strip().strip("-")


@given(keys, keys)
def test_a_key_without_its_end_does_not_swallow_the_next_one(cut: list[str], lines: list[str]) -> None:
    text = "".join(cut[:3] + lines)
    first = "".join(cut[:3]).strip().lstrip("-")
    assert sorted(text[begin:end] for begin, end in private_keys(text)) == sorted([first, "".join(lines).strip()])


def test_ends_that_are_far_apart_are_of_two_keys() -> None:
    for between, found in ((MAX_KEY_CHARACTERS // 2, 1), (MAX_KEY_CHARACTERS, 2)):
        text = f"-----BEGIN PRIVATE KEY-----{'x' * between}-----END PRIVATE KEY-----"
        assert len(list(private_keys(text))) == found


HEX = "".join(f"{number:064x}\n" for number in range(9))
GENES = "".join("ACGT" * 15 + "\n" for _ in range(9))
PROSE = "word " * 99
FEW = base64.encodebytes(bytes(range(100))).decode()


@pytest.mark.parametrize("text", [HEX, HEX.upper(), GENES, PROSE, FEW, "", "\n", "x" * 5000])
def test_other_long_lines_are_no_piece_of_a_key(text: str) -> None:
    assert list(private_keys(text)) == []


def test_base64_amid_other_text_is_no_piece_of_a_key() -> None:
    body = base64.encodebytes(bytes(range(256)) * 2).decode()
    assert list(private_keys(body)) == [(0, len(body.strip()))]
    assert list(private_keys(f"an image:\n{body}")) == list(private_keys(f"{body}\nwas an image")) == []


@pytest.mark.parametrize("filler", [" ", "'", "A", "\\n", "a-"])
def test_a_long_line_beside_the_end_of_a_key_is_read_once(filler: str) -> None:
    """In time that grows with the square of its length, this would not end."""
    assert KEY_LINE.fullmatch(filler * 200_000 + "!") is None
