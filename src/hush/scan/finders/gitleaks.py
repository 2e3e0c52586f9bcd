"""The gitleaks rule: what the rules of a file of gitleaks detect, by the semantics of gitleaks 8.30.

The patterns are written for RE2, whose binding google-re2 runs them on the UTF-8 bytes of each example. As in gitleaks,
a rule is tried only on texts that contain one of its keywords in any case; the secret is the group ``secretGroup`` or
the first group that is not empty, taken from the match alone, without what stands around it; its Shannon entropy must
be above ``entropy``; and no allowlist may match.

Where hush differs, it finds more: comments (``gitleaks:allow``) and files (.gitleaksignore, baselines) that allow
findings are ignored, no commit is known, a rule for some paths applies to texts that have none, and a generic finding
inside of another one counts, too. gitleaks also looks into what it can decode (base64, hex, percent); hush does not.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

from hush.data.parts import Block
from hush.errors import InvalidInput
from hush.scan.finders.plausibility import TOO_SHORT, most_values
from hush.scan.hits import DeclaredSecret, Hits, SpanList, pickled_fields
from hush.scan.rules.gitleaks import DetectionRule, DetectionRules, RuleAllowlist
from hush.scan.rules.promises import prior_among

__all__ = ["Gitleaks"]


PATTERN_BYTES = 8 << 20  # of a compiled pattern, RE2's default; its caches stay below
LARGE_PATTERN_BYTES = 256 << 20  # for patterns that do not fit; Go has no such limit
CONTINUATION = 0b10  # the first two bits of a byte that is not the first of its character


@final
@dataclass(frozen=True, kw_only=True, repr=False)
class Gitleaks:
    """Finds what these rules detect. A secret's key is its text; a rule of paths alone makes whole examples secrets.

    prior: the smallest that is promised; a text whose format has fewer than 1 / prior values is set aside as too short.
    path_column: the column with the path of each example's file, if there is one.

    >>> from hush.scan.rules.gitleaks import DetectionRule, DetectionRules
    >>> Gitleaks(rules=DetectionRules(rules=(DetectionRule(id="acme", regex="acme_([a-z0-9]{20})"),)))
    Gitleaks(1 rules)
    """

    rules: DetectionRules
    prior: float = 0.0
    path_column: str | None = None

    def __post_init__(self) -> None:
        _ = self._detectors, self._allowlists  # wrong patterns are refused before any data is read

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.path_column is None else (self.path_column,)

    @property
    def declared(self) -> Sequence[DeclaredSecret]:
        return ()

    def find(self, block: Block) -> Hits:
        hits = SpanList()
        paths = [None] * len(block) if self.path_column is None else block.columns[self.path_column].to_pylist()
        for example, (text, path) in enumerate(zip(block.strings, paths, strict=True)):
            for begin, end, rule in self._findings(text, (path or "").encode()):
                value = text[begin:end]
                is_short = prior_among(most_values(value, detector="")) > self.prior > 0.0  # by length and alphabet
                hits.add(example, begin, end, value, f"gitleaks rule {rule}", doubt=TOO_SHORT if is_short else None)
        return hits.hits()

    def _findings(self, text: str, path: bytes) -> Iterator[tuple[int, int, str]]:
        """The secrets of a text: first character, the one after the last, and the rule."""
        if not text or any(allowlist.allows_file(path) for allowlist in self._allowlists):
            return
        folded = _lowered(text)
        data, spans = text.encode(), list[tuple[int, int, str]]()
        for detector in self._detectors:
            if detector.admits(folded, path):
                spans += [(*span, detector.name) for span in detector.secrets(data, path, self._allowlists)]
        if len(data) == len(text):
            yield from spans
        elif spans:
            first_N = np.flatnonzero(np.frombuffer(data, np.uint8) >> 6 != CONTINUATION)
            yield from ((_at(first_N, begin), _after(first_N, end), name) for begin, end, name in spans)

    @cached_property
    def _detectors(self) -> "list[_Detector]":
        return [_Detector.of(rule) for rule in self.rules.rules if not rule.skipReport]

    @cached_property
    def _allowlists(self) -> "list[_Allowlist]":
        return [_Allowlist.of(allowlist, "an allowlist of all rules") for allowlist in self.rules.allowlists]

    def __getstate__(self) -> dict[str, Any]:
        return pickled_fields(self)

    def __repr__(self) -> str:
        return f"Gitleaks({len(self.rules.rules)} rules)"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """A match without the line ends around it, and the secret in it: places in the bytes of a text."""

    data: bytes
    match: tuple[int, int]
    secret: tuple[int, int]

    def target(self, name: Literal["secret", "match", "line"]) -> bytes:
        """What the patterns of an allowlist are compared with."""
        begin, end = self.secret if name == "secret" else self.match
        if name == "line":  # with the line end before it, as in gitleaks
            begin, end = max(self.data.rfind(b"\n", 0, begin + 1), 0), self.data.find(b"\n", end)
        return self.data[begin : end if end >= 0 else None]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Allowlist:
    """An allowlist with its patterns compiled."""

    needs_all: bool
    has_commits: bool
    paths: tuple[Any, ...]
    regexes: tuple[Any, ...]
    stopwords: tuple[str, ...]
    target: Literal["secret", "match", "line"]

    @classmethod
    def of(cls, allowlist: RuleAllowlist, where: str) -> "_Allowlist":
        return cls(
            needs_all=allowlist.condition == "and",
            has_commits=bool(allowlist.commits),
            paths=tuple(_compiled(pattern, where) for pattern in allowlist.paths),
            regexes=tuple(_compiled(pattern, where) for pattern in allowlist.regexes),
            stopwords=tuple(map(_lowered, allowlist.stopwords)),
            target=allowlist.regexTarget,
        )

    def allows_file(self, path: bytes) -> bool:
        """Whether a file is passed over, whatever is in it."""
        if self.needs_all and (self.has_commits or self.regexes or self.stopwords):
            return False
        return path != b"" and _any_matches(self.paths, path)

    def allows(self, finding: _Finding, path: bytes) -> bool:
        """Whether a finding is none; ``allows_file`` was asked before."""
        checks: list[bool] = []
        if self.regexes:
            target = finding.target(self.target)
            checks.append(target != b"" and _any_matches(self.regexes, target))
        if self.stopwords:
            secret = _lowered(finding.target("secret").decode(errors="replace"))
            checks.append(any(word in secret for word in self.stopwords))
        if not self.needs_all:
            return any(checks)
        if self.paths:
            checks.append(path != b"" and _any_matches(self.paths, path))
        return not self.has_commits and all(checks)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _Detector:
    """A rule with its patterns compiled."""

    name: str
    regex: Any
    path: Any
    group: int
    entropy: float
    keywords: tuple[str, ...]
    allowlists: tuple[_Allowlist, ...]

    @classmethod
    def of(cls, rule: DetectionRule) -> "_Detector":
        where = f"rule {rule.id}"
        regex = _compiled(rule.regex, where) if rule.regex else None
        if regex is not None and rule.secretGroup > regex.groups:
            raise InvalidInput(
                f"{where}: secretGroup is {rule.secretGroup}, and its regex has {regex.groups} groups; correct it"
            )
        return cls(
            name=rule.id,
            regex=regex,
            path=_compiled(rule.path, where) if rule.path else None,
            group=rule.secretGroup,
            entropy=rule.entropy,
            keywords=tuple(map(_lowered, rule.keywords)),
            allowlists=tuple(_Allowlist.of(allowlist, f"an allowlist of {where}") for allowlist in rule.exceptions),
        )

    def admits(self, folded: str, path: bytes) -> bool:
        """Whether the rule is tried on a text, given in lower case, of a file with this path."""
        if self.keywords and not any(keyword in folded for keyword in self.keywords):
            return False
        if any(allowlist.allows_file(path) for allowlist in self.allowlists):
            return False
        if self.path is None or (path == b"" and self.regex is not None):
            return True
        return path != b"" and self.path.search(path) is not None

    def secrets(self, data: bytes, path: bytes, common: Sequence[_Allowlist]) -> Iterator[tuple[int, int]]:
        """The spans of the rule's secrets, in bytes. common: the allowlists of all rules."""
        if self.regex is None:
            yield 0, len(data)
            return
        for match in self.regex.finditer(data):
            whole = match[0].strip(b"\n")
            if not whole:
                continue
            begin = match.start() + len(match[0]) - len(match[0].lstrip(b"\n"))
            end = begin + len(whole)
            secret = begin, end
            again = self.regex.search(whole) if self.regex.groups else None
            if again is not None:
                groups = [self.group] if self.group else range(1, self.regex.groups + 1)
                spans = [again.span(group) for group in groups]
                inner = next((span for span in spans if span[0] < span[1]), None)
                if inner is not None:
                    secret = begin + inner[0], begin + inner[1]
                elif self.group:
                    secret = begin, begin  # to gitleaks the secret is empty, and the match is what it shows
            if self.entropy and _entropy(data[slice(*secret)]) <= self.entropy:
                continue
            finding = _Finding(data=data, match=(begin, end), secret=secret)
            if not any(allowlist.allows(finding, path) for allowlist in (*common, *self.allowlists)):
                yield secret if secret[0] < secret[1] else (begin, end)


def _compiled(pattern: str, where: str) -> Any:
    """A compiled pattern; errors never quote it."""
    try:
        import re2
    except ImportError:
        raise InvalidInput('the gitleaks rule needs the package google-re2; run pip install "hush[gitleaks]"') from None
    options = re2.Options()
    options.log_errors = False  # it would log the pattern
    for options.max_mem in (PATTERN_BYTES, LARGE_PATTERN_BYTES):
        try:
            return re2.compile(pattern, options)
        except re2.error:
            pass
    raise InvalidInput(f"{where} has a pattern that RE2 does not accept; correct it")


def _any_matches(patterns: Iterable[Any], text: bytes) -> bool:
    return any(pattern.search(text) is not None for pattern in patterns)


def _lowered(text: str) -> str:
    """Lower case as in Go: character by character."""
    return text.lower() if text.isascii() else text.replace("Σ", "σ").replace("İ", "i").lower()


def _entropy(secret: bytes) -> float:
    """The Shannon entropy in bits per character; as in gitleaks, the length is in bytes."""
    counts = Counter(secret.decode(errors="replace")).values()
    return -math.fsum(count / len(secret) * math.log2(count / len(secret)) for count in counts)


# From bytes to characters; a span that begins or ends inside of a character is widened


def _at(first_N: NDArray[np.int64], byte: int) -> int:
    return int(np.searchsorted(first_N, byte, side="right")) - 1


def _after(first_N: NDArray[np.int64], byte: int) -> int:
    return int(np.searchsorted(first_N, byte, side="left"))
