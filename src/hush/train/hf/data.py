"""The data of ``HushTrainer`` under a plan: they must be the plan's, row by row, in its order.

With the owner's key that is checked as ``hush train`` does; without it the certificate says that it was not.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch

from hush.data import Corpus
from hush.data.arrow_readers import DatasetPart
from hush.data.chat import Range
from hush.data.parts import shown_name
from hush.errors import InvalidInput
from hush.keys import LEAF_BYTES, DataKey, refuse_other_key
from hush.plan import Plan
from hush.plan.make import public_examples
from hush.slots import Spans
from hush.train.cautions import refuse_unlabelled
from hush.train.hf.collation import MAX_CHECKED, Collate, collated_alone, copied, held_state, refuse_tied
from hush.train.language_models import CausalCollator, Collator, MaskedCollator, TokenizedTexts
from hush.train.preferences import PreferencePairs
from hush.train.public.stream import PublicStream, default_batch
from hush.train.round import check_lengths
from hush.train.settings import Part
from hush.train.slots.batches import SkeletonBatches
from hush.train.slots.texts import SlotTexts, tokenise_slots

__all__ = [
    "CheckedRows",
    "Tokenised",
    "check_collator",
    "check_data",
    "check_key",
    "checked_fingerprint",
    "described_collator",
    "public_stream_of",
    "unchecked_marks",
    "with_slots",
]


Tokenised = TokenizedTexts | SlotTexts | PreferencePairs  # by hush, with the fingerprint of the texts


def check_data(data: Any, plan: Plan, collator: Any, buckets: Sequence[int]) -> None:
    """Refuse data that are not the plan's examples by number, and collators that are known to couple examples."""
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise InvalidInput(
            f"train_dataset is a {type(data).__name__}, which has no rows by number; a round draws from all "
            "examples: pass a dataset with a length and rows by number"
        )
    if len(data) != plan.incidence.num_examples:
        raise InvalidInput(
            f"train_dataset has {len(data)} rows but the plan is for {plan.incidence.num_examples} examples; pass the "
            "data that the plan was made for, a row for each example, in its order"
        )
    names = {kind.__name__ for kind in type(collator).__mro__}
    if "DataCollatorWithFlattening" in names or getattr(collator, "padding_free", False):
        raise InvalidInput(
            f"{type(collator).__name__} packs several examples into one sequence, and their gradients cannot be "
            "separated; use a collator that pads, with one row per example"
        )
    if "DataCollatorForLanguageModeling" in names and getattr(collator, "seed", None) is not None:
        raise InvalidInput(
            f"{type(collator).__name__}(seed={collator.seed}) masks by a known random stream, in which an example's "
            "position tells how many were drawn before it; leave the seed out"
        )
    if buckets:
        if not isinstance(collator, Collator) or not hasattr(data, "lengths"):
            raise InvalidInput(
                "buckets need data that know their lengths and a collator that pads to one: pass what "
                "hush.train.language_models.tokenise returns, and one of the collators of that module"
            )
        check_lengths(data.lengths, buckets)
    refuse_unlabelled(data)


def check_collator(collate: Collate, data: Any, *, name: str) -> None:
    """Refuse data that the collator makes no input of, and a collator that ties examples together."""
    numbers = (
        sorted({place * (len(data) - 1) // (MAX_CHECKED - 1) for place in range(MAX_CHECKED)}) if len(data) else []
    )
    rows = [data[number] for number in numbers]
    tried, states = copied(collate) or collate, list[dict[str, str]]()
    for number, row in zip(numbers, rows, strict=True):
        try:
            inputs = collated_alone(tried, row).keys() - {"labels"}
        except InvalidInput:
            raise
        except Exception as error:
            if not _is_raw(row):
                raise InvalidInput(
                    f"{name} fails on example {number} alone ({type(error).__name__}, shown above); every example "
                    "is collated by itself, so it must be able to make a batch of one"
                ) from error
            inputs = set()
        if not inputs:
            raise InvalidInput(_raw_text(row))
        states.append(held_state(tried))
        kept = [key for key in states[-1] if states[-1][key] != states[0].get(key)]  # the first call may set things up
        if kept:
            raise InvalidInput(
                f"{name} keeps state between calls ({', '.join(kept)} changed when it collated another example), so "
                "what it makes of an example may depend on which were drawn before; compute every row from its example "
                "alone, and keep counts, caches and numberings out of the collator"
            )
    refuse_tied(collate, rows, name=name)


def described_collator(collator: Any) -> str:
    """How messages call a collator: a function by its name, an object by that of its class."""
    name = getattr(collator, "__name__", None)
    return name if isinstance(name, str) else type(collator).__name__


def _is_raw(row: Any) -> bool:
    """Whether a row holds texts and single numbers only: nothing that a tokenizer or an image processor made."""
    values = row.values() if isinstance(row, Mapping) else [row]
    return all(value is None or isinstance(value, str | bool | int | float) for value in values)


def _raw_text(row: Any) -> str:
    columns = [shown_name(str(name)) for name in row] if isinstance(row, Mapping) else []
    held = f"rows with the columns {', '.join(columns)}" if columns else f"rows of type {type(row).__name__}"
    return (
        f"train_dataset holds {held}, from which no input for the model comes; if it holds text, pass the tokenizer as "
        "processing_class=, or tokenise it first: hush.train.tokenise(train_dataset, tokenizer, max_length=..., "
        "key=...), or train_dataset.map(...) that keeps the column of the text, and then pass key= and column= to have "
        "it checked"
    )


_NO_KEY = (
    "data not checked: HushTrainer got no key, so nothing shows that its rows are the plan's examples, in their order"
)
_NO_FINGERPRINT = "data not checked: the plan does not say which data it was made for"


def unchecked_marks(plan: Plan, *, fingerprint: str | None) -> tuple[str, ...]:
    """The mark of a certificate if nobody compared the data with the plan."""
    if fingerprint is not None:
        return ()
    return (_NO_FINGERPRINT if plan.data_fingerprint is None else _NO_KEY,)


def check_key(plan: Plan, key: DataKey | str | os.PathLike[str] | None) -> DataKey | None:
    """The key, read from its file if a path is given; refuses one that cannot check the plan's data."""
    if key is None:
        return None
    loaded = key if isinstance(key, DataKey) else DataKey.load(key)
    if plan.data_fingerprint is None:
        raise InvalidInput(
            "the plan does not say which data it was made for, so the key can check nothing; make the plan with "
            "data_fingerprint=key.fingerprint_rows(texts), or leave the key out, which marks the certificate",
            setting="key",
        )
    refuse_other_key(loaded, plan.data_fingerprint)
    return loaded


def checked_fingerprint(
    data: Any,
    plan: Plan,
    *,
    key: DataKey | None,
    column: str,
    stated: str | None = None,
    rows: "CheckedRows | None" = None,
) -> str | None:
    """The keyed fingerprint of the texts, which is the plan's; without a key what the caller states, maybe None.

    Reads every text once, unless ``rows`` has read them.
    """
    if stated is not None and stated != plan.data_fingerprint:
        raise InvalidInput(
            f"the data have the keyed fingerprint {stated}, but the plan was made for {plan.data_fingerprint}; pass "
            "the data that the plan was made for, under the same key, or plan again",
            setting="data_fingerprint",
        )
    if key is None:
        return stated
    if isinstance(data, Tokenised):
        found = data.fingerprint
        if found is None:
            maker = {SlotTexts: "tokenise_slots", PreferencePairs: "tokenise_pairs"}.get(type(data), "tokenise")
            raise InvalidInput(
                f"these {type(data).__name__} hold tokens only, which say nothing about their texts; make them with "
                f"hush.train.{maker}(texts, tokenizer, ..., max_length=..., key=key)",
                setting="train_dataset",
            )
    else:
        found = key.fingerprint_leaves(rows.leaves if rows else map(key.fingerprint_row, _texts(data, column)))
    if found != plan.data_fingerprint:
        what = "its texts" if isinstance(data, Tokenised) else f"its column {shown_name(column)!r}"
        raise InvalidInput(
            f"train_dataset is not the data that the plan was made for: the fingerprint of {what} under your key "
            "differs. Pass the same rows in the same order, not shuffled, filtered or edited, or scan and plan again"
        )
    return found


@final
class CheckedRows:
    """The rows of a dataset whose order Python code can change, such as a list, compared again when they are drawn.

    Keeps the keyed fingerprint of every text, 32 bytes each. Of what the datasets library and ``tokenise`` make, rows
    cannot be moved in place, and nothing is kept.
    """

    def __init__(self, data: Any, *, key: DataKey, column: str) -> None:
        self._key, self._column = key, column
        self._leaves = b"".join(map(key.fingerprint_row, _texts(data, column)))

    @staticmethod
    def are_needed(data: Any) -> bool:
        """Whether rows of these data may be moved in place."""
        return not isinstance(data, Tokenised) and not _is_of_datasets(data)

    @property
    def leaves(self) -> Iterator[bytes]:
        """The fingerprint of every row, as it was when this was made."""
        return (self._leaves[begin : begin + LEAF_BYTES] for begin in range(0, len(self._leaves), LEAF_BYTES))

    def check(self, number: int, row: Any) -> None:
        """Refuse a row whose text is no longer that of this number. Errors name rows, never what they hold."""
        text = _text_of(row, number, self._column)
        if self._key.fingerprint_row(text) != self._leaves[number * LEAF_BYTES : (number + 1) * LEAF_BYTES]:
            raise InvalidInput(
                f"row {number} of train_dataset is no longer the row that was compared with the plan: the data were "
                "shuffled or edited in place during training; train on the plan's examples, in their order, from the "
                "first round to the last"
            )


def _is_of_datasets(data: Any) -> bool:
    """Whether this is a dataset of the datasets library, which is read by column and never changes in place."""
    return hasattr(data, "with_format") and hasattr(data, "select_columns")


def _texts(data: Any, column: str) -> Iterator[str]:
    """The text of every row, in order; errors name rows, never what they hold."""
    if _is_of_datasets(data):
        if column not in data.column_names:
            raise _no_column(data.column_names, column)
        yield from Corpus(
            source="train_dataset", column=column, parts=(DatasetPart(Path("train_dataset"), data),)
        ).texts()
        return
    for number in range(len(data)):
        yield _text_of(data[number], number, column)


def _text_of(row: Any, number: int, column: str) -> str:
    if isinstance(row, Mapping) and column not in row:
        raise _no_column(row, column)
    text = row[column] if isinstance(row, Mapping) else row
    if not isinstance(text, str):
        raise InvalidInput(
            f"row {number} of train_dataset has a {type(text).__name__} where its text should be; name the column "
            "of the text with column="
        )
    return text


def _no_column(columns: Iterable[Any], column: str) -> InvalidInput:
    shown = ", ".join(shown_name(str(name)) for name in columns)
    return InvalidInput(
        f"train_dataset has no column {shown_name(column)!r}, only {shown}; its texts are compared with the plan, so "
        "keep their column when tokenising (leave it out of remove_columns), or name another one with column="
    )


# ---- slots ----


def with_slots(
    data: Any,
    plan: Plan,
    spans: Spans | None,
    tokenizer: Any,
    collator: Any,
    *,
    part: Part,
    key: DataKey | None,
    column: str,
    learnt: Iterable[Sequence[Range]] | None = None,
) -> SlotTexts:
    """The tokens of data with slots, made here from texts and spans, unless the caller made them.

    learnt: of each text the ranges of characters to learn; all of it by default.
    """
    if type(collator) not in (CausalCollator, MaskedCollator):
        raise InvalidInput(
            "examples with slots need a collator that keeps skeletons and texts apart; pass data_collator="
            "hush.train.CausalCollator(...) or MaskedCollator(...)",
            setting="data_collator",
        )
    if isinstance(data, SlotTexts) and data.skeletons.slots == plan.slots:
        return data
    if plan.slots is None or spans is None or isinstance(data, SlotTexts):
        raise InvalidInput(
            "spans belong to a plan with slots, and such a plan to spans; pass a plan made with the slots of the scan, "
            "and spans=, those of the same scan",
            setting="spans",
        )
    texts = _texts(data, column)
    return tokenise_slots(texts, tokenizer, plan, spans, max_length=collator.length, part=part, key=key, learnt=learnt)


def public_stream_of(
    plan: Plan, texts: SlotTexts, collator: Any, device: torch.device, micro_batch: int
) -> PublicStream | None:
    """The public stream over skeletons and examples without a secret; None if nothing is public."""
    public = public_examples(plan).size
    if not public:
        return None
    collate = SkeletonBatches(texts.skeletons, collator, device)
    return PublicStream(plan, collate, batch_size=default_batch(plan, public), weight=None, micro_batch=micro_batch)
