"""Twenty settings for ``never_worse.py``: two corpora, secrets as whole examples and as spans, in 1 % to 100 % of them.

A corpus has two subjects, such as all textbooks but one, and that one. Documents are pieces of its texts of at most 90
bytes, which the small model of ``hush init`` reads as a whole.

whole   the documents of the second subject are secret as a whole, by a column that names their owner. Content like the
        secrets': documents of the second subject that no training reads.
spans   words in documents of the first subject are secret. Content like the secrets': other such words, in the
        documents that no training reads.

Two kinds of graph: *many* secrets in a few documents each, and *few* secrets in many documents each. The signal budget
is large for the first kind and small for the second.
"""

import ast
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

__all__ = ["SHARES", "Document", "Setting", "all_settings", "code_documents", "make_data", "text_documents"]


SHARES = (0.01, 0.05, 0.2, 0.5, 1.0)  # of the documents, that hold a secret
MIN_BYTES, MAX_BYTES = 40, 90
WORD = re.compile(r"[A-Za-z_]{6,}")
PER_SECRET = {"texts": (1, 3), "code": (15, 60)}  # documents that a secret word stands in, fewest and most
CHUNKS_OF_OWNER = {"texts": 1, "code": 40}  # documents that an owner has


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A piece of a text, and whether it is of the second subject."""

    text: str
    is_second: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One of the twenty."""

    corpus: Literal["texts", "code"]
    scope: Literal["whole", "spans"]
    share: float

    @property
    def name(self) -> str:
        return f"{self.corpus}-{self.scope}-{100 * self.share:g}"


def all_settings() -> list[Setting]:
    return [
        Setting(corpus=corpus, scope=scope, share=share)
        for scope in ("whole", "spans")
        for share in SHARES
        for corpus in ("texts", "code")
    ]


# ---- documents ----


def text_documents(source: Path, second: str, *, most: int) -> list[Document]:
    """Pieces of a file of JSON lines with id and text, or of a folder of Markdown files; at most so many of a subject.

    second: what the ids, or paths, of the second subject contain.
    """
    parts = ((name, re.split(r"(?<=[.!?]) ", line)) for name, text in _texts_of(source) for line in text.splitlines())
    return _documents(parts, " ", second, most)


def code_documents(source: Path, second: str, *, most: int) -> list[Document]:
    """Some lines of the functions of a folder of Python files; second: as for texts, in their paths."""
    return _documents(_functions_of(source), "", second, most)


def _documents(parts: Iterable[tuple[str, list[str]]], joint: str, second: str, most: int) -> list[Document]:
    found: dict[bool, list[str]] = {False: [], True: []}
    for name, lines in parts:
        of_subject = found[second in name]
        if len(of_subject) < most:
            of_subject += _pieces(lines, joint)
        elif all(len(texts) >= most for texts in found.values()):
            break
    return [Document(text=text, is_second=is_second) for is_second, texts in found.items() for text in texts]


def _functions_of(source: Path) -> Iterator[tuple[str, list[str]]]:
    """The lines of each function, by the path of its file; files in a random order, since few are needed."""
    paths = [path for path in sorted(source.rglob("*.py")) if "tests" not in path.parts]
    for number in np.random.default_rng(5).permutation(len(paths)).tolist():
        path, text = paths[number], paths[number].read_text(encoding="utf-8", errors="replace")
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        lines = text.splitlines(keepends=True)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                body = [line for line in lines[node.lineno - 1 : node.end_lineno] if line.strip()]
                yield path.relative_to(source).as_posix(), body


def _texts_of(source: Path) -> Iterator[tuple[str, str]]:
    if source.is_dir():
        for path in sorted(source.rglob("*.md")):
            yield path.relative_to(source).as_posix(), path.read_text(encoding="utf-8")
        return
    with gzip.open(source, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    for number in np.random.default_rng(5).permutation(len(rows)).tolist():
        yield rows[number]["id"], rows[number]["text"]


def _pieces(parts: list[str], joint: str) -> Iterator[str]:
    """Neighbouring parts together, as long as they fit; pieces that are too short or too long are left out."""
    piece = ""
    for part in [*parts, "x" * MAX_BYTES]:
        longer = f"{piece}{joint}{part}" if piece else part
        if len(longer.encode()) <= MAX_BYTES:
            piece = longer
            continue
        if MIN_BYTES <= len(piece.encode()) <= MAX_BYTES and piece.isascii():
            yield piece.strip("\n")
        piece = part if len(part.encode()) <= MAX_BYTES else ""


# ---- the data of a setting ----


def make_data(setting: Setting, documents: list[Document], folder: Path, *, count: int, held_out: int) -> None:
    """Write the data, what is judged on, and the rules of a setting. Texts are the same random ones in each scope."""
    rng = np.random.default_rng([7, ("texts", "code").index(setting.corpus)])
    unique = list({document.text: document for document in documents}.values())
    order = rng.permutation(len(unique)).tolist()
    first = [unique[n].text for n in order if not unique[n].is_second]
    second = [unique[n].text for n in order if unique[n].is_second]
    judged, first = first[:held_out], first[held_out:]
    like, second = second[:held_out], second[held_out:]
    folder.mkdir(parents=True, exist_ok=True)
    if setting.scope == "whole":
        bearing = round(setting.share * count)
        rows: list[dict[str, Any]] = [{"text": text, "owner": ""} for text in first[: count - bearing]]
        each = CHUNKS_OF_OWNER[setting.corpus]
        rows += [{"text": text, "owner": f"owner-{n // each}"} for n, text in enumerate(second[:bearing])]
        rules: list[dict[str, Any]] = [{"name": "owners", "find": "fields", "column": "owner", "public_names": True}]
        judgement: dict[str, Any] = {"ordinary": judged, "like": [{"text": text, "spans": None} for text in like]}
    else:
        texts = first[:count]
        words, siblings = _secret_words(setting, texts, judged, rng)
        rows = [{"text": text} for text in texts]
        (folder / "words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
        rules = [{"name": "words", "find": "literals", "file": "words.txt", "whole_words": True, "hides": "span"}]
        rules[0]["promise"] = {"prior": 0.01, "ceiling": 0.1}
        judgement = {"ordinary": judged, "like": siblings}
    _write(folder / "data.jsonl", [rows[n] for n in rng.permutation(len(rows)).tolist()])
    (folder / "judged.json").write_text(json.dumps(judgement), encoding="utf-8")
    (folder / "rules.json").write_text(json.dumps(rules), encoding="utf-8")


def _secret_words(
    setting: Setting, texts: list[str], judged: list[str], rng: np.random.Generator
) -> tuple[list[str], list[dict[str, Any]]]:
    """Words to hide in about this share of the texts; the places of other such words in texts that are judged on."""
    where = defaultdict[str, set[int]](set)
    for number, text in enumerate(texts):
        for word in WORD.findall(text):
            where[word].add(number)
    fewest, most = PER_SECRET[setting.corpus]
    known = [word for word in sorted(where) if fewest <= len(where[word]) <= most]
    kept = known[::5]  # never secret: what is judged on holds these, or words that are in no text
    rest = sorted(where, key=lambda word: (not fewest <= len(where[word]) <= most, len(where[word]) > most))
    chosen, reached = list[str](), set[int]()
    shuffled = rng.permutation(len(known)).tolist()
    candidates = [known[n] for n in shuffled if n % 5] + [word for word in rest if word not in set(known)]
    for word in candidates:
        if len(reached) >= setting.share * len(texts):
            break
        if where[word] - reached:
            chosen.append(word)
            reached |= where[word]
    siblings: list[dict[str, Any]] = []
    of_kind, secret = set(kept), set(chosen)
    for text in judged:
        places = [
            found.span()
            for found in WORD.finditer(text)
            if found.group() not in secret and _is_like(found.group(), of_kind, where)
        ]
        if places:
            siblings.append({"text": text, "spans": places})
    return chosen, siblings


def _is_like(word: str, of_kind: set[str], where: dict[str, set[int]]) -> bool:
    return word in of_kind or word not in where


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
