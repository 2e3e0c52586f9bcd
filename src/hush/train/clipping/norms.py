"""Per-example gradients of parameters, dense or in factors: their norms, and their clipped sums.

Norms are float32 whatever the model computes in. Each squared norm comes with a `spread`: the square of what
an example will add to the sum, divided by its scale squared, is at most squared norm + spread. It covers all that
rounding can do to the norm, in the standard model |fl(a op b) - (a op b)| <= u |a op b|, u = 2^-24, whatever the order
of summation; what underflows, at most TINY per product; and the rounding of scaled factors to the type they are
multiplied in.

A sum over examples is rounded, too, and how depends on all of its terms: with and without one example it may differ by
more than that example. So few gradients are added up in float32 at a time, and everything else in float64, where the
totals of a round can take any number of examples (docs/proofs, "Sums").

A model has hundreds of parameters, and a GPU finishes a small one before the next call reaches it, so many calls cost
more than the arithmetic. Therefore small dense gradients are joined into one tensor, and large ones of equal shape are
added a few at a time by one compiled kernel.

Shapes: B examples, T positions, O × I the parameter.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import torch
from torch import Tensor

__all__ = [
    "STAGE",
    "TINY",
    "UNIT",
    "Chunked",
    "DenseGrads",
    "Factors",
    "Kernels",
    "PerExampleGrads",
    "Rows",
    "add_clipped_sum_",
    "add_several_",
    "depth",
    "full_precision",
    "kept",
    "merged",
    "scaled",
    "sliced",
    "squared_norms",
    "staged_sum",
    "times",
]


UNIT = 2.0**-24
TINY = 2.0**-126  # a product below this may be lost altogether
STAGE = 1024  # terms that are summed at a time, so that rounding grows with the number of stages, not of terms
JOINED_MAX_ENTRIES = 2**20  # of all examples: copying a larger gradient costs more than a call
SUMMANDS_IN_FLOAT32 = 32  # (E33), dense gradients of as many examples: a sum is then off by at most 1e-4 of C
SCALED_ENTRIES = 2**28  # of gradients that are scaled at a time on a GPU: 1 GiB
SUMMED_POSITIONS = 2**28  # (E34), positions of all examples times examples that one product adds up
FULL_RATE_FLOAT64 = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}  # CUDA capabilities: multiply as fast as in float32
PARAMETERS_PER_KERNEL = 4  # large ones that one kernel adds: more would save calls but take long to compile


@final
class DenseGrads:
    """Dense per-example gradients of several parameters, B × shape each, for the same examples.

    With scales, those of the scaled gradients: for the numbers of some parameters they give the scales of all their
    coordinates as one vector. What is passed in stays as it is.
    """

    def __init__(self, gradients: Sequence[Tensor], *, scales: Callable[[Sequence[int]], Tensor] | None = None) -> None:
        small, self._large = _by_size(gradients)
        self._joined = [(group, torch.cat([_flat(gradients[k]) for k in group], 1)) for group in small]
        if scales is not None:
            for group, joined in self._joined:
                joined.mul_(scales(group))
            scaled_ = {k: times(gradients[k], scales([k]).view(gradients[k].shape[1:])) for k in self._large}
            gradients = [scaled_.get(k, gradient) for k, gradient in enumerate(gradients)]
        self._gradients = gradients  # the small ones unscaled: their joined copies are used

    def squared_norms(self) -> tuple[Tensor, Tensor]:
        """(squared norm, spread) of each example's gradient over all these parameters."""
        tensors = [self._gradients[k] for k in self._large] + [joined for _, joined in self._joined]
        partial = torch.cat([part for tensor in tensors for part in _norms_of_stages(tensor)], 1)
        square = staged_sum(partial.square())
        # A product, at most STAGE additions, a root (which counts twice in its square), a square, and the later stages.
        rounding = STAGE + 4 + depth(partial.shape[1])
        lost = 2 * sum(gradient[0].numel() for gradient in self._gradients) * TINY
        return square, (rounding + 2) * UNIT * square + lost

    def add_clipped_sums_(
        self,
        totals: Sequence[Tensor],
        scale_B: Tensor,
        *,
        several: Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None] | None = None,
    ) -> None:
        """Each total += sum over examples of scale × its gradient. A scale of 0 leaves its example out, whatever it
        holds.

        several may be a compiled version of add_several_, for a GPU.
        """
        several = several if several is not None and scale_B.is_cuda else add_several_
        for group, joined in self._joined:
            sums = torch.zeros_like(joined[0], dtype=totals[group[0]].dtype)
            several([sums], [joined], scale_B)
            grouped = [totals[k] for k in group]
            pieces = sums.split([total.numel() for total in grouped])
            views = [piece.view_as(total) for piece, total in zip(pieces, grouped, strict=True)]
            torch._foreach_add_(grouped, views)  # pyright: ignore[reportPrivateImportUsage]
        for group in _alike(self._large, self._gradients):
            several([totals[k] for k in group], [self._gradients[k] for k in group], scale_B)


def add_several_(totals: Sequence[Tensor], gradients: Sequence[Tensor], scale_B: Tensor) -> None:
    """Each total += sum over examples of scale × its gradient; the sums of a few examples are float32."""
    add = _add_sums_of_few_ if scale_B.is_cuda else _add_products_
    for total, gradient in zip(totals, gradients, strict=True):
        add(total, gradient, scale_B)


def _add_products_(total: Tensor, gradient: Tensor, scale_B: Tensor) -> None:
    """On a CPU: a product with a vector reads every gradient once, and no compiled loop is faster."""
    for part, scales in zip(gradient.split(SUMMANDS_IN_FLOAT32), scale_B.split(SUMMANDS_IN_FLOAT32), strict=True):
        keep = scales > 0
        kept, factors = (part, scales) if keep.all() else (part[keep], scales[keep])
        total += torch.mv(kept.float().flatten(1).t(), factors).view_as(total)


def _add_sums_of_few_(total: Tensor, gradient: Tensor, scale_B: Tensor) -> None:
    """On a GPU: few calls, whatever the number of examples, so that many examples take no longer to compile."""
    slices = max(1, SCALED_ENTRIES // (SUMMANDS_IN_FLOAT32 * max(total.numel(), 1)))
    for part, scales in zip(*(x.split(slices * SUMMANDS_IN_FLOAT32) for x in (gradient, scale_B)), strict=True):
        of_each = scaled(part, scales)
        even = len(of_each) - len(of_each) % SUMMANDS_IN_FLOAT32
        if even:
            of_few = of_each[:even].unflatten(0, (-1, SUMMANDS_IN_FLOAT32)).sum(1)
            total += of_few.sum(0, dtype=total.dtype).view_as(total)
        if even < len(of_each):
            total += of_each[even:].sum(0).view_as(total)


def scaled(x: Tensor, scale_B: Tensor) -> Tensor:
    """scale × x for each example, in float32; exactly 0 where the scale is, even for values that are not finite."""
    scale = scale_B.view(-1, *[1] * (x.dim() - 1))
    return torch.where(scale > 0, x.float() * scale, 0.0)


def times(x: Tensor, scale: Tensor) -> Tensor:
    """The product in the type of x, computed in float32 and rounded once."""
    return torch.mul(x, scale, out=torch.empty_like(x, memory_format=torch.contiguous_format))


def staged_sum(x: Tensor) -> Tensor:
    """Sum of each example's entries, by stages of at most STAGE terms."""
    x = x.flatten(1)
    while x.shape[1] > STAGE:
        rest = x.shape[1] % STAGE
        stages = x[:, : x.shape[1] - rest].unflatten(1, (-1, STAGE)).sum(2)
        x = torch.cat([stages, x[:, x.shape[1] - rest :].sum(1, keepdim=True)], 1) if rest else stages
    return x.sum(1)


def depth(terms: int) -> int:
    """The most additions that one term of a staged sum of this many terms passes through."""
    count = 0
    while terms > STAGE:
        count, terms = count + STAGE, terms // STAGE + 1
    return count + terms


def _flat(gradient: Tensor) -> Tensor:
    """B × entries; a parameter that is a single number has gradients of one dimension."""
    return gradient.flatten(1) if gradient.dim() > 1 else gradient.unsqueeze(1)


def _norms_of_stages(gradient: Tensor) -> Iterator[Tensor]:
    """Norms of each example's stretches of at most STAGE entries, B × stretches, in float32."""
    x = gradient.flatten(1)
    even = x.shape[1] - x.shape[1] % STAGE
    if even:
        yield torch.linalg.vector_norm(x[:, :even].unflatten(1, (-1, STAGE)), dim=2, dtype=torch.float32)
    if even < x.shape[1]:
        yield torch.linalg.vector_norm(x[:, even:], dim=1, keepdim=True, dtype=torch.float32)


def _by_size(gradients: Sequence[Tensor]) -> tuple[list[list[int]], list[int]]:
    """The small ones, in groups of one type and device, and the large ones."""
    groups: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    large: list[int] = []
    for k, gradient in enumerate(gradients):
        if gradient.numel() <= JOINED_MAX_ENTRIES:
            groups.setdefault((gradient.dtype, gradient.device), []).append(k)
        else:
            large.append(k)
    return list(groups.values()), large


def _alike(chosen: Sequence[int], gradients: Sequence[Tensor]) -> Iterator[list[int]]:
    """PARAMETERS_PER_KERNEL at a time of equal shape and type, then one by one, so that few kernels are compiled."""
    groups: dict[tuple[torch.Size, torch.dtype], list[int]] = {}
    for k in chosen:
        groups.setdefault((gradients[k].shape, gradients[k].dtype), []).append(k)
    for group in groups.values():
        even = len(group) - len(group) % PARAMETERS_PER_KERNEL
        yield from (group[start : start + PARAMETERS_PER_KERNEL] for start in range(0, even, PARAMETERS_PER_KERNEL))
        yield from ([k] for k in group[even:])


# ---- one parameter: dense, in factors, or by rows ----

BLOCK = 4096  # terms of an inner product that are summed at a time, for the same reason as STAGE
TILE = {"cuda": 64}  # rows and columns that a device multiplies at once


@dataclass(frozen=True, slots=True)
class Factors:
    """Gradient of example b: yᵀ x, with y B × T × O and x B × T × I."""

    y: Tensor
    x: Tensor
    y_is_finite: bool = False  # by construction: then zeros in x alone leave an example out


@dataclass(frozen=True, slots=True)
class Rows:
    """Gradient of example b: row ids[b, t] receives y[b, t]; ids B × T, y B × T × I."""

    ids: Tensor
    y: Tensor


class Chunked(Protocol):
    """Factors that exist only one chunk of examples at a time."""

    def pieces(self) -> Iterator[tuple[slice, Factors]]:
        """(examples, factors of their gradients), chunk by chunk."""
        ...

    def scaled_(self, rows: Tensor, columns: Tensor) -> "Chunked":
        """The factors of these gradients scaled by rows ⊗ columns; they take the place of these, which are used up."""
        ...


PerExampleGrads = Tensor | Factors | Rows | Chunked  # a tensor holds dense gradients, B × the parameter's shape


def merged(parts: list[PerExampleGrads]) -> list[PerExampleGrads]:
    """The gradients of one parameter's uses; if some are dense, all of them added up into one dense gradient.

    Autograd may hand out one tensor as the gradient of several taps, so none of them is changed, except by rows: these
    meet dense gradients only at a head, which made its own.
    """
    first = next((k for k, part in enumerate(parts) if isinstance(part, Tensor)), None)
    if first is None or len(parts) == 1:
        return parts
    dense: Any = parts[first]
    for part in (*parts[:first], *parts[first + 1 :]):
        if isinstance(part, Rows):
            index = part.ids.long().unsqueeze(-1).expand(-1, -1, dense.shape[-1])
            dense.scatter_add_(1, index, part.y.to(dense.dtype))
        elif isinstance(part, Factors):
            dense = dense + torch.bmm(part.y.transpose(1, 2), part.x)
        else:
            dense = dense + part
    return [dense]


def squared_norms(parts: Sequence[PerExampleGrads], kernels: "Kernels | None" = None) -> tuple[Tensor, Tensor]:
    """(squared norm, spread) of each example's gradient: the uses of one parameter add up, cross terms included."""
    kernels = kernels or Kernels()
    first = parts[0]
    if isinstance(first, Tensor):
        return DenseGrads([first]).squared_norms()
    if not isinstance(first, Factors | Rows):
        chunks = [
            squared_norms([piece, *(sliced(other, examples) for other in parts[1:])], kernels)
            for examples, piece in first.pieces()
        ]
        squares, spreads = zip(*chunks, strict=True)
        return torch.cat(squares), torch.cat(spreads)
    square, size, rounding, lost, chain = _square_of(first, kernels)
    positions = first.y.shape[1]
    for k, part in enumerate(parts[1:], 1):
        more, larger, rougher, vanished, longer = _square_of(part, kernels)
        square, size, rounding, chain = square + more, size + larger, rounding + rougher, max(chain, longer)
        lost, positions = lost + vanished, positions + part.y.shape[1]  # pyright: ignore[reportAttributeAccessIssue]
        for other in parts[:k]:
            square = square + 2 * _inner(other, part)
    # A sum over pairs of positions may cancel: its own rounding is relative to the sum without signs.
    square, spread = square.clamp_min(0), 2 * chain * UNIT * size.square() + lost * positions**2
    return square, spread + rounding * (2 * (square + spread).sqrt() + rounding)


def add_clipped_sum_(
    total: Tensor, parts: Sequence[PerExampleGrads], scale_B: Tensor, kernels: "Kernels | None" = None
) -> None:
    """total += sum over examples of scale × gradient. A scale of 0 leaves its example out, whatever it holds."""
    kernels = kernels or Kernels()
    for part in parts:
        if isinstance(part, Tensor):
            DenseGrads([part]).add_clipped_sums_([total], scale_B, several=kernels.add_several_)
        elif isinstance(part, Factors):
            y, x = part.y, part.x  # the narrower one is scaled: see _square_of
            if _narrow_x(part):
                y, x = y if part.y_is_finite else kernels.kept(y, scale_B), kernels.rescaled(x, scale_B)
            else:
                y, x = kernels.rescaled(y, scale_B), kernels.kept(x, scale_B)
            examples = max(1, math.isqrt(SUMMED_POSITIONS // max(y.shape[1], 1)))
            for few_y, few_x in zip(y.split(examples), x.split(examples), strict=True):
                total += _summed_product(few_y.flatten(0, 1), few_x.flatten(0, 1), total.dtype)[: len(total)]
        elif isinstance(part, Rows):
            rows = kernels.scaled(part.y, scale_B).flatten(0, 1).to(total.dtype)
            total.index_add_(0, part.ids.flatten().long(), rows)
        else:
            for examples, piece in part.pieces():
                add_clipped_sum_(total, [piece], scale_B[examples], kernels)


def kept(x: Tensor, scale_B: Tensor) -> Tensor:
    """x where the scale is positive, else 0."""
    return torch.where(scale_B.view(-1, *[1] * (x.dim() - 1)) > 0, x, 0)


def rescaled(x: Tensor, scale_B: Tensor) -> Tensor:
    """scale × x for each example, rounded to the type of x; 0 where the scale is.

    Except for float16: scaled values may leave its normal range, where rounding is no longer relative.
    """
    return scaled(x, scale_B).to(torch.float32 if x.dtype == torch.float16 else x.dtype)


def sizes_of_grams(
    gram_y: Tensor, gram_x: Tensor, y: Tensor, *, narrow_x: bool, half_unit: float, widths: tuple[int, int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first four results of _square_of for factors, from the inner products of their positions.

    A position where y is 0, since no loss uses it, adds nothing to the gradient, rounded or not. Its x is left out: it
    may come from another example, and must not decide how this one is scaled. What is not finite there becomes NaN.
    """
    used = (y != 0).any(2).to(gram_x.dtype)
    gram_x = gram_x * used.unsqueeze(2) * used.unsqueeze(1)
    square_y, square_x = (gram.diagonal(dim1=1, dim2=2).clamp_min(0) for gram in (gram_y, gram_x))
    size = (square_y * square_x).sqrt().sum(1)
    wide, narrow = (gram_y, square_x) if narrow_x else (gram_x, square_y)
    rounding = half_unit * (wide.abs().sum(2).amax(1) * narrow.sum(1)).sqrt()
    # An entry of either Gram matrix may lack TINY a term, and is multiplied by one of the other.
    width_y, width_x = widths
    lost = TINY * (width_y * (square_x.amax(1) + 1) + width_x * (square_y.amax(1) + 1))
    return staged_sum(gram_y * gram_x), size, rounding, lost


def sizes_of_rows(gram: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Squared norm, and the norm if nothing cancelled, of gradients by rows: positions of one row add up."""
    size = gram.diagonal(dim1=1, dim2=2).clamp_min(0).sqrt().sum(1)
    return staged_sum(torch.where(ids.unsqueeze(2) == ids.unsqueeze(1), gram, 0.0)), size


@final
@dataclass(frozen=True, slots=True)
class Kernels:
    """The passes over large arrays: eager, or compiled so that each array is read once and not by every operation."""

    add_several_: Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None] = add_several_
    kept: Callable[[Tensor, Tensor], Tensor] = kept
    scaled: Callable[[Tensor, Tensor], Tensor] = scaled
    rescaled: Callable[[Tensor, Tensor], Tensor] = rescaled
    sizes_of_grams: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]] = sizes_of_grams
    sizes_of_rows: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = sizes_of_rows

    @classmethod
    def compiled(cls, options: dict[str, Any]) -> "Kernels":
        """By torch.compile with these options."""
        eager = cls()
        return cls(*(torch.compile(getattr(eager, name), **options) for name in cls.__slots__))


def sliced(part: PerExampleGrads, examples: slice) -> PerExampleGrads:
    if isinstance(part, Factors):
        return replace(part, y=part.y[examples], x=part.x[examples])
    if isinstance(part, Rows):
        return Rows(part.ids[examples], part.y[examples])
    raise TypeError("only factors and rows share a parameter with chunked factors")


def _narrow_x(factors: Factors) -> bool:
    return factors.x.shape[-1] <= factors.y.shape[-1]


def _square_of(part: PerExampleGrads, kernels: Kernels) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Of one use: squared norm; the norm if nothing cancelled; what rounding the scaled factor may add; what underflow
    may take from the square for each pair of positions; the chain.

    The chain is the most operations that one product passes through on its way into the square. If e is the rounding
    of the scaled factor x, then |yᵀ e| <= |y|₂ |e|, |y|₂² is at most the largest absolute row sum of y yᵀ, and
    |e| <= half a unit of the type × |x|.
    """
    if isinstance(part, Factors):
        gram_y, gram_x = _gram(part.y, part.y), _gram(part.x, part.x)
        widths = part.y.shape[-1], part.x.shape[-1]
        half_unit = torch.finfo(part.x.dtype).eps / 2
        sizes = kernels.sizes_of_grams(
            gram_y, gram_x, part.y, narrow_x=_narrow_x(part), half_unit=half_unit, widths=widths
        )
        chain = sum(min(width, BLOCK) + width // BLOCK for width in widths)
        return *sizes, chain + depth(gram_y[0].numel())
    assert isinstance(part, Rows)  # noqa: S101
    gram = _gram(part.y, part.y)
    square, size = kernels.sizes_of_rows(gram, part.ids)
    lost = TINY * part.y.shape[-1] * torch.ones_like(size)
    return square, size, UNIT * size, lost, min(part.y.shape[-1], BLOCK) + depth(gram[0].numel())


def _inner(a: PerExampleGrads, b: PerExampleGrads) -> Tensor:
    """<gradient of a, gradient of b> for each example, without forming either."""
    if isinstance(a, Factors) and isinstance(b, Factors):
        return staged_sum(_gram(a.y, b.y) * _gram(a.x, b.x))
    if isinstance(a, Rows) and isinstance(b, Rows):
        return staged_sum(_gram(a.y, b.y) * (a.ids.unsqueeze(2) == b.ids.unsqueeze(1)))
    if isinstance(a, Factors) and isinstance(b, Rows):
        columns = b.ids.long().unsqueeze(1).expand(-1, a.y.shape[1], -1)
        return staged_sum(a.y.gather(2, columns).float() * _gram(a.x, b.y))
    return _inner(b, a)


def _gram(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ over positions, B × T × T, in float32, by blocks of features."""
    dtype = a.dtype if a.dtype == b.dtype else torch.float32
    a, b = a.to(dtype), b.to(dtype)
    blocks = zip(a.split(BLOCK, 2), b.split(BLOCK, 2), strict=True)
    left, right = next(blocks)
    total = _positions_product(left, right)
    for left, right in blocks:
        total = total + _positions_product(left, right)
    return total


def _positions_product(a: Tensor, b: Tensor) -> Tensor:
    """a bᵀ for each example. If positions are few, several examples are multiplied at once and the diagonal blocks are
    taken: a GPU multiplies in tiles, and a full tile takes no longer."""
    size, positions, _ = a.shape
    fit = TILE.get(a.device.type, 1) // max(positions, b.shape[1], 1)
    group = math.gcd(size, fit) if fit > 1 else 1  # if none fits, gcd(size, 0) would take all
    if group == 1 or min(positions, b.shape[1]) == 0:
        return _matmul32(a, b.transpose(1, 2))
    left, right = (x.unflatten(0, (-1, group)).flatten(1, 2) for x in (a, b))
    tiles = _matmul32(left, right.transpose(1, 2)).view(-1, group, positions, group, b.shape[1])
    return tiles.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).reshape(size, positions, b.shape[1])


def _summed_product(y: Tensor, x: Tensor, dtype: torch.dtype) -> Tensor:
    """yᵀ x, a sum over all positions of all examples. In float64 where that is as fast as float32 or there is time.

    A GPU multiplies bfloat16 many times faster than float64; there the sum of one micro-batch is float32, and that its
    rounding does not add up is assumed.
    """
    if dtype == torch.float64 and (y.device.type == "cpu" or (x.dtype == torch.float32 and _multiplies_float64(y))):
        return y.double().t() @ x.double()
    return _matmul32(y.t(), x)


def _multiplies_float64(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.get_device_capability(x.device) in FULL_RATE_FLOAT64


def _matmul32(a: Tensor, b: Tensor) -> Tensor:
    """A product that is summed and returned in float32."""
    if torch.float32 in (a.dtype, b.dtype) or not a.is_cuda:
        return a.float() @ b.float()
    return torch.bmm(a, b, out_dtype=torch.float32) if a.dim() == 3 else torch.mm(a, b, out_dtype=torch.float32)


@contextmanager
def full_precision() -> Iterator[None]:
    """Products of float32 in full float32, whatever the user allows the model: MARGIN is proven for that."""
    cpu: Any = torch.backends.mkldnn
    backends = torch.backends.cuda.matmul, cpu.matmul
    precisions = [backend.fp32_precision for backend in backends]
    try:
        allowed = torch.get_float32_matmul_precision()
    except RuntimeError:  # set for each backend, so there is no single value
        allowed = None
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if allowed is not None:
            torch.set_float32_matmul_precision(allowed)
        else:
            for backend, precision in zip(backends, precisions, strict=True):
                backend.fp32_precision = precision
