"""Sites: the modules of a model that are tapped while per-example gradients are taken.

While attached, a linear or embedding module has a class that taps it, inserted below its own class, so that subclasses
that refine ``forward`` and call ``super().forward`` keep their behaviour. Every other module that holds trainable
parameters runs under ``torch.vmap`` (the vmap fallback) on its parameters expanded to one copy per example: views,
nothing is copied. There a twin of the module, without storage, takes the parameters that are passed in. Outside of
``attached``, the model is as the user made it.
"""

import copy
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils.parametrize import is_parametrized
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

from hush.errors import InvalidInput
from hush.train.clipping.attribution import Layout, Shapes
from hush.train.clipping.data_flow import DataFlow
from hush.train.clipping.failures import described
from hush.train.clipping.taps import embedding_gradients, embedding_pairs, expanded, linear_gradients, linear_pairs

__all__ = ["Mode", "Site", "Use", "as_vmap_fallback", "attached", "find_sites", "run_vmapped", "twin_of"]


class _TensorIndex(int):
    """The place of a tensor in a nested result."""


def run_vmapped(
    twin: nn.Module,
    shared: Mapping[str, Tensor],
    copies: dict[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    batch: int,
    layouts: Mapping[tuple[int, ...], Layout] = MappingProxyType({}),
) -> Any:
    """What a module returns for these arguments if example b has row b of the copies as its parameters.

    shared are the parameters and buffers that all examples have in common. A tensor among the arguments is split along
    its first dimension as `layouts` says for its shape; if that says nothing, it is split if that dimension has `batch`
    entries, and passed to every example otherwise.
    """
    leaves, spec = tree_flatten((args, kwargs))
    places = [k for k, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    held = [_layout(leaves[k], batch, layouts) for k in places]
    mapped = tuple(None if layout == "shared" else 0 for layout in held)
    result: list[Any] = []  # what forward returns, if it is more than a tensor, with an index in place of each tensor

    def run_one(parameters: dict[str, Tensor], *values: Tensor) -> Any:
        filled = list(leaves)
        for place, value, layout in zip(places, values, held, strict=True):
            filled[place] = value.unsqueeze(0) if layout == "rows" else value
        arguments, keywords = tree_unflatten(filled, spec)
        y = functional_call(twin, {**shared, **parameters}, arguments, keywords, tie_weights=False)
        if isinstance(y, Tensor):
            return y
        outputs = [part for part in tree_leaves(y) if isinstance(part, Tensor)]
        indices = iter(range(len(outputs)))
        result[:] = [tree_map(lambda part: _TensorIndex(next(indices)) if isinstance(part, Tensor) else part, y)]
        return tuple(outputs)

    def joined(part: Tensor) -> Tensor:
        """One example's rows after the other's, as the module returns them for all."""
        together = part.dim() > 1 and (part.shape[1] == 1 or any(axis == 0 for axis in mapped))
        return part.flatten(0, 1) if together else part

    tensors = [
        leaves[k].unflatten(0, (batch, len(leaves[k]) // batch)) if layout == "flattened" else leaves[k]
        for k, layout in zip(places, held, strict=True)
    ]
    y = torch.vmap(run_one, in_dims=(0, *mapped), randomness="different")(copies, *tensors)
    if isinstance(y, Tensor):
        return joined(y)
    return tree_map(lambda part: joined(y[part]) if type(part) is _TensorIndex else part, result[0])


def _layout(value: Tensor, batch: int, layouts: Mapping[tuple[int, ...], Layout]) -> Layout:
    if layouts and tuple(value.shape) in layouts:
        return layouts[tuple(value.shape)]
    return "rows" if value.dim() and value.shape[0] == batch else "shared"


def twin_of(module: nn.Module, name: str) -> nn.Module:
    """A copy without storage and without hooks: hooks run when the module itself is called."""
    inside = [path for path, part in module.named_modules() if path and isinstance(part, FSDPModule)]
    if inside:
        raise InvalidInput(
            f"module {name} holds trainable parameters of its own, so it runs as one unit, but {inside[0]} inside it "
            "is sharded separately; call fully_shard on the module and not on its parts"
        )
    plain = next(kind for kind in type(module).__mro__ if not issubclass(kind, FSDPModule))
    shell: nn.Module = plain.__new__(plain)  # pyright: ignore[reportCallIssue]
    state = {key: value for key, value in module.__dict__.items() if not key.startswith("__composable_api_state")}
    shell.__dict__ = {**state, "_forward_hooks": OrderedDict(), "_forward_pre_hooks": OrderedDict()}
    # What a past pass left behind with its graph cannot be copied; see _align for what the twin gets instead.
    values = [value for part in module.modules() for value in vars(part).values() if isinstance(value, Tensor)]
    twin = copy.deepcopy(shell, {id(value): None for value in values if not value.is_leaf}).to("meta")
    for part in twin.modules():
        if (
            isinstance(part, nn.Embedding)
            and part.padding_idx is not None
            and type(part).forward is nn.Embedding.forward
        ):
            part.__class__ = type(f"Padded{type(part).__name__}", (_PaddedEmbedding, type(part)), {})
    return twin


def _align(twin: nn.Module, module: nn.Module) -> None:
    """Give the twin the values that the module keeps as attributes, so that it holds nothing of its own past passes."""
    for part, copied in zip(module.modules(), twin.modules(), strict=True):
        kept, copied_state = vars(part), vars(copied)
        for key in [key for key in copied_state if key not in kept]:
            del copied_state[key]
        for key, value in kept.items():
            if not key.startswith("_") and (value is None or isinstance(value, Tensor | int | float | str)):
                copied_state[key] = value


class _PaddedEmbedding:
    """Positions of the padding id have no gradient, as in torch, which ignores padding_idx under vmap."""

    def forward(self: Any, input: Tensor) -> Tensor:
        y = functional.embedding(input, self.weight)
        return torch.where((input == self.padding_idx).unsqueeze(-1), y.detach(), y)


Kind = Literal["linear", "conv1d", "embedding", "vmap"]


@dataclass(frozen=True, slots=True)
class Use:
    """One call of a site in a forward pass: the shapes that decide its route."""

    positions: int  # T
    inputs: int  # I, or the rows of an embedding
    outputs: int  # O
    dtype: torch.dtype
    shapes: Shapes  # of the tensors that came in
    moved: bool = False  # whether the data decided which rows came in, or where


@dataclass(eq=False, kw_only=True)
class Site:
    """A tapped module. `parameters` maps its trainable parameters' local names to the model's.

    While attached, `batch` is B and `taps` holds the taps of each parameter; `layouts` says how tensors of some shapes
    hold the examples, where a vmap fallback would assume otherwise. If `uses` is a list, each call is recorded there.
    `bypassed` says that a subclass's own forward was called and did not call the one that taps.
    """

    name: str
    module: nn.Module
    kind: Kind
    parameters: dict[str, str]
    twin: nn.Module | None = None  # of a vmap fallback: a copy without storage, run on the parameters passed in
    batch: int = 0
    taps: dict[str, Any] = field(default_factory=dict)
    layouts: Mapping[tuple[int, ...], Layout] = field(default_factory=dict)
    uses: list[Use] | None = None
    flow: DataFlow | None = None
    bypassed: bool = False

    def per_example(self, x: Tensor) -> Tensor:
        """x with a row per example.

        Rows of one example after the other's become another dimension; an input that all examples share (such as
        positions) is repeated, as a view. That these are the examples' rows is proven by `hush.train.clipping`.
        """
        if x.shape[0] == self.batch:
            return x
        if x.shape[0] == 1:
            return x.expand(self.batch, *x.shape[1:])
        if x.shape[0] and x.shape[0] % self.batch == 0:
            return x.unflatten(0, (self.batch, x.shape[0] // self.batch))
        self.record(0, 0, 0, torch.float32, x)
        raise InvalidInput(
            f"module {self.name} got an input of shape {tuple(x.shape)} in a micro-batch of {self.batch} examples; "
            "per-example gradients need the examples along the first dimension of every layer's input"
        )

    def record(self, positions: int, inputs: int, outputs: int, dtype: torch.dtype, arguments: object) -> None:
        """Note a call."""
        if self.uses is not None:
            tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
            moved = self.flow is not None and self.flow.moved(tensors)
            shapes = tuple(tuple(leaf.shape) for leaf in tensors)
            self.uses.append(Use(positions, inputs, outputs, dtype, shapes, moved))

    @contextmanager
    def explain_vmap_errors(self) -> Iterator[None]:
        """Make errors inside name the module and say what to do."""
        try:
            yield
        except (RuntimeError, AssertionError, ValueError) as error:
            if isinstance(error, InvalidInput | torch.OutOfMemoryError):
                raise
            direct = {id(p) for p in _direct(self.module)}
            names = [name for name in self.parameters if id(self.module.get_parameter(name)) in direct]
            raise InvalidInput(
                f"module {self.name} ({type(self.module).__name__.removeprefix('Tapped')}) holds trainable parameters "
                f"of its own ({', '.join(names[:3])}), so it is run for each example by torch.vmap, which fails "
                f"({described(error)}). If it consists of known layers otherwise, freeze these parameters; if not, "
                "freeze or replace it"
            ) from None


class _TappedLinear:
    transposed = False

    def forward(self: Any, input: Tensor) -> Tensor:
        site: Site = self._hush_site
        x = site.per_example(input)
        tap = site.taps.get("weight")
        if tap is None:
            y = x @ self.weight.detach() if self.transposed else functional.linear(x, self.weight.detach())
        elif isinstance(tap, tuple):
            y = linear_pairs(x, self.weight, tap, transposed=self.transposed)
        else:
            y = linear_gradients(x, self.weight, tap, transposed=self.transposed)
        if site.uses is not None:
            site.record(math.prod(x.shape[1:-1]), x.shape[-1], y.shape[-1], y.dtype, input)
        if self.bias is not None:
            bias = expanded(self.bias, site.taps["bias"]) if "bias" in site.taps else self.bias.detach()
            y = y + bias.to(y.dtype).reshape(-1, *[1] * (y.dim() - 2), y.shape[-1])
        return y.flatten(0, 1) if x.dim() > input.dim() else y


class _TappedConv1D(_TappedLinear):
    transposed = True


class _TappedEmbedding:
    def forward(self: Any, input: Tensor) -> Tensor:
        site: Site = self._hush_site
        ids = site.per_example(input)
        tap = site.taps["weight"]
        if isinstance(tap, tuple):
            y = embedding_pairs(ids, self.weight, tap, padding=self.padding_idx)
        else:
            y = embedding_gradients(ids, self.weight, tap, padding=self.padding_idx)
        if site.uses is not None:
            site.record(math.prod(ids.shape[1:]), self.num_embeddings, self.embedding_dim, y.dtype, input)
        return y.flatten(0, 1) if ids.dim() > input.dim() else y


class _Vmapped:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        site: Site = self._hush_site
        state = {name: value.detach() for name, value in self.named_parameters(remove_duplicate=False)}
        state |= dict(self.named_buffers(remove_duplicate=False))
        if site.uses is not None:
            site.record(0, 0, 0, torch.float32, (args, kwargs))
        copies = {name: expanded(state[name], tap) for name, tap in site.taps.items()}
        twin: Any = site.twin
        if not torch.compiler.is_compiling():
            _align(twin, self)
        with nullcontext() if site.uses is None else site.explain_vmap_errors():
            y = run_vmapped(twin, state, copies, args, kwargs, batch=site.batch, layouts=site.layouts)
        if isinstance(self, FSDPModule):
            # FSDP registers hooks on the output; on a view, in-place changes would lose them.
            y = tree_map_only(Tensor, Tensor.clone, y)
        return y


class _Recorded:
    """The module as it is, in dry runs: notes how it is called."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        site: Site = self._hush_site
        site.record(0, 0, 0, torch.float32, (args, kwargs))
        forward: Any = super().forward  # pyright: ignore[reportAttributeAccessIssue]
        if site.flow is None or site.kind != "vmap":
            return forward(*args, **kwargs)
        with site.flow.as_one_operator((args, kwargs)) as outputs:  # vmap will keep the examples apart in it
            outputs.append(forward(*args, **kwargs))
        return outputs[0]


class _Counted:
    """Of a subclass with its own forward, in dry runs: notes whether that calls the forward that taps."""

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        site: Site = self._hush_site
        before = len(site.uses or ())
        y = super().forward(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        site.bypassed |= len(site.uses or ()) == before
        return y


Mode = Literal["tapped", "counted", "recorded"]
_PLAIN: dict[Kind, type] = {"linear": nn.Linear, "embedding": nn.Embedding}
_ATTACHED: dict[Kind, type] = {
    "linear": _TappedLinear,
    "conv1d": _TappedConv1D,
    "embedding": _TappedEmbedding,
    "vmap": _Vmapped,
}


@cache
def _attached_class(original: type[nn.Module], kind: Kind, mode: Mode) -> type:
    """The class that a module of class `original` has while attached."""
    ours = _Recorded if mode == "recorded" else _ATTACHED[kind]
    plain = _PLAIN.get(kind, original)
    if original.forward is plain.forward:
        bases: tuple[type, ...] = (ours, original)
    else:  # a subclass with its own forward: its super().forward must be ours
        inner = type("Tapped", (ours, plain), {})
        bases = (_Counted, original, inner) if mode == "counted" else (original, inner)
    return type(f"Tapped{original.__name__}", bases, {})


@contextmanager
def attached(sites: Iterable[Site], mode: Mode = "tapped") -> Iterator[None]:
    """Every site's module has its tapped class inside the block, and its own again afterwards.

    recorded: modules run as they are, and their calls are noted. counted: tapped, and sites whose own forward bypasses
    the one that taps are noted.
    """
    originals = [(site.module, type(site.module)) for site in sites]
    try:
        for site in sites:
            site.module.__dict__["_hush_site"] = site  # torch's own setattr is slow, with hundreds of modules per pass
            object.__setattr__(site.module, "__class__", _attached_class(type(site.module), site.kind, mode))
            if site.twin is not None:
                for module, twin in zip(site.module.modules(), site.twin.modules(), strict=True):
                    twin.training = module.training
        yield
    finally:
        for module, original in originals:
            object.__setattr__(module, "__class__", original)
            module.__dict__.pop("_hush_site", None)


def find_sites(model: nn.Module) -> list[Site]:
    """The modules to tap, so that each trainable parameter is state by at least one of them."""
    canonical = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    by_leaf = {
        id(p) for module in model.modules() if _leaf_kind(module) for p in module.parameters(recurse=False)
    }  # a parameter that a parent shares with its linear child needs no site of its own
    sites: list[Site] = []
    seen: set[int] = set()

    def visit(module: nn.Module, name: str) -> None:
        if id(module) in seen or not any(id(p) in canonical for p in module.parameters()):
            return
        seen.add(id(module))
        kind = _leaf_kind(module)
        direct = [p for p in _direct(module) if id(p) in canonical]
        if kind is None and (is_parametrized(module) or any(id(p) not in by_leaf for p in direct)):
            kind = "vmap"
        if kind is None:
            for child_name, child in module.named_children():
                visit(child, f"{name}.{child_name}" if name else child_name)
            return
        parameters = {
            local: canonical[id(p)]
            for local, p in module.named_parameters(remove_duplicate=False)
            if id(p) in canonical
        }
        _refuse(module, name, kind)
        twin = twin_of(module, name) if kind == "vmap" else None
        sites.append(
            Site(name=name or "(the model itself)", module=module, kind=kind, parameters=parameters, twin=twin)
        )

    visit(model, "")
    return sites


def as_vmap_fallback(site: Site) -> None:
    """Run this site's own forward by vmap: it does not call the forward that taps."""
    site.kind, site.twin = "vmap", twin_of(site.module, site.name)


def _direct(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that a module uses itself, including those in parameter lists and dicts, which are never called."""
    containers = (child for child in module.children() if isinstance(child, nn.ParameterList | nn.ParameterDict))
    return [*module.parameters(recurse=False), *(p for child in containers for p in child.parameters())]


def _leaf_kind(module: nn.Module) -> Kind | None:
    if is_parametrized(module):
        return None  # its weight is computed from other parameters
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
        return "conv1d"  # GPT-2's linear layer, whose weight is stored transposed
    return None


def _refuse(module: nn.Module, name: str, kind: Kind) -> None:
    if kind == "embedding" and isinstance(module, nn.Embedding):
        wrong = [option for option in ("max_norm", "scale_grad_by_freq", "sparse") if getattr(module, option)]
        if wrong:
            raise InvalidInput(
                f"embedding {name} uses {', '.join(wrong)}, for which per-example gradients are not defined; build it "
                "without them"
            )
        if module.num_embeddings >= 2**24:
            raise InvalidInput(
                f"embedding {name} has {module.num_embeddings:,} rows; at most {2**24 - 1:,} are supported"
            )
