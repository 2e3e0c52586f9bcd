"""Data flow: where in a forward pass the data decide which rows go where, or how many there are.

Boolean indexing, nonzero and unique; sorting, gathering and scattering along the dimension of the examples; values that
Python reads, by which a model may do anything. A :class:`DataFlow` follows a dry run operator by operator and finds out
whether any of that reaches a tapped layer. Truth values that Python reads can be logged in any pass
(:func:`python_reads`): as long as they are those of a pass that was looked at, the model took the same branches.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["DataFlow", "python_reads"]


_FROM_DATA, _MOVED = 1, 2
_FROM_PYTHON = {"aten::lift_fresh", "aten::lift_fresh_copy"}  # a tensor made of Python numbers
_ALONG_DIM = {
    *("aten::index_select", "aten::gather", "aten::index_add", "aten::index_copy", "aten::index_fill"),
    *("aten::scatter", "aten::scatter_add", "aten::scatter_reduce", "aten::index_reduce"),
}  # (self, dim, index, …)
_LOOKUPS = {"aten::index", "aten::index_select", "aten::gather", "aten::take"}  # of a table, they move none of its rows
_BY_INDICES = {"aten::index", "aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index"}
_SORTS = {"aten::sort": 1, "aten::argsort": 1, "aten::topk": 2, "aten::kthvalue": 2, "aten::mode": 1}  # place of dim
_MOVES = {"aten::take", "aten::put", "aten::masked_scatter"}
# What moves examples whatever the data are: the data may still decide later which rows are taken from the result.
_REORDERS = {
    *("aten::flip", "aten::roll", "aten::select", "aten::slice", "aten::split", "aten::split_with_sizes"),
    "aten::unbind",
}
# Products of two matrices that both come from the data: one of them may be a permutation. place of the two, and whether
# a first dimension keeps the examples apart.
_PRODUCTS = {
    **{"aten::mm": (0, 1, False), "aten::addmm": (1, 2, False), "aten::mv": (0, 1, False)},
    **{"aten::addmv": (1, 2, False), "aten::convolution": (0, 1, False)},
    **{"aten::bmm": (0, 1, True), "aten::baddbmm": (1, 2, True)},
}
# By which Python reads values of a tensor.
_READERS = (
    *("__bool__", "__int__", "__float__", "__complex__", "__index__", "__array__"),
    *("item", "tolist", "numpy", "__dlpack__"),
)


@final
class DataFlow(TorchDispatchMode):
    """Follows what is computed from a batch through a forward pass.

    moves: the operators that moved rows according to the data. branches and values: how often Python read a truth value
    or another value of the data, by which it may decide anything.
    """

    def __init__(self, batch: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._examples = len(next(iter(batch.values())))
        self._states: dict[int, int] = {}
        self._followed, self._is_reading = True, False
        self.moves: list[str] = []
        self.branches = self.values = 0
        for value in batch.values():
            self._set(value, _FROM_DATA)

    def moved(self, value: object) -> bool:
        """Whether the data decided which rows are where in one of these tensors."""
        return any(self._state(leaf) & _MOVED for leaf in tree_leaves(value) if isinstance(leaf, Tensor))

    @contextmanager
    def as_one_operator(self, inputs: object) -> Iterator[list[Any]]:
        """What runs inside keeps examples apart by construction; the outputs put into the list are from the inputs."""
        state = self._join(inputs)
        outputs: list[Any] = []
        self._followed = False
        try:
            yield outputs
        finally:
            self._followed = True
        self._mark(outputs, state)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow what runs inside."""
        with python_reads(self), self:
            yield

    @contextmanager
    def reading(self, value: Tensor) -> Iterator[None]:
        """Python reads this tensor."""
        outermost, self._is_reading = not self._is_reading, True
        if outermost and self._followed and self._state(value) & _FROM_DATA:
            if value.dtype == torch.bool and value.numel() == 1:
                self.branches += 1
            else:
                self.values += 1
        try:
            yield
        finally:
            self._is_reading = not outermost

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._followed:
            return func(*args, **kwargs)
        state = self._join((args, kwargs))  # before in-place operators change it
        name = func._schema.name.removesuffix("_")
        if state & _FROM_DATA:
            if torch.Tag.data_dependent_output in func.tags:
                self.values += not self._is_reading  # read by torch itself, for purposes unknown
            elif self._moves_rows(name, func, args, kwargs):
                state |= _MOVED
                self.moves.append(name.removeprefix("aten::"))
        result = func(*args, **kwargs)
        self._mark(result, 0 if name in _FROM_PYTHON else state)
        return result

    def _moves_rows(self, name: str, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the data decide, or may decide later, which rows this operator puts where, or how many there are."""
        first = args[0] if args and isinstance(args[0], Tensor) else None
        is_table = name in _LOOKUPS and first is not None and not self._state(first) & _FROM_DATA
        if name in _BY_INDICES:
            return self._moved_by_indices(args[0], args[1], is_table)
        if is_table:
            return False
        if name in _REORDERS and first is not None:
            return self._reorders(first, name, args)
        if name in _PRODUCTS:
            return self._mixes(name, args)
        if name == "aten::embedding":  # of rows that come from the data, by ids
            return bool(self._state(args[0]) & _FROM_DATA)
        if torch.Tag.dynamic_output_shape in func.tags or name in _MOVES:
            return True
        if name in _ALONG_DIM:
            return bool(self._state(args[2]) & _FROM_DATA) and self._is_of_examples(args[0], args[1])
        if name in _SORTS:
            place = _SORTS[name]
            dim = kwargs.get("dim", args[place] if len(args) > place and type(args[place]) is int else -1)
            return self._is_of_examples(args[0], dim)
        return False

    def _moved_by_indices(self, value: Tensor, indices: Sequence[Tensor | None], is_table: bool) -> bool:
        along = 0
        for index in indices:
            if index is None:
                along += 1
                continue
            is_mask, by_data = index.dtype in (torch.bool, torch.uint8), bool(self._state(index) & _FROM_DATA)
            if by_data and (is_mask or (not is_table and self._is_of_examples(value, along))):
                return True
            in_order = is_mask or torch.equal(
                index.flatten(), torch.arange(index.numel(), dtype=index.dtype, device=index.device)
            )
            if not in_order and not is_table and along == 0 and len(value) == self._examples > 1:
                return True
            along += index.dim() if is_mask else 1
        return False

    def _mixes(self, name: str, args: Sequence[Any]) -> bool:
        """Whether a product of two factors from the data may mix rows of several examples."""
        left, right, in_batches = _PRODUCTS[name]
        factors = args[left], args[right]
        if self._examples == 1 or not all(self._state(factor) & _FROM_DATA for factor in factors):
            return False
        return not in_batches or len(factors[0]) % self._examples != 0

    def _reorders(self, value: Tensor, name: str, args: Sequence[Any]) -> bool:
        """Whether some examples are taken, or all in another order, along a dimension that may hold them."""
        if value.dim() == 0 or self._examples == 1:
            return False
        if name in ("aten::flip", "aten::roll"):
            dims = args[1] if name == "aten::flip" else args[2] if len(args) > 2 else ()
            return not dims or any(value.shape[dim] % self._examples == 0 for dim in dims)
        if len(value) != self._examples:
            return False
        if name == "aten::slice":
            defaults: tuple[Any, ...] = (0, None, None, 1)
            dim, start, end, step = (*args[1:], *defaults[len(args) - 1 :])
            whole = start in (None, 0) and (end is None or end >= len(value)) and step == 1
            return dim % value.dim() == 0 and not whole
        place = 1 if name in ("aten::select", "aten::unbind") else 2
        return (args[place] if len(args) > place else 0) % value.dim() == 0

    def _is_of_examples(self, value: Tensor, dim: int) -> bool:
        """Whether the examples may lie along this dimension: the first, or one of their number."""
        if value.dim() == 0:
            return False
        dim %= value.dim()
        return dim == 0 or value.shape[dim] == self._examples

    def _join(self, inputs: object) -> int:
        state = 0
        for leaf in tree_leaves(inputs):
            if isinstance(leaf, Tensor):
                state |= self._state(leaf)
        return state

    def _mark(self, outputs: object, state: int) -> None:
        for leaf in tree_leaves(outputs):
            if isinstance(leaf, Tensor):
                self._set(leaf, state)

    # States are those of storages, which views share. Whatever takes a freed address passes here first.

    def _state(self, value: Tensor) -> int:
        key = _storage(value)
        return 0 if key is None else self._states.get(key, 0)

    def _set(self, value: Tensor, state: int) -> None:
        key = _storage(value)
        if key is not None:
            self._states[key] = state


@contextmanager
def python_reads(flow: DataFlow | None = None) -> Iterator[list[object]]:
    """Log the values of tensors that Python reads inside: truth values and numbers, and None for anything larger.

    Only these methods are replaced, so nothing else takes longer. What is logged stays in this process.
    """
    log: list[object] = []
    own = {name: vars(torch.Tensor)[name] for name in _READERS if name in vars(torch.Tensor)}

    def logged(original: Any) -> Any:
        def read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            with nullcontext() if flow is None else flow.reading(tensor):
                value = original(tensor, *args, **kwargs)
            log.append(value if isinstance(value, bool | int | float) else None)
            return value

        return read

    wrapped = {name: logged(getattr(torch.Tensor, name)) for name in _READERS}
    try:
        for name, method in wrapped.items():
            setattr(torch.Tensor, name, method)
        yield log
    finally:
        for name in wrapped:
            if name in own:
                setattr(torch.Tensor, name, own[name])
            else:
                delattr(torch.Tensor, name)


def _storage(value: Tensor) -> int | None:
    try:
        return value.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # a wrapper around other tensors
        return None
