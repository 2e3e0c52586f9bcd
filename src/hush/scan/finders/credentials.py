"""The credentials rule: keys, tokens and passwords as the detectors of `detect-secrets` know them, line by line.

Detectors of a fixed format (a cloud's access key, a private key) count wherever they fire. The guessing ones (entropy,
words like "password" before a quoted value) are filtered as that library does: no identifiers, sequences, templates,
references or values without a letter. Comments that allow a value (``pragma: allowlist``) change nothing here. Nothing
is verified over the network.
"""

import difflib
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from hush.corpus.blocks import Block
from hush.errors import InvalidInput
from hush.scan.finder import Declared
from hush.scan.finders.pickles import fields_only
from hush.scan.finders.spans import SpanList, occurrences
from hush.scan.hits import Hits

__all__ = ["Credentials"]

# Up to 20,000 characters, more than a key of 16,384 bits takes: a first line without a last one ends the search soon.
PRIVATE_KEY = re.compile(
    r"-{4,5} ?(?P<header>BEGIN (?P<kind>[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?)) ?-{4,5}"
    r".{0,20000}?-{4,5} ?END (?P=kind) ?-{4,5}",
    re.DOTALL,
)


@final
@dataclass(frozen=True, kw_only=True)
class Credentials:
    """What these detectors find, by the names of their classes or of what they detect; all of them if None.

    A secret's key is the credential. A private key is found with all its lines if its end is in the same example, else
    by its first line alone.

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
    def declared(self) -> Sequence[Declared]:
        return ()

    def find(self, block: Block) -> Hits:
        from detect_secrets.settings import transient_settings

        found = SpanList()
        # A line's detectors look into the settings of the process: here, those that verify nothing.
        with transient_settings({"plugins_used": [{"name": name} for name in self.detectors or ()]}):
            for example, text in enumerate(block.strings):
                keys = {match.start("header"): match for match in PRIVATE_KEY.finditer(text)}
                begin = 0
                for line in text.split("\n"):
                    for name, value in self._values(line):
                        for at in occurrences(text, value, begin, begin + len(line)):
                            span = keys[at].span() if at in keys else (at, at + len(value))
                            found.add(example, *span, text[slice(*span)], f"detector {name}")
                    begin += len(line) + 1
        return found.hits()

    def _values(self, line: str) -> Iterator[tuple[str, str]]:
        """What a line holds: the detector's name and the credential."""
        if not line or line.isspace():
            return
        for plugin, guesses, needs in self._plugins:
            if needs is not None and not needs.search(line):
                continue
            for secret in plugin.analyze_line(filename="", line=line, line_number=0):
                value = secret.secret_value
                if value and not (guesses and _is_no_secret(value, line, plugin)):
                    yield plugin.secret_type, value

    @cached_property
    def _plugins(self) -> list[tuple[Any, bool, re.Pattern[str] | None]]:
        """The detectors, whether each only guesses, and what a line must hold for it to find anything."""
        from detect_secrets.core.plugins.initialize import from_plugin_classname
        from detect_secrets.plugins.base import RegexBasedDetector
        from detect_secrets.plugins.keyword import DENYLIST, KeywordDetector

        # Its own patterns look for these words from every character on, which takes longer than all other detectors.
        keyword = re.compile("|".join(DENYLIST), re.IGNORECASE)
        return [
            (
                plugin,
                not isinstance(plugin, RegexBasedDetector),
                keyword if isinstance(plugin, KeywordDetector) else None,
            )
            for plugin in map(from_plugin_classname, self.detectors or ())
        ]

    def __getstate__(self) -> dict[str, Any]:
        return fields_only(self)


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
