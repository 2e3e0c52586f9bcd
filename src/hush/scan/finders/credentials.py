"""The credentials rule: keys, tokens and passwords that the detectors of `detect-secrets` recognise, line by line.

Detectors of a fixed format (a cloud's access key, a private key) always count. Guessing detectors (entropy, words like
"password" before a quoted value) are filtered as in that library: no identifiers, sequences, templates, references or
values without a letter. Comments that allow a value (``pragma: allowlist``) are ignored. Nothing is verified over the
network.

Private keys (PEM of every kind, PGP, PuTTY's format) are found by hush itself. A key that was cut is found in each of
its pieces: by its first line, by its last line, and between them as text that consists of wrapped base64 only.
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


PRIVATE_KEYS = "PrivateKeyDetector"  # replaced by ``private_keys``, which knows more formats
LINE = re.compile(r"[^\r\n]+")
# Some detectors return something else than the credential: a group with only the kind of the token, or the match with
# its context. These patterns take the credential out of the whole match: their group, or all if they have none.
CREDENTIAL_IN_MATCH = {
    "ArtifactoryDetector": re.compile(r"\w+"),
    "AzureStorageKeyDetector": re.compile(r"=(.+)"),
    "GitHubTokenDetector": re.compile(r".+"),
    "GitLabTokenDetector": re.compile(r".+"),
    "NpmDetector": re.compile(r"_authToken=\s*([\w-]+)"),
}
# Detectors whose patterns backtrack over runs of spaces: hours for a line padded with thousands of them. They match at
# most one space, and their credentials contain none, so runs of spaces are shortened for them.
SLOW_ON_SPACES = ("CloudantDetector", "IbmCloudIamDetector", "IbmCosHmacDetector", "SoftlayerDetector")
SPACE_RUN = re.compile("  +")
KEY_BOUNDARY = re.compile(  # a first or a last line, with or without the dashes around it
    r"(?P<lead>-{4,5} ?)?"
    r"(?P<line>(?:BEGIN|END) (?P<kind>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)|PuTTY-User-Key-File-\d+)"
    r"(?P<trail> ?-{4,5})?"
)
MAX_KEY_CHARACTERS = 20_000  # more than a key of 16,384 bits; lines farther apart belong to two keys
# A full line of base64: 64 characters in PEM and PGP, 70 in OpenSSH, at most 76 in MIME.
FULL_BASE64_LINE = re.compile(r"\s*[A-Za-z0-9+/]{60,76}\s")
BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
CHECKSUM = re.compile(r"=[A-Za-z0-9+/]{4}")  # the second to last line in PGP
MIN_MIDDLE_LINES = 3  # of a piece without first and last line
# A middle piece contains all of these, which rules out hex digests and gene sequences.
CHARACTER_CLASSES = (re.compile("[a-z]"), re.compile("[A-Z]"), re.compile("[0-9]"))


@final
@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Finds what these detectors detect; they are named by class or by type of secret, and None means all of them.

    A secret's key is the credential. A private key is found with all its lines if both ends are in one example; if it
    is cut, each piece is found (``private_keys``).

    >>> Credentials(detectors=["AWS Access Key", "PrivateKeyDetector"]).detectors
    ('AWSKeyDetector', 'PrivateKeyDetector')
    """

    detectors: Sequence[str] | None = None

    def __post_init__(self) -> None:
        known = _known_detectors()
        if isinstance(self.detectors, str):
            raise InvalidInput("detectors is a string; pass a list of names")
        names = known if self.detectors is None else self.detectors
        chosen = [_detector_class(name, known) for name in names]
        object.__setattr__(self, "detectors", tuple(dict.fromkeys(chosen)))

    @property
    def columns(self) -> tuple[str, ...]:
        return ()

    @property
    def declared(self) -> Sequence[DeclaredSecret]:
        return ()

    def find(self, block: Block) -> Hits:
        from detect_secrets.settings import transient_settings

        hits = SpanList()
        # The detectors read process-wide settings; these verify nothing.
        with transient_settings({"plugins_used": [{"name": name} for name in self.detectors or ()]}):
            for example, text in enumerate(block.strings):
                for line in LINE.finditer(text):
                    for name, value in self._values(line[0]):
                        for begin in occurrences(text, value, *line.span()):
                            hits.add(example, begin, begin + len(value), value, f"detector {name}")
                for begin, end in private_keys(text) if PRIVATE_KEYS in (self.detectors or ()) else ():
                    hits.add(example, begin, end, text[begin:end], "detector Private Key")
        return hits.hits()

    def _values(self, line: str) -> Iterator[tuple[str, str]]:
        """The credentials of a line, each with its detector's name."""
        if line.isspace():
            return
        for plugin, guesses, required in self._plugins:
            if required is not None and not required.search(line):
                continue
            for value in _matched(plugin, line):
                if value and not (guesses and _is_false_positive(value, line, plugin)):
                    yield plugin.secret_type, value

    @cached_property
    def _plugins(self) -> list[tuple[Any, bool, re.Pattern[str] | None]]:
        """The detectors, whether each only guesses, and what a line must contain for it to find anything."""
        from detect_secrets.core.plugins.initialize import from_plugin_classname
        from detect_secrets.plugins.base import RegexBasedDetector
        from detect_secrets.plugins.keyword import DENYLIST

        # Slow patterns, which search from every character to the end of the line, run only on lines that can match.
        required = {
            "KeywordDetector": re.compile("|".join(DENYLIST), re.IGNORECASE),
            "NpmDetector": re.compile("_authToken="),
        }
        return [
            (plugin, not isinstance(plugin, RegexBasedDetector), required.get(type(plugin).__name__))
            for plugin in map(from_plugin_classname, (name for name in self.detectors or () if name != PRIVATE_KEYS))
        ]

    def __getstate__(self) -> dict[str, Any]:
        return pickled_fields(self)


def _matched(plugin: Any, line: str) -> Iterator[str | None]:
    """The values that a detector finds in a line."""
    if type(plugin).__name__ in SLOW_ON_SPACES:
        line = SPACE_RUN.sub(" ", line)
    credential_pattern = CREDENTIAL_IN_MATCH.get(type(plugin).__name__)
    if credential_pattern is None:
        yield from (secret.secret_value for secret in plugin.analyze_line(filename="", line=line, line_number=0))
        return
    for match in chain.from_iterable(pattern.finditer(line) for pattern in plugin.denylist):
        yield from (credential[credential.lastindex or 0] for credential in credential_pattern.finditer(match[0]))


def _known_detectors() -> dict[str, str]:
    """The class name of each detector by its type of secret, in alphabetical order."""
    shown = warnings.showwarning
    try:
        from detect_secrets.core.plugins.util import get_mapping_from_secret_type_to_class
    except ImportError:
        raise InvalidInput(
            'the credentials rule needs the package detect-secrets; run pip install "hush[credentials]"'
        ) from None
    if warnings.showwarning is not shown:
        logging.captureWarnings(False)  # on import, that library redirects all warnings to the log
    logging.getLogger("detect-secrets").setLevel(logging.CRITICAL + 1)  # it would log the secrets
    classes = get_mapping_from_secret_type_to_class()
    return {kind: classes[kind].__name__ for kind in sorted(classes)}


def _detector_class(name: str, known: dict[str, str]) -> str:
    if name in known or name in known.values():
        return known.get(name, name)
    near = difflib.get_close_matches(str(name), [*known, *known.values()], n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known.values())}"
    # Without the name: it may be a secret that was pasted by mistake.
    raise InvalidInput(f"one of the detectors does not exist; {hint}")


def _is_false_positive(value: str, line: str, plugin: Any) -> bool:
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


# Private keys


def private_keys(text: str) -> Iterator[tuple[int, int]]:
    """The spans of whole keys, and of the visible pieces of others: a first line, a last line, or a middle piece."""
    opened: dict[str, re.Match[str]] = {}  # by kind: the first line whose last line may follow
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
    """Whether the lines are base64 of equal length, of which the last may be shorter."""
    lengths, content = list(map(len, lines)), "".join(lines)
    return (
        len(lines) >= MIN_MIDDLE_LINES
        and set(lengths[:-1]) == {max(lengths)}
        and BASE64.fullmatch(content) is not None
        and all(kind.search(content) for kind in CHARACTER_CLASSES)
    )
