"""The public content that a rehearsal may see: clear examples and skeletons, and the words that they share.

What an example shows is decided by the plan alone: its text if it holds no secret, its skeleton if all its secrets
stand in slots, and nothing otherwise. The examples that the plan holds out stay out, because the losses of the real
training are measured on them.

Shapes: D documents of the rehearsal, which are examples with a public part.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.plan.make import public_examples
from hush.plan.plan import fingerprint
from hush.slots import Spans, placeholder

__all__ = ["MIN_DOCUMENTS", "PublicContent", "public_content"]


MIN_DOCUMENTS = 60  # with fewer, neither players nor what is measured on would be more than a handful
WORD = re.compile(r"\w{3,}")


@final
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PublicContent:
    """Texts that no promise covers. example_D: which example of the plan each is, ascending; available: how many such
    examples the plan has, of which these are a sample. rules: names of rules whose placeholders stand in skeletons.
    group_D: a public label of each, such as a folder or an author, if the caller knows one.

    The repr shows no text: a public text may still be the owner's own.
    """

    texts: tuple[str, ...]
    example_D: NDArray[np.int64]
    available: int
    rules: tuple[str, ...] = ()
    group_D: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.texts) != len(self.example_D) or len(self.group_D or self.texts) != len(self.texts):
            raise InvalidInput("texts, example numbers and groups differ in length; pass one of each per document")
        if len(self.texts) < MIN_DOCUMENTS:
            raise InvalidInput(
                f"only {len(self.texts)} examples have a public part, and a rehearsal needs at least {MIN_DOCUMENTS}: "
                "too little is public to play the secrets with"
            )

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def documents_by_word(self) -> dict[str, NDArray[np.int64]]:
        """The documents in which each word occurs that at least two of them share; words are compared without case."""
        hidden = {word for rule in self.rules for word in WORD.findall(placeholder(rule).casefold())}
        found: defaultdict[str, list[int]] = defaultdict(list)
        for document, text in enumerate(self.texts):
            for word in sorted({match.casefold() for match in WORD.findall(text)}):
                found[word].append(document)
        return {
            word: np.asarray(documents, dtype=np.int64)
            for word, documents in sorted(found.items())
            if len(documents) > 1 and word not in hidden
        }

    @cached_property
    def documents_by_group(self) -> dict[str, NDArray[np.int64]]:
        """The documents of each label."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for document, group in enumerate(self.group_D or ()):
            found[group].append(document)
        return {group: np.asarray(documents, dtype=np.int64) for group, documents in sorted(found.items())}

    @cached_property
    def digest(self) -> str:
        """What tells this content from other content, for the owner's folder: sizes and example numbers."""
        lengths = np.fromiter((len(text) for text in self.texts), dtype=np.int64, count=len(self.texts))
        groups = np.array([len(group) for group in self.group_D or ()], dtype=np.int64)
        return fingerprint(b"hush rehearsal content 1\n", self.example_D, lengths, groups)

    def __repr__(self) -> str:
        return f"PublicContent({len(self)} of {self.available} public examples)"


def public_content(
    plan: Plan, texts: Iterable[str], *, spans: Spans | None = None, max_examples: int = 20_000, seed: int = 0
) -> PublicContent:
    """The public part of a plan's data, or a random sample of it. texts: of all examples, row by row, read once.

    Guarantee: what is kept is a function of the graph, the slots, the seed and public text. The text of an example that
    is secret as a whole, and what stands in a slot, is not kept, whatever it is.
    """
    none_needed = plan.slots is None and (spans is None or not len(spans.slots))
    if not none_needed and (spans is None or spans.slots != plan.slots):
        raise InvalidInput(
            "the spans say where in the texts the plan's slots are; pass those of the scan that was planned for"
        )
    examples = public_examples(plan)
    available = int(examples.size)
    if available > max_examples:
        rng = np.random.default_rng([seed, 0])
        examples = np.sort(rng.choice(examples, max_examples, replace=False))
    wanted, kept, rows = set(examples.tolist()), dict[int, str](), 0
    for example, text in enumerate(texts):
        rows += 1
        if example in wanted:
            public = text if spans is None else spans.skeleton(example, text)
            if public.strip():  # an empty text can neither play nor be measured on
                kept[example] = public
    if rows != plan.incidence.num_examples:
        raise InvalidInput(
            f"there are {rows} texts but the plan has {plan.incidence.num_examples} examples; pass the plan's data"
        )
    return PublicContent(
        texts=tuple(kept.values()),
        example_D=np.fromiter(kept, dtype=np.int64, count=len(kept)),
        available=available,
        rules=() if plan.slots is None else plan.slots.rules,
    )
