"""The credentials rule: keys, tokens and passwords as the detectors of `detect-secrets` know them, line by line.

Detectors of a fixed format (a cloud's access key, a private key) count wherever they fire. The guessing ones (entropy,
words like "password" before a quoted value) are filtered as that library does: no identifiers, sequences, templates,
references or values without a letter. Comments that allow a value (``pragma: allowlist``) change nothing here. Nothing
is verified over the network.

Private keys in a text, whole or in pieces: PEM of every kind, PGP, and PuTTY's own format; for the credentials rule.

A key that was cut is found in each of its pieces: by its first line, by its last one, and between them as text that is
nothing but wrapped base64.
"""

import difflib
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, final

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.scan.hits import DeclaredSecret, Hits, SpanList, occurrences, pickled_fields

__all__ = ["Credentials", "private_keys"]


KEY_BOUNDARY = re.compile(  # a first or a last line, framed by dashes or only mentioned
    r"(?P<lead>-{4,5} ?)?"
    r"(?P<line>(?:BEGIN|END) (?P<kind>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)|PuTTY-User-Key-File-\d+)"
    r"(?P<trail> ?-{4,5})?"
)
MAX_KEY_CHARACTERS = (
    20_000  # characters, more than a key of 16,384 bits takes: what is farther apart belongs to two keys
)
FULL_BASE64_LINE = re.compile(
    r"\s*[A-Za-z0-9+/]{60,76}\s"
)  # a full line: 64 in PEM and PGP, 70 in OpenSSH, at most 76 in MIME
BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
CHECKSUM = re.compile(r"=[A-Za-z0-9+/]{4}")  # the line before the last one in PGP
MIN_MIDDLE_LINES = 3  # lines of a middle piece
CHARACTER_CLASSES = (
    re.compile("[a-z]"),
    re.compile("[A-Z]"),
    re.compile("[0-9]"),
)  # no digests in hex, no sequences of genes


def private_keys(text: str) -> Iterator[tuple[int, int]]:
    """The characters of every key that is whole, and of what shows of others: a first line, a last one, a middle."""
    opened: dict[str, re.Match[str]] = {}  # by kind, the first line whose last one may still come
    for match in KEY_BOUNDARY.finditer(text):
        if not (match["kind"] and match["lead"] and match["trail"]):
            yield match.span("line")
            continue
        first = opened.pop(match["kind"], None)
        if match["line"].startswith("BEGIN"):
            opened[match["kind"]] = match
        elif first is not None and match.end() - first.start() <= MAX_KEY_CHARACTERS:
            yield first.start(), match.end()
            continue
        else:
            yield match.span("line")
        if first is not None:
            yield first.span("line")
    yield from (match.span("line") for match in opened.values())
    if FULL_BASE64_LINE.match(text) and _is_middle([line for line in text.split() if not CHECKSUM.fullmatch(line)]):
        yield len(text) - len(text.lstrip()), len(text.rstrip())


def _is_middle(lines: list[str]) -> bool:
    """Whether lines are base64 of one length, the last one maybe shorter."""
    lengths, content = list(map(len, lines)), "".join(lines)
    return (
        len(lines) >= MIN_MIDDLE_LINES
        and set(lengths[:-1]) == {max(lengths)}
        and BASE64.fullmatch(content) is not None
        and all(kind.search(content) for kind in CHARACTER_CLASSES)
    )


PRIVATE_KEYS = "PrivateKeyDetector"  # whose list of first lines is short: hush knows more of them by itself
LINE = re.compile(r"[^\r\n]+")
# What some detectors hand over is not the credential: a group of their pattern that holds the kind of token alone, or
# the match with what stands around it. Of the whole match, this is the credential: its group, or all if there is none.
CREDENTIAL_IN_MATCH = {
    "ArtifactoryDetector": re.compile(r"\w+"),
    "AzureStorageKeyDetector": re.compile(r"=(.+)"),
    "GitHubTokenDetector": re.compile(r".+"),
    "GitLabTokenDetector": re.compile(r".+"),
    "NpmDetector": re.compile(r"_authToken=\s*([\w-]+)"),
}
# Patterns that share out a run of spaces in all ways among three places: hours for a line that is padded with some
# thousand of them. They ask for a space or none, never for two, and their credentials hold none.
SLOW_ON_SPACES = ("CloudantDetector", "IbmCloudIamDetector", "IbmCosHmacDetector", "SoftlayerDetector")
SPACE_RUN = re.compile("  +")


@final
@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What these detectors find, by the names of their classes or of what they detect; all of them if None.

    A secret's key is the credential. A private key is found with all its lines if both its ends are in one example;
    where it is cut, each piece is found (``private_keys``).

    >>> Credentials(detectors=["AWS Access Key", "PrivateKeyDetector"]).detectors
    ('AWSKeyDetector', 'PrivateKeyDetector')
    """

    detectors: Sequence[str] | None = None

    def __post_init__(self) -> None:
        known = _known_detectors()
        if isinstance(self.detectors, str):
            raise InvalidInput("detectors is one string; pass a list of names")
        chosen = (
            list(known.values()) if self.detectors is None else [_looked_up(name, known) for name in self.detectors]
        )
        object.__setattr__(self, "detectors", tuple(dict.fromkeys(chosen)))

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def declared(self) -> Sequence[DeclaredSecret]:
        return ()

    def find(self, block: Block) -> Hits:
        from detect_secrets.settings import transient_settings

        found = SpanList()
        # A line's detectors look into the settings of the process: here, those that verify nothing.
        with transient_settings({"plugins_used": [{"name": name} for name in self.detectors or ()]}):
            for example, text in enumerate(block.strings):
                for line in LINE.finditer(text):
                    for name, value in self._values(line[0]):
                        for at in occurrences(text, value, *line.span()):
                            found.add(example, at, at + len(value), value, f"detector {name}")
                for begin, end in private_keys(text) if PRIVATE_KEYS in (self.detectors or ()) else ():
                    found.add(example, begin, end, text[begin:end], "detector Private Key")
        return found.hits()

    def _values(self, line: str) -> Iterator[tuple[str, str]]:
        """What a line holds: the detector's name and the credential."""
        if line.isspace():
            return
        for plugin, guesses, needs in self._plugins:
            if needs is not None and not needs.search(line):
                continue
            for value in _matched(plugin, line):
                if value and not (guesses and _is_no_secret(value, line, plugin)):
                    yield plugin.secret_type, value

    @cached_property
    def _plugins(self) -> list[tuple[Any, bool, re.Pattern[str] | None]]:
        """The detectors, whether each only guesses, and what a line must hold for it to find anything."""
        from detect_secrets.core.plugins.initialize import from_plugin_classname
        from detect_secrets.plugins.base import RegexBasedDetector
        from detect_secrets.plugins.keyword import DENYLIST

        # Patterns that look from every character, or every URL, to the end of its line: much longer than all others.
        needs = {
            "KeywordDetector": re.compile("|".join(DENYLIST), re.IGNORECASE),
            "NpmDetector": re.compile("_authToken="),
        }
        return [
            (plugin, not isinstance(plugin, RegexBasedDetector), needs.get(type(plugin).__name__))
            for plugin in map(from_plugin_classname, (name for name in self.detectors or () if name != PRIVATE_KEYS))
        ]

    def __getstate__(self) -> dict[str, Any]:
        return pickled_fields(self)


def _matched(plugin: Any, line: str) -> Iterator[str | None]:
    """What a detector sees in a line."""
    if type(plugin).__name__ in SLOW_ON_SPACES:
        line = SPACE_RUN.sub(" ", line)
    exact = CREDENTIAL_IN_MATCH.get(type(plugin).__name__)
    if exact is None:
        yield from (secret.secret_value for secret in plugin.analyze_line(filename="", line=line, line_number=0))
        return
    for match in chain.from_iterable(pattern.finditer(line) for pattern in plugin.denylist):
        yield from (credential[credential.lastindex or 0] for credential in exact.finditer(match[0]))


def _known_detectors() -> dict[str, str]:
    """What each detector detects → the name of its class, in the order of the names."""
    shown = warnings.showwarning
    try:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    except ImportError:
        raise InvalidInput(
            'the credentials rule needs the package detect-secrets; run pip install "hush[credentials]"'
        ) from None
    if warnings.showwarning is not shown:
        logging.captureWarnings(False)  # that library sends all warnings of the process to the log when it is imported
    logging.getLogger("detect-secrets").setLevel(logging.CRITICAL + 1)  # it would log what it found
    classes = get_mapping_from_secret_type_to_class()
    return {kind: classes[kind].__name__ for kind in sorted(classes)}


def _looked_up(name: str, known: dict[str, str]) -> str:
    if name in known or name in known.values():
        return known.get(name, name)
    near = difflib.get_close_matches(str(name), [*known, *known.values()], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known.values())}"
    raise InvalidInput(f"one of the detectors does not exist; {hint}")  # its name unsaid: it may be a slip of the paste


def _is_no_secret(value: str, line: str, plugin: Any) -> bool:
    from detect_secrets.filters import heuristic

    return (
        heuristic.is_sequential_string(value)
        or heuristic.is_potential_uuid(value)
        or heuristic.is_likely_id_string(value, line, plugin)
        or heuristic.is_templated_secret(value)
        or heuristic.is_prefixed_with_dollar_sign(value)
        or heuristic.is_indirect_reference(line)
        or heuristic.is_not_alphanumeric_string(value)
    )
