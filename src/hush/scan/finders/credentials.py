"""The credentials rule: keys, tokens and passwords that the detectors of `detect-secrets` recognise, line by line.

Not everything that a detector recognises is a credential. Each hit is examined (plausibility.py): a placeholder, a
word, a digest or a text too short for its promise is a doubtful hit, whose reason says so. A text with doubtful hits
only is set aside: it is listed for the owner and is no secret of the scan. Comments that allow a value (``pragma:
allowlist``) are ignored. Nothing is verified over the network.

hush itself finds passwords and keys that are assigned without quotes, as in env and YAML files, and private keys (PEM
of every kind, PGP, PuTTY's format). A private key that was cut is found in each of its pieces: by its first line and
what follows, by its last line and what precedes it, and between them as text that consists of wrapped base64 only.
"""

import difflib
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, final

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.scan.finders.plausibility import TOO_SHORT, doubt, looks_random, most_values
from hush.scan.finders.prefilter import Prefilter
from hush.scan.hits import DeclaredSecret, Hits, SpanList, occurrences, pickled_fields
from hush.scan.rules.promises import prior_among

__all__ = ["Credentials", "private_keys"]


PRIVATE_KEYS = "PrivateKeyDetector"  # replaced by ``private_keys``, which knows more formats
KEYWORDS, JWT = "KeywordDetector", "JwtTokenDetector"
NO_CREDENTIALS = ("IPPublicDetector",)  # looked for only if it is named
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
# That library's pattern leaves out the signature. In ASCII: letters of other scripts may follow without a space.
WEB_TOKEN = re.compile(r"eyJ[\w=-]+\.[\w=-]+(?:\.[\w=-]*)?", re.ASCII)
MAX_UNQUOTED_LINE = 1000  # characters
# A name and a text that are a line of their own, mostly without quotes; the text must look random, or like a password.
# In quotes it may hold signs of all kinds: that library's pattern leaves out texts that begin with one.
UNQUOTED = re.compile(
    r"""\s*(?:(?:export|set|env|arg)\s+|-\s+|[-+]\s*)?(?P<name>[\w.-]*(?:pass(?:word|wd|phrase)?|pwd|secret|token|credential"""
    r"""|(?:api|access|auth|account|private|service|signing|encryption|session|client|master)[_-]?key)[\w.-]*)"""
    r"""\s*(?::=|=>|[:=])\s*(?:(?P<quote>["'])(?P<quoted>[^\s"'`]{8,})(?P=quote)|(?P<bare>[^\s"'`,;(){}\[\]<>$]{8,}))"""
    r"""\s*(?:[;,#].*)?""",
    re.IGNORECASE,
)
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
# A line of a key: base64, or one of the settings that precede it, also as a string of a program.
# Possessive: a line of thousands of spaces would otherwise be divided in every way.
KEY_LINE = re.compile(r"""[\s"']*+(?::?[\w-]*+: [^"']{0,100}|=?[A-Za-z0-9+/]*+={0,2})(?:\\[nr])*+[\s"',;+\\]*""")
MIN_MIDDLE_LINES = 3  # of a piece without first and last line
# A middle piece contains all of these, which rules out hex digests and gene sequences.
CHARACTER_CLASSES = (re.compile("[a-z]"), re.compile("[A-Z]"), re.compile("[0-9]"))


@final
@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Finds what these detectors detect; they are named by class or by type of secret, and None means all of them.

    A secret's key is the credential. A private key is found with all its lines if both ends are in one example; if it
    is cut, each piece is found (``private_keys``). prior: the smallest that is promised for a credential; a text whose
    format has fewer than 1 / prior values is too short for the promise. accept: "plausible" credentials, or "all" that
    the detectors recognise; texts too short for the promise are refused in any case. path_column: the column with the
    path of each example's file, if there is one.

    >>> Credentials(detectors=["AWS Access Key", "PrivateKeyDetector"]).detectors
    ('AWSKeyDetector', 'PrivateKeyDetector')
    """

    detectors: Sequence[str] | None = None
    prior: float = 0.0
    accept: Literal["plausible", "all"] = "plausible"
    path_column: str | None = None

    def __post_init__(self) -> None:
        known = _known_detectors()
        if isinstance(self.detectors, str):
            raise InvalidInput("detectors is a string; pass a list of names")
        names = [name for name in known.values() if name not in NO_CREDENTIALS]
        chosen = [_detector_class(name, known) for name in (names if self.detectors is None else self.detectors)]
        object.__setattr__(self, "detectors", tuple(dict.fromkeys(chosen)))

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.path_column is None else (self.path_column,)

    @property
    def declared(self) -> Sequence[DeclaredSecret]:
        return ()

    def find(self, block: Block) -> Hits:
        from detect_secrets.settings import transient_settings

        hits = SpanList()
        paths = [""] * len(block) if self.path_column is None else block.columns[self.path_column].to_pylist()
        # The detectors read process-wide settings; these verify nothing.
        with transient_settings({"plugins_used": [{"name": name} for name in self.detectors or ()]}):
            for example, (text, path) in enumerate(zip(block.strings, paths, strict=True)):
                plugins = [plugin for plugin in self._plugins if plugin.admits(text)]
                for line in LINE.finditer(text) if plugins else ():
                    for detector, name, value in self._values(line[0], plugins):
                        doubtful = self._doubt(value, detector, line[0], path)
                        for begin in occurrences(text, value, *line.span()):
                            hits.add(example, begin, begin + len(value), value, f"detector {name}", doubt=doubtful)
                for begin, end in private_keys(text) if PRIVATE_KEYS in (self.detectors or ()) else ():
                    doubtful = self._doubt(text[begin:end], PRIVATE_KEYS, "", path)
                    hits.add(example, begin, end, text[begin:end], "detector Private Key", doubt=doubtful)
        return hits.hits()

    def _doubt(self, value: str, detector: str, line: str, path: str) -> str | None:
        """Why a text that a detector found is set aside; None if it is not."""
        reason = doubt(value, detector=detector, line=line, path=path) if self.accept == "plausible" else None
        if reason is None and prior_among(most_values(value, detector=detector)) > self.prior > 0.0:
            return TOO_SHORT
        return reason

    def _values(self, line: str, plugins: Sequence["_Plugin"]) -> Iterator[tuple[str, str, str]]:
        """The credentials of a line, each with its detector's class and the name of what it detects."""
        for plugin in plugins:
            if not plugin.admits(line) or (plugin.required is not None and not plugin.required.search(line)):
                continue
            values = dict.fromkeys(filter(None, _matched(plugin.detector, line)))
            yield from ((plugin.name, plugin.detector.secret_type, value) for value in values)
            is_short = len(line) <= MAX_UNQUOTED_LINE and not values
            unquoted = UNQUOTED.fullmatch(line) if plugin.name == KEYWORDS and is_short else None
            value = None if unquoted is None else unquoted["quoted"] or unquoted["bare"]
            if unquoted is not None and value is not None and _is_unquoted_credential(unquoted["name"], value):
                yield plugin.name, plugin.detector.secret_type, value

    @cached_property
    def _plugins(self) -> "list[_Plugin]":
        """The detectors, and what a line must contain for each to find anything."""
        from detect_secrets.core.plugins.initialize import from_plugin_classname
        from detect_secrets.plugins.keyword import DENYLIST

        # Slow patterns, which search from every character to the end of the line, run only on lines that can match.
        keyword = re.compile("|".join([*DENYLIST, "pass", "token", "credential", "key"]), re.IGNORECASE)
        plugins: list[_Plugin] = []
        for name in self.detectors or ():
            if name != PRIVATE_KEYS:
                detector, required = from_plugin_classname(name), keyword if name == KEYWORDS else None
                patterns = [required] if required is not None else _patterns(detector)
                prefilter = Prefilter.of(patterns) if patterns else None
                plugins.append(_Plugin(name=name, detector=detector, required=required, prefilter=prefilter))
        return plugins

    def __getstate__(self) -> dict[str, Any]:
        return pickled_fields(self)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Plugin:
    """A detector, by the name of its class, and what a line must contain for it to find anything."""

    name: str
    detector: Any
    required: re.Pattern[str] | None
    prefilter: Prefilter | None

    def admits(self, text: str) -> bool:
        """Whether this text, or a line of it, may hold something for this detector."""
        return self.prefilter is None or self.prefilter.admits(text)


def _patterns(plugin: Any) -> Sequence[re.Pattern[str]]:
    """The patterns of which one matches in every line in which a detector finds anything; empty if that is unknown."""
    from detect_secrets.plugins.base import BasePlugin, RegexBasedDetector
    from detect_secrets.plugins.high_entropy_strings import HighEntropyStringsPlugin

    kind = type(plugin)
    if kind.__name__ == JWT:
        return [WEB_TOKEN]
    if kind.__name__ in CREDENTIAL_IN_MATCH:
        return list(plugin.denylist)
    if (kind.analyze_string, kind.analyze_line) == (RegexBasedDetector.analyze_string, BasePlugin.analyze_line):
        return list(plugin.denylist)
    entropy = HighEntropyStringsPlugin
    by_entropy = kind.analyze_string, getattr(kind, "analyze_line", None)
    return [plugin.regex] if by_entropy == (entropy.analyze_string, entropy.analyze_line) else []


def _matched(plugin: Any, line: str) -> Iterator[str | None]:
    """The values that a detector finds in a line."""
    if type(plugin).__name__ in SLOW_ON_SPACES:
        line = SPACE_RUN.sub(" ", line)
    if type(plugin).__name__ == JWT:
        yield from (match[0] for match in WEB_TOKEN.finditer(line) if plugin.is_formally_valid(match[0]))
        return
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


def _is_unquoted_credential(name: str, value: str) -> bool:
    """Whether a text without quotes is random, or a password with a symbol, and so no variable or expression."""
    has_all = all(re.search(kind, value) for kind in ("[A-Za-z]", "[0-9]", r"[^\w.:/-]"))
    return looks_random(value) or ("pass" in name.lower() and has_all)


# Private keys


def private_keys(text: str) -> Iterator[tuple[int, int]]:
    """The spans of whole keys, and of the visible pieces of others.

    A first line counts with the lines of the key that follow it, a last line with those before it; a middle piece is a
    text of such lines only. A first or last line alone is no piece of a key, but a hit, for whoever decides about it.
    """
    opened: dict[str, re.Match[str]] = {}  # by kind: the first line whose last line may follow
    for match in KEY_BOUNDARY.finditer(text):
        if not (match["kind"] and match["lead"] and match["trail"]):
            yield _with_body(text, match)
            continue
        first = opened.pop(match["kind"], None)
        if match["line"].startswith("BEGIN"):
            opened[match["kind"]] = match
        elif first is not None and match.end() - first.start() <= MAX_KEY_CHARACTERS:
            yield first.start(), match.end()
            continue
        else:
            yield _with_body(text, match)
        if first is not None:
            yield _with_body(text, first)
    yield from (_with_body(text, match) for match in opened.values())
    if FULL_BASE64_LINE.match(text) and _is_middle([line for line in text.split() if not CHECKSUM.fullmatch(line)]):
        yield len(text) - len(text.lstrip()), len(text.rstrip())


def _with_body(text: str, match: re.Match[str]) -> tuple[int, int]:
    """The span of a first or last line with the lines of the key next to it."""
    begin, end = match.span("line")
    if match["line"].startswith("END"):
        for line in reversed(list(LINE.finditer(text, max(0, begin - MAX_KEY_CHARACTERS), match.start()))):
            if not KEY_LINE.fullmatch(line[0]):
                break
            begin = line.start() + len(line[0]) - len(line[0].lstrip()) if line[0].strip() else begin
        return begin, end
    for line in LINE.finditer(text, match.end(), match.end() + MAX_KEY_CHARACTERS):
        if not KEY_LINE.fullmatch(line[0]):
            break
        end = line.start() + len(line[0].rstrip()) if line[0].strip() else end
    return begin, end


def _is_middle(lines: list[str]) -> bool:
    """Whether the lines are base64 of equal length, of which the last may be shorter."""
    lengths, content = list(map(len, lines)), "".join(lines)
    return (
        len(lines) >= MIN_MIDDLE_LINES
        and set(lengths[:-1]) == {max(lengths)}
        and BASE64.fullmatch(content) is not None
        and all(kind.search(content) for kind in CHARACTER_CLASSES)
    )
