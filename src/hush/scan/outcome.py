"""After the last shard: copies inherit, secrets get their public numbers, and reasons are written for the owner.

Shapes: N examples, S secrets, P pairs, H hits, R rules.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.incidence import Incidence
from hush.scan.collecting import Collecting
from hush.scan.finder import Prepared
from hush.scan.numbering import public_order, secret_table, unordered
from hush.scan.owner import REASONS, ROW_GROUP, OwnerFiles, OwnerWriter
from hush.scan.spreading import Inheritance, first_equal, inherited
from hush.scan.task import Signer
from hush.secret_table import Secrets

__all__ = ["NearCopies", "written_outcome"]

Sentences = Callable[[NDArray[np.int64], NDArray[np.int64]], Sequence[str]]  # of examples and where each has it from


class CopyGroups(Protocol):
    """Who is a copy of whom."""

    @property
    def first_N(self) -> NDArray[np.int64]:
        """The first example of each example's group."""
        ...

    def reasons(self, example: Any, origin: Any, /) -> Sequence[str]:
        """Why each example has what the origin, of its group, contains."""
        ...


class NearCopies(Signer, Protocol):
    """The rule of near copies, as ``hush.scan.copies.Copies`` has it."""

    def groups(self, signature_NK: Any, /) -> CopyGroups:
        """The groups, from the signatures of all examples in order."""
        ...


def written_outcome(
    found: Collecting, rules: Sequence[Prepared], owner: OwnerFiles, copies: NearCopies | None
) -> tuple[Incidence, Secrets, int]:
    """Incidence and secrets in public order, reasons in the owner's file, and how many pairs come from copies alone."""
    offset_R = found.offsets()
    example_P, secret_P = found.pairs()
    direct = len(example_P)
    spread: list[tuple[Inheritance, Sentences]] = []
    for first_N, reasons in _groups(found, copies) if direct else ():
        made = inherited(first_N, example_P, secret_P, num_secrets=int(offset_R[-1]))
        spread.append((made, reasons))
        example_P = np.concatenate([example_P, made.example_H])
        secret_P = np.concatenate([secret_P, made.secret_H])
    numbered = Incidence.from_pairs(example_P, secret_P, num_examples=found.num_examples, num_secrets=int(offset_R[-1]))
    listed = unordered(rules, found.numberings)
    order_S = public_order(listed, numbered)
    place_S = np.empty_like(order_S)
    place_S[order_S] = np.arange(len(order_S))
    _write_reasons(found, rules, owner, spread, place_S)
    secrets = secret_table(listed[number] for number in order_S.tolist())
    return numbered.select(secrets=order_S), secrets, len(example_P) - direct


def _write_reasons(
    found: Collecting,
    rules: Sequence[Prepared],
    owner: OwnerFiles,
    spread: Sequence[tuple[Inheritance, Sentences]],
    place_S: NDArray[np.int64],
) -> None:
    """What finders saw, then what copies add. place_S: the public number of each secret."""
    offset_R = found.offsets()
    name_R = pa.array([rule.name for rule in rules], pa.string())
    with OwnerWriter(owner.folder / "reasons.parquet", REASONS, kind="scan reasons") as writer:
        for batch in found.hits():
            rule_H = batch.column("rule").to_numpy()
            columns = {name: batch.column(name) for name in ("example", "reason", "begin", "end")}
            secret_H = place_S[offset_R[rule_H] + batch.column("number").to_numpy()]
            writer.write(columns | {"secret": secret_H, "rule": name_R.take(pa.array(rule_H))})
        for made, reasons in spread:
            for part in made.parts(ROW_GROUP):
                rule_H = np.searchsorted(offset_R, part.secret_H, side="right") - 1
                columns = {"example": part.example_H, "secret": place_S[part.secret_H]}
                columns |= dict.fromkeys(("begin", "end"), np.full(len(part), -1))
                sentences = reasons(part.example_H, part.origin_H)
                writer.write(columns | {"rule": name_R.take(pa.array(rule_H)), "reason": sentences})
    (owner.folder / "hits.arrows").unlink()


def _groups(found: Collecting, copies: NearCopies | None) -> Iterator[tuple[NDArray[np.int64], Sentences]]:
    """The first member of each example's group of copies, and why members share: equal texts first, then near ones."""
    yield first_equal(found.column("same")), _exact_copies
    if copies is not None:
        groups = copies.groups(found.column("signatures"))
        yield groups.first_N, groups.reasons


def _exact_copies(example_H: NDArray[np.int64], origin_H: NDArray[np.int64]) -> list[str]:
    return [f"exact copy of example {origin}" for origin in origin_H.tolist()]
