"""From a checkout to a prepared study: a tokenizer and a base corpus of public code, blocks, canaries, plans."""

import hashlib
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any

import numpy as np

from experiments.code_base.arms import plans_of
from experiments.code_base.company import PROMISES, Company, read_company
from experiments.code_base.prepared import Blocks, Prepared
from experiments.code_base.scales import Scale
from hush.audit.canaries import Candidates, PlantedCanaries, Template, plant
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.protection import Protection
from hush.secret_table import Secrets

__all__ = ["blocks_of", "prepare", "public_texts"]

SHORTEST = 16  # tokens: a shorter rest of a file is no example
LARGEST_PUBLIC = 40_000  # bytes of a file of public code
CANARY = Template.parse('SERVICE_TOKEN_{number} = "{secret}"\n')
FORMAT = ("hex", 6)
CANARY_CEILING = 1e-2


def prepare(root: Path, scale: Scale, *, projects: str, public: Sequence[Path] | None = None) -> Prepared:
    """public: folders of other people's code, by default Python's library, if that is not the company, and packages."""
    company = read_company(root, projects=projects, largest=scale.largest, share=scale.share)
    texts = {name: (company.root / name).read_text() for name in _all_files(company)}
    shown = list(public_texts(public or _public_folders(company.root), texts.values(), scale.public_size))
    tokenizer = _trained_tokenizer(shown, scale.vocabulary)

    def cut(names: Sequence[str]) -> list[tuple[str, list[int]]]:
        return [(name, row) for name in names for row in blocks_of(tokenizer.encode(texts[name]).ids, scale.length)]

    trained = cut(company.trained)
    known = {tuple(row) for _, row in trained}
    incidence = Incidence.from_pairs(
        *_pairs(trained, company), num_examples=len(trained), num_secrets=len(company.names)
    )
    secrets = Secrets([Protection(*promise) for promise in company.promises], ids=company.names)
    planted = plant(
        incidence, secrets, [CANARY], Candidates.of_format(*FORMAT),
        count=scale.canaries, repeats=scale.repeats, ceiling=CANARY_CEILING, rng=SystemRandom(),
    )  # fmt: skip
    held_out = {
        f"{kind}_{part}": Blocks.of(_fresh(cut(names[begin::2]), known), scale.length)
        for part, names in (("free", company.held_out_free), ("projects", company.held_out_projects))
        for begin, kind in ((0, "valid"), (1, "test"))
    }
    missing = [name for name, blocks in held_out.items() if not len(blocks)]
    if missing:
        raise InvalidInput(f"{root}: nothing is left for {', '.join(missing)}; pass a larger code base")
    rows = [row for _, row in trained] + [tokenizer.encode(text).ids[: scale.length] for text in planted.texts]
    full = [number for number, (name, row) in enumerate(trained) if name in company.own and len(row) == scale.length]
    return Prepared(
        scale=scale,
        trained=Blocks.of(rows, scale.length),
        public=Blocks.of(
            [row for text in shown for row in blocks_of(tokenizer.encode(text).ids, scale.length)], scale.length
        ),
        **held_out,
        spans=np.array(_some(full, scale.spans), dtype=np.int64),
        incidence=planted.incidence,
        plans=plans_of(
            planted.incidence, planted.secrets,
            batch_size=scale.batch_size, rounds=scale.rounds, keep=scale.keep, clip_norm=scale.clip_norm,
        ),
        canaries=planted.canaries,
        candidates=planted.candidates,
        tokenizer=tokenizer.to_str(),
        facts=_facts(company, trained, planted, shown),
    )  # fmt: skip


def blocks_of(tokens: Sequence[int], length: int) -> Iterator[list[int]]:
    """A file's tokens in order, so many at a time; a short rest is left out.

    >>> [len(block) for block in blocks_of(range(300), 128)]
    [128, 128, 44]
    """
    for begin in range(0, len(tokens), length):
        if min(length, len(tokens) - begin) >= min(SHORTEST, length):
            yield list(tokens[begin : begin + length])


def public_texts(folders: Sequence[Path], private: Any, size: int) -> Iterator[str]:
    """Python files below these folders, in an order that depends on their names, up to so many characters.

    Whatever is in the company's files, word for word, is left out.
    """
    known = {hashlib.sha256(text.encode()).digest() for text in private}
    found = [path for folder in folders for path in folder.rglob("*.py")]
    left = size
    for path in sorted(set(found), key=lambda path: hashlib.sha256(path.name.encode() + bytes(path)).digest()):
        if not 0 < path.stat().st_size <= LARGEST_PUBLIC:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        digest = hashlib.sha256(text.encode()).digest()
        if digest in known:
            continue
        known.add(digest)
        yield text
        left -= len(text)
        if left <= 0:
            return


def _public_folders(company: Path) -> list[Path]:
    library, packages = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    return [packages] if company in (library, *library.parents) else [library, packages]


def _trained_tokenizer(texts: Sequence[str], vocabulary: int) -> Any:
    """Bytes and what often follows them in public code."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<pad>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _all_files(company: Company) -> list[str]:
    return [*company.trained, *company.held_out_free, *company.held_out_projects]


def _pairs(trained: Sequence[tuple[str, Any]], company: Company) -> tuple[list[int], list[int]]:
    pairs = [(number, s) for number, (name, _) in enumerate(trained) for s in company.secrets_of.get(name, ())]
    return [example for example, _ in pairs], [secret for _, secret in pairs]


def _fresh(rows: Sequence[tuple[str, list[int]]], known: set[tuple[int, ...]]) -> list[list[int]]:
    """Blocks that are not trained on: the same lines often stand in several files."""
    return [row for _, row in rows if tuple(row) not in known]


def _some(numbers: Sequence[int], most: int) -> list[int]:
    """At most so many, evenly spread."""
    return [numbers[int(place)] for place in np.linspace(0, len(numbers) - 1, min(most, len(numbers)))]


def _facts(company: Company, trained: Sequence[Any], planted: PlantedCanaries, shown: Sequence[str]) -> dict[str, Any]:
    graph = planted.incidence
    per_secret = graph.examples_per_secret[: len(company.names)]
    return {
        "files": len(company.trained),
        "held_out_free_files": len(company.held_out_free),
        "held_out_project_files": len(company.held_out_projects),
        "examples": len(trained),
        "tokens": sum(len(row) for _, row in trained),
        "secret_projects": len(company.names),
        "contributors": company.people,
        "examples_with_secrets": int((graph.secrets_per_example[: len(trained)] > 0).sum()),
        "examples_per_secret": {
            "median": float(np.median(per_secret)), "mean": float(per_secret.mean()), "most": int(per_secret.max()),
        },
        "promises": [list(promise) for promise in PROMISES],
        "public_files": len(shown),
        "public_characters": sum(map(len, shown)),
    }  # fmt: skip
