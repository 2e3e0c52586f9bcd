"""Slots on real abstracts: which planted forms of secrets are missed, and how stable slots are under other candidates.

    python benchmarks/slots.py --data abstracts.parquet [--column abstract] [--sample 20000] [--output FILE]

Secrets are the words in 10 to 20 abstracts of a sample. Forms: a form of a random secret is planted between two words
of a random abstract, one for each kind of form and secret, and the abstracts are scanned with the secrets as a list of
literals that hides spans; a form is missed if a letter of the secret in it lies in no slot. Candidates: a tenth of the
secrets are replaced in their slots by other words, and the abstracts are scanned again; counted are the examples of
these secrets whose slots are not at the same places as before, and other examples that changed. A candidate is a word
that the sample does not contain, or one that 1 to 5 of its abstracts contain already. Also the speed of the search for
forms, the hits per secret by length with all limits of the search lifted, and the share of the text that is secret.
"""

import argparse
import json
import os
import platform
import random
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hush.data.parts import Block
from hush.scan.normal_form import letters_of
from hush.scan.result import Scan
from hush.scan.scanner import scan
from hush.scan.variants import MAX_INFLECTION, Limits, Variants

LEAST, MOST = 10, 20
WORD, FORMULA = re.compile(r"[a-z]+(?:[-'][a-z]+)*"), re.compile(r"\$[^$]*\$")
LENGTHS = ((3, 4), (5, 6), (7, 99))
MARK = "\0"  # around the secret in a planted form
CYRILLIC = str.maketrans("aceopxy", "асеорху")

Form = Callable[[str, random.Random], str]


def cut(word: str, rng: random.Random, separator: str) -> str:
    place = rng.randrange(1, len(word))
    return f"{MARK}{word[:place]}{separator}{word[place:]}{MARK}"


def marked(word: str) -> str:
    return f"{MARK}{word}{MARK}"


FORMS: dict[str, Form] = {
    "as it is": lambda word, rng: marked(word),
    "upper case": lambda word, rng: marked(word.upper()),
    "title case": lambda word, rng: marked(word.title()),
    "full-width letters": lambda word, rng: marked(
        "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in word)
    ),
    "accent, composed or not": lambda word, rng: marked(word[0] + "\u0301" + word[1:]),
    "accent in TeX": lambda word, rng: cut(word, rng, "\\'"),
    "hyphen inside": lambda word, rng: cut(word, rng, "-"),
    "soft hyphen inside": lambda word, rng: cut(word, rng, "\u00ad"),
    "zero-width space inside": lambda word, rng: cut(word, rng, "\u200b"),
    "hyphen and line break": lambda word, rng: cut(word, rng, "-\n  "),
    "space inside": lambda word, rng: cut(word, rng, " "),
    "line break inside": lambda word, rng: cut(word, rng, "\n"),
    "spaces between all letters": lambda word, rng: marked(" ".join(word)),
    "dots between all letters": lambda word, rng: marked(".".join(word)),
    "compound with hyphens": lambda word, rng: f"non-{marked(word)}-like",
    "compound with underscore": lambda word, rng: f"x_{marked(word)}_2",
    "compound in camel case": lambda word, rng: f"my{marked(word.title())}Set",
    "number after it": lambda word, rng: f"{marked(word)}42",
    "with s": lambda word, rng: f"{marked(word)}s",
    "with ing": lambda word, rng: f"{marked(word)}ing",
    "with un": lambda word, rng: f"un{marked(word)}",
    "inside a word": lambda word, rng: f"pre{marked(word)}ness",
    "not covered: one letter left out": lambda word, rng: marked(word[:1] + word[2:]),
    "not covered: Cyrillic letters": lambda word, rng: marked(word.translate(CYRILLIC)),
}


def sampled(path: Path, column: str, number: int, *, seed: int = 0) -> list[str]:
    texts = pq.read_table(path, columns=[column]).column(0).combine_chunks()
    chosen = np.random.default_rng(seed).choice(len(texts), min(number, len(texts)), replace=False)
    return texts.take(pa.array(np.sort(chosen))).to_pylist()


def words_of(text: str) -> set[str]:
    return set(WORD.findall(FORMULA.sub(" ", text.lower())))


def scanned(texts: list[str], rule: dict[str, Any]) -> Scan:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "texts.parquet"
        pq.write_table(pa.table({"text": texts}), path)
        rules = {"defaults": {"prior": 1e-4, "ceiling": 0.1}, "rules": [{"name": "words", "hides": "span", **rule}]}
        return scan(path, rules, workers=1)


def planted_forms(texts: list[str], secrets: list[str], each: int) -> dict[str, Any]:
    """How many planted forms are missed, by kind of form and length of the secret."""
    rng = random.Random(0)
    planted: list[str] = []
    places: list[tuple[int, int]] = []
    groups: list[tuple[str, str]] = []
    for kind, form in FORMS.items():
        for low, high in LENGTHS:
            usable = [word for word in secrets if low <= len(word) <= high and word.isalpha()]
            for word in rng.sample(usable, min(each, len(usable))):
                text = rng.choice(texts)
                gaps = [match.start() for match in re.finditer(" ", text)] or [len(text)]
                gap = rng.choice(gaps)
                text = f"{text[:gap]} {form(word, rng)} {text[gap:]}"
                begin, end = text.index(MARK), text.rindex(MARK) - 1
                planted.append(text.replace(MARK, ""))
                places.append((begin, end))
                groups.append((kind, f"{low} to {high} letters" if high < 99 else f"{low} letters or more"))
    found = scanned(planted, {"find": "literals", "values": secrets, "whole_words": True})
    total, missed = Counter(groups), Counter[tuple[str, str]]()
    for example, ((begin, end), group) in enumerate(zip(places, groups, strict=True)):
        covered = np.zeros(len(planted[example]), dtype=bool)
        for first, last in found.spans.of_example(example):
            covered[first:last] = True
        letters = [place for place in range(begin, end) if planted[example][place].isalnum()]
        missed[group] += not covered[letters].all()
    kinds: dict[str, Any] = {kind: {} for kind in FORMS}
    for (kind, length), number in total.items():
        kinds[kind][length] = {"planted": number, "missed": missed[kind, length] / number}
    return kinds


def other_candidates(texts: list[str], secrets: list[str], rule: dict[str, Any], known: list[str]) -> dict[str, Any]:
    """How often slots change if a tenth of the secrets are other words, drawn from those known."""
    rng = random.Random(1)
    replaced = rng.sample([word for word in secrets if word.isalpha()], len(secrets) // 10)
    candidate = dict(zip(replaced, rng.sample(known, len(replaced)), strict=True))
    before = scanned(texts, rule)
    text_of: tuple[str, ...] = before.secrets.texts or ()
    changed_texts, of_replaced = list(texts), set[int]()
    for example in np.flatnonzero(before.slots.has_slots_N).tolist():
        text, shift = texts[example], 0
        spans = before.spans.of_example(example)
        for slot, (begin, end) in zip(before.slots.of_example(example), spans, strict=True):
            words = [text_of[int(secret)] for secret in before.slots.secrets_of(slot)]
            filling = texts[example][begin:end]
            for word in filter(candidate.__contains__, words):
                of_replaced.add(example)
                filling = re.sub(re.escape(word), candidate[word], filling, flags=re.IGNORECASE)
            text = text[: begin + shift] + filling + text[end + shift :]
            shift += len(filling) - (end - begin)
        changed_texts[example] = text
    values = [candidate.get(word, word) for word in secrets]
    after = scanned(changed_texts, rule if "values" not in rule else rule | {"values": values})

    def places(found: Scan, example: int) -> list[int]:
        numbers = found.slots.of_example(example)
        return found.slots.place_L[numbers.start : numbers.stop].tolist()

    differs = [places(before, example) != places(after, example) for example in range(len(texts))]
    elsewhere = [differs[example] for example in range(len(texts)) if example not in of_replaced]
    own = [differs[example] for example in sorted(of_replaced)]
    return {
        "replaced_secrets": len(replaced),
        "their_examples": len(own),
        "of_these_changed": float(np.mean(own)),
        "other_examples": len(elsewhere),
        "of_others_changed": float(np.mean(elsewhere)),
        "others_changed_per_replaced_secret": sum(elsewhere) / len(replaced),
    }


def blocks_of(texts: list[str], size: int = 4096) -> list[Block]:
    parts = [texts[begin : begin + size] for begin in range(0, len(texts), size)]
    return [Block(texts=pa.array(part, pa.large_string()), columns={}, rows=np.arange(len(part))) for part in parts]


def speed(texts: list[str], secrets: list[str]) -> dict[str, Any]:
    variants, size = Variants(keys=secrets), sum(len(text.encode()) for text in texts)
    variants.find(blocks_of(texts[:100])[0])
    begin, cpu, hits = time.perf_counter(), time.process_time(), 0
    for block in blocks_of(texts):
        hits += len(variants.find(block))
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    per_100_mb = 1e8 / size
    return {"bytes": size, "hits": hits, "seconds_per_100_mb": wall * per_100_mb, "cpu_per_100_mb": cpu * per_100_mb}


def hits_by_length(texts: list[str], secrets: list[str]) -> dict[int, dict[str, float]]:
    """Matches per secret by its length, without any limit: on its own, inflected, inside a word, across spaces."""
    variants = Variants(keys=secrets, limits=Limits(inflected=0, inside=0, spaced=0))
    forms = list(variants._forms)
    length_K = np.array([len(form) for form in forms])
    counts = np.zeros((len(forms), 4), dtype=np.int64)
    for block in blocks_of(texts):
        letters = letters_of(block)
        data, letter_of_byte = letters.encoded()
        matches = variants._automaton.find_matches_as_indexes(data, overlapping=True)
        match_H3 = np.fromiter(chain.from_iterable(matches), np.int64, 3 * len(matches)).reshape(-1, 3)
        form_H, from_H, last_H = match_H3[:, 0], match_H3[:, 1], match_H3[:, 2] - 1
        if letter_of_byte is not None:
            from_H, last_H = letter_of_byte[from_H], letter_of_byte[last_H]
        left_H, right_H = letters.is_part_Q[from_H], letters.is_part_Q[last_H + 1]
        ends_Q = np.append(letters.is_part_Q, np.ones(MAX_INFLECTION, dtype=bool))
        inflected_H = left_H & np.any([ends_Q[last_H + 1 + rest] for rest in range(1, MAX_INFLECTION + 1)], axis=0)
        spaced_H = letters.spaces_Q[last_H] > letters.spaces_Q[from_H]
        bounded_H = left_H & right_H
        kind_H = np.where(bounded_H, np.where(spaced_H, 3, 0), np.where(spaced_H, -1, np.where(inflected_H, 1, 2)))
        kept_H = (letters.example_Q[from_H] == letters.example_Q[last_H]) & (kind_H >= 0)
        np.add.at(counts, (form_H[kept_H], kind_H[kept_H]), 1)
    names = ("own", "inflected", "inside_a_word", "across_spaces")
    rows = {}
    for length in range(3, 13):
        mean = counts[length_K == length].mean(axis=0).round(2).tolist()
        rows[length] = {"secrets": int((length_K == length).sum()), **dict(zip(names, mean, strict=True))}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--column", default="abstract")
    parser.add_argument("--sample", type=int, default=20_000)
    parser.add_argument("--each", type=int, default=150, help="planted forms for each kind and length")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "slots.json")
    asked = parser.parse_args()
    texts = sampled(asked.data, asked.column, asked.sample)
    counts = Counter(word for text in texts for word in words_of(text))
    secrets = sorted(word for word, count in counts.items() if LEAST <= count <= MOST)
    by_words = {"find": "words", "documents": [LEAST, MOST]}
    begin = time.perf_counter()
    found = scanned(texts, by_words)
    seconds = time.perf_counter() - begin
    by_list = {"find": "literals", "values": secrets, "whole_words": True, "ignore_case": True}
    others = Counter(
        word for text in sampled(asked.data, asked.column, asked.sample, seed=1) for word in words_of(text)
    )
    candidates = {
        "in no abstract of the sample": [word for word, count in others.items() if count > 1 and word not in counts],
        "in 1 to 5 abstracts already": [word for word, count in counts.items() if count <= 5],
    }
    for words in candidates.values():
        words[:] = sorted(word for word in words if word.isalpha() and len(word) > 2)
    longer = [word for word in secrets if len(word) > 2]
    record = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": f"python benchmarks/slots.py --data abstracts.parquet --sample {asked.sample} --each {asked.each}",
        "commit": subprocess.run(["git", "rev-parse", "--short", "HEAD"], stdout=-1, text=True).stdout.strip(),
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count(), "load": os.getloadavg()},
        "versions": {"python": platform.python_version()}
        | {name: version(name) for name in ("hush", "numpy", "pyarrow", "ahocorasick_rs")},
        "abstracts": len(texts),
        "secrets": len(secrets),
        "whole_scan_seconds": seconds,
        "secret_text": found.summary()["secret_text"],
        "examples_with_secrets": int(np.count_nonzero(found.incidence.secrets_per_example)),
        "examples_with_slots": int(found.slots.has_slots_N.sum()),
        "pairs": found.incidence.num_entries,
        "examples_per_secret": found.summary()["examples_per_secret"],
        "examples_with_its_own_word_per_secret": [LEAST, MOST],
        "variant_pass": speed(texts, secrets),
        "hits_per_secret_by_length": hits_by_length(texts, longer),
        "missed_planted_forms": planted_forms(texts, longer, asked.each),
        "other_candidates": {
            f"{name}: {kind}": other_candidates(texts, secrets, rule, known)
            for name, rule in (("words", by_words), ("literals", by_list))
            for kind, known in candidates.items()
        },
    }
    asked.output.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
