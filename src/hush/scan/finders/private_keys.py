"""Private keys in a text, whole or in pieces: PEM of every kind, PGP, and PuTTY's own format; for the credentials rule.

A key that was cut is found in each of its pieces: by its first line, by its last one, and between them as text that is
nothing but wrapped base64.
"""

import re
from collections.abc import Iterator

__all__ = ["private_keys"]

EDGE = re.compile(  # a first or a last line, framed by dashes or only mentioned
    r"(?P<lead>-{4,5} ?)?"
    r"(?P<line>(?:BEGIN|END) (?P<kind>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)|PuTTY-User-Key-File-\d+)"
    r"(?P<trail> ?-{4,5})?"
)
LONGEST = 20_000  # characters, more than a key of 16,384 bits takes: what is farther apart belongs to two keys
WRAPPED = re.compile(r"\s*[A-Za-z0-9+/]{60,76}\s")  # a full line: 64 in PEM and PGP, 70 in OpenSSH, at most 76 in MIME
BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
CHECKSUM = re.compile(r"=[A-Za-z0-9+/]{4}")  # the line before the last one in PGP
FEWEST = 3  # lines of a middle piece
KINDS = (re.compile("[a-z]"), re.compile("[A-Z]"), re.compile("[0-9]"))  # no digests in hex, no sequences of genes


def private_keys(text: str) -> Iterator[tuple[int, int]]:
    """The characters of every key that is whole, and of what shows of others: a first line, a last one, a middle."""
    opened: dict[str, re.Match[str]] = {}  # by kind, the first line whose last one may still come
    for match in EDGE.finditer(text):
        if not (match["kind"] and match["lead"] and match["trail"]):
            yield match.span("line")
            continue
        first = opened.pop(match["kind"], None)
        if match["line"].startswith("BEGIN"):
            opened[match["kind"]] = match
        elif first is not None and match.end() - first.start() <= LONGEST:
            yield first.start(), match.end()
            continue
        else:
            yield match.span("line")
        if first is not None:
            yield first.span("line")
    yield from (match.span("line") for match in opened.values())
    if WRAPPED.match(text) and _is_middle([line for line in text.split() if not CHECKSUM.fullmatch(line)]):
        yield len(text) - len(text.lstrip()), len(text.rstrip())


def _is_middle(lines: list[str]) -> bool:
    """Whether lines are base64 of one length, the last one maybe shorter."""
    lengths, content = list(map(len, lines)), "".join(lines)
    return (
        len(lines) >= FEWEST
        and set(lengths[:-1]) == {max(lengths)}
        and BASE64.fullmatch(content) is not None
        and all(kind.search(content) for kind in KINDS)
    )
