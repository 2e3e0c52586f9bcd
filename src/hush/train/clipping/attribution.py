"""Attribution: which rows of a layer belong to which example, proven on the batches that are trained.

A tap hands out one gradient per example, so everything rests on the claim that block j of a layer's rows belongs to
example j: that no other example's loss depends on it. Shapes suggest that; they do not show it. Three things do:

- :class:`~hush.train.clipping.data_flow.DataFlow` follows a dry run operator by operator and notes where the data
  decide which rows go where. A model in which that reaches a tapped layer is checked at every batch, others from time
  to time.
- :func:`row_layouts` compares two dry runs, with B and with B + 1 examples: rows of examples grow with their number,
  tables that all examples share do not, whatever their size is by chance.
- :class:`Weighing` checks a batch. Gradients are linear in the losses, so if each loss is multiplied by a weight of its
  own, block j of every gradient must be multiplied by weight j. A contribution of another example's loss would carry
  that example's weight. Weights are powers of two, for which floating-point arithmetic is linear without rounding, and
  any two examples differ in at least one of the weightings.

Shapes: B examples of a micro-batch.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, final

import torch
from torch import Tensor

__all__ = ["Layout", "Shapes", "Weighing", "is_due", "row_layouts"]


Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]  # of the tensors that one call of a layer gets
Layout = Literal["rows", "flattened", "shared"]

LATER_LOOKS = 256  # after the batches 1, 2, 4, 8, … of a shape, every so many are looked at
RADIX = {torch.float16: 2}  # weights of a weighing: so many powers of two; float16 has few
DEFAULT_RADIX = 16
DIRECTIONS = 2  # random ones, onto which each example's gradient is projected
# What kernels that add in an order of their own may change: relative to a block's norm, by the coarsest type in which
# anything of the pass is computed (a float32 gradient comes out of bfloat16 products), and relative to the norm of all
# of its example's blocks (what cancels to rounding errors need not agree). A contribution of another example is off by
# half of itself or more.
MAX_DIFFERENCE = {torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8}
DEFAULT_MAX_DIFFERENCE = 2.0**-14
NEGLIGIBLE_SHARE = 2.0**-8  # of that tolerance


def is_due(use: int) -> bool:
    """Whether the use of a plan with this number, from 1, is looked at: 1, 2, 4, 8, … and then every 256th."""
    return use % LATER_LOOKS == 0 or use & (use - 1) == 0


# ---- which rows are whose, by their number ----


def row_layouts(shapes: Shapes, larger: Shapes, size: int) -> tuple[Layout | None, ...]:
    """How the tensors of one call hold their examples, from their shapes for `size` and for one example more.

    rows: one each. flattened: n for each example, one example after the other. shared: the same for all. None: none of
    these.

    >>> row_layouts(((4, 7), (28, 2), (4, 4), (9,)), ((5, 7), (35, 2), (4, 4), (11,)), 4)
    ('rows', 'flattened', 'shared', None)
    """

    def layout(shape: Shape, other: Shape) -> Layout | None:
        if shape == other:
            return "shared"
        if shape[1:] != other[1:] or shape[0] % size or shape[0] == 0:
            return None
        each = shape[0] // size
        return None if other[0] != each * (size + 1) else "rows" if each == 1 else "flattened"

    return tuple(layout(*pair) if len(pair[0]) == len(pair[1]) else None for pair in zip(shapes, larger, strict=True))


# ---- the proof for one batch ----


@final
class Weighing:
    """Weighs the losses of a batch, pass by pass, and compares every example's gradients with its weights.

    Fingerprints (a norm and projections onto random directions, one row for each example) stand for the gradients, so
    that no second copy of these is needed. dtypes: those of the gradients, and of the computation.
    """

    def __init__(self, size: int, dtypes: set[torch.dtype], device: torch.device) -> None:
        radix = min((RADIX.get(dtype, DEFAULT_RADIX) for dtype in dtypes), default=DEFAULT_RADIX)
        digits = max(1, math.ceil(math.log(size, radix) - 1e-9)) if size > 1 else 0
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=_own_generator())))
        code = torch.randperm(size, generator=generator)
        exponents = [(code // radix**digit) % radix - radix // 2 for digit in range(digits)]
        self.weights = [torch.exp2(exponent.float()).to(device) for exponent in exponents]
        self._seed = int(torch.randint(2**62, (), generator=generator))
        self._plain: dict[Any, Tensor] = {}
        self._tolerance = max((MAX_DIFFERENCE.get(dtype, 0.0) for dtype in dtypes), default=0.0)
        self._tolerance = max(self._tolerance, DEFAULT_MAX_DIFFERENCE)

    def see_plain(self, gradients: Mapping[Any, Tensor]) -> None:
        """The gradients of the losses as they are, B × anything each."""
        self._plain = {key: self._fingerprint(number, value) for number, (key, value) in enumerate(gradients.items())}

    def wrong(self, weight_B: Tensor, gradients: Mapping[Any, Tensor]) -> list[Any]:
        """The gradients, in the order of `see_plain`, that do not follow the weights.

        Blocks that are not finite are left out: such an example adds nothing to the sum.
        """
        if not gradients:
            return []
        norms = torch.stack([value[:, 0] for value in self._plain.values()])
        total_B = torch.linalg.vector_norm(torch.where(norms.isfinite(), norms, 0.0), dim=0)
        wrong = []
        for number, (key, value) in enumerate(gradients.items()):
            plain, weighed = self._plain[key], self._fingerprint(number, value)
            usable_B = plain.isfinite().all(1) & weighed.isfinite().all(1)
            allowed_B = self._tolerance * (plain[:, 0] + NEGLIGIBLE_SHARE * total_B)
            # Divided by the weight, so that nothing depends on how large weights are.
            off_B = (weighed / weight_B.unsqueeze(1) - plain).abs().amax(1) > allowed_B
            if bool((off_B & usable_B).any()):
                wrong.append(key)
        return wrong

    @property
    def compared(self) -> set[Any]:
        """Those for which at least two examples have a gradient: fewer prove nothing about who is who."""
        rows = {key: (value[:, 0] > 0) & value[:, 0].isfinite() for key, value in self._plain.items()}
        return {key for key, row in rows.items() if int(row.sum()) > 1}

    def _fingerprint(self, number: int, gradient: Tensor) -> Tensor:
        """[norm, projection, …] of each example's block, in float32."""
        flat = gradient.detach().reshape(len(gradient), -1).float()
        generator = torch.Generator(flat.device).manual_seed((self._seed + number) % 2**62)
        directions = torch.randn(flat.shape[1], DIRECTIONS, generator=generator, device=flat.device)
        return torch.cat([torch.linalg.vector_norm(flat, dim=1, keepdim=True), flat @ directions], 1)


def _own_generator() -> torch.Generator:
    """Fresh entropy: a look takes no number from a generator that training draws from."""
    generator = torch.Generator()
    generator.seed()
    return generator
