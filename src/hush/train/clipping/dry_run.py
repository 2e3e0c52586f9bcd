"""Dry runs: forward passes without gradients that record how the tapped layers are used, and where the rows come from.

They leave no trace in the model and draw no random number. What they find out about one batch holds for others of its
shape as far as layers are called as often and with inputs of the same shapes, which every later pass checks.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import torch
import torch._dynamo.utils
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping.attribution import Layout, Shapes, row_layouts
from hush.train.clipping.data_flow import DataFlow, python_reads
from hush.train.clipping.failures import described
from hush.train.clipping.lm_head import Head
from hush.train.clipping.sites import Mode, Site, Use, as_vmap_fallback, attached
from hush.train.distributed import Ranks
from hush.train.language_models import Loss
from hush.train.side_effect_free import without_side_effects

if TYPE_CHECKING:
    from hush.train.clipping.routes import SiteTaps

__all__ = [
    "FAILURES",
    "CallsChanged",
    "CompiledForward",
    "DryRun",
    "Findings",
    "Misattributed",
    "Unattributable",
    "Uses",
    "calls_of",
    "head_agrees",
    "random_state",
    "recorded",
    "set_random_state",
]


Batch = Mapping[str, Tensor]
Forward = Callable[[Batch], Tensor]
Uses = dict[str, list[Use]]  # by site
Calls = Mapping[str, tuple[Shapes, ...]]  # by site: the shapes of the tensors of each call
AMPLIFIED = (1.0, 16.0)  # factors of the head's input: a cap that the logits of a new model do not reach shows, too
FAILURES = (RuntimeError, AssertionError, ValueError, IndexError, TypeError)


class Unattributable(Exception):
    """Rows of a layer cannot be attributed to examples; the message says why, and holds nothing of the examples."""


class Misattributed(Unattributable):
    """The proof of attribution failed on a batch; the message names the layers.

    is_new_branch: in a pass that took a branch which no pass before it took.
    """

    def __init__(self, message: str, *, is_new_branch: bool = False) -> None:
        super().__init__(message)
        self.is_new_branch = is_new_branch


class CallsChanged(Exception):
    """A layer was called otherwise than its plan says; the message names it."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the dry runs on a batch found out.

    layouts: by site, how tensors of some shapes hold the examples, where the rule by shapes would be wrong. moved_by:
    how the data decide which rows go where on the way to a layer or to the losses, or None if they do not. branches:
    how many truth values of the data Python reads.
    """

    uses: Uses
    layouts: Mapping[str, Mapping[tuple[int, ...], Layout]]
    moved_by: str | None
    branches: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """A forward pass without gradients that records how the tapped sites are used.

    forward runs inside bypassed(), which bypasses the head if there is one.
    """

    taps: "SiteTaps"
    forward: Forward
    bypassed: Callable[[], AbstractContextManager[None]]
    gives_losses: bool  # rather than the input of a head

    def findings(self, batch: Batch) -> Findings:
        """How each site is used on this batch; raises Unattributable if rows cannot be told apart by their number."""
        size = len(next(iter(batch.values())))
        sites = self.taps.sites
        flow = DataFlow(batch)
        plain, result = self._run(batch, "recorded", flow)
        more, more_flow = plain, flow
        if size > 1:
            larger = {name: torch.cat([value, value[:1]]) for name, value in batch.items()}
            more_flow = DataFlow(larger)
            try:
                more, _ = self._run(larger, "recorded", more_flow)
            except FAILURES as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                raise InvalidInput(
                    f"the loss works for {size} examples and fails for {size + 1} ({described(error)}); it must work "
                    "for any number of examples, and give one loss for each from that example alone"
                ) from None
        layouts = {site.name: _layouts_of(site, plain[site.name], more[site.name], size) for site in sites}
        moved_by = _moved_by(plain, flow.moved(result), flow, more_flow.branches)
        for site in sites:
            site.layouts, site.bypassed = layouts[site.name], False
        try:
            uses, _ = self._run(batch, "counted", None)
        except FAILURES as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise Unattributable(_why_failed(error, plain, size)) from None
        bypassing = [site for site in sites if site.bypassed]
        for site in bypassing:
            as_vmap_fallback(site)
        if bypassing:
            return self.findings(batch)
        return Findings(uses=uses, layouts=MappingProxyType(layouts), moved_by=moved_by, branches=flow.branches)

    def _run(self, batch: Batch, mode: Mode, flow: DataFlow | None) -> tuple[Uses, Tensor]:
        """(how each site is used, the result), with the sites attached in this mode."""
        size = len(next(iter(batch.values())))
        self.taps.fit_dense(size)
        for site in self.taps.sites:
            site.uses, site.flow = [], flow
        devices = {value.device for value in batch.values() if value.device.type != "cpu"}
        try:
            with (
                torch.no_grad(),
                torch.random.fork_rng(devices),
                _no_fast_path(),
                attached(self.taps.sites, mode),
                self.bypassed(),
                nullcontext() if flow is None else flow.followed(),
            ):
                result = self.forward(batch)
        finally:
            uses = {site.name: site.uses or [] for site in self.taps.sites}
            for site in self.taps.sites:
                site.uses = site.flow = None
        if self.gives_losses and result.shape != (size,):
            raise InvalidInput(
                f"the loss has shape {tuple(result.shape)} for {size} examples; return one loss for each"
            )
        return uses, result


def _why_failed(error: BaseException, uses: Uses, size: int) -> str:
    """Why a pass with taps fails where the same pass without them does not."""
    if isinstance(error, InvalidInput):  # by a site, which says why
        return str(error)
    shared = [
        f"{name} gets {use.shapes[0] if use.shapes else 'no tensor'}"
        for name, calls in uses.items()
        for use in calls
        if not any(shape[:1] and shape[0] % size == 0 for shape in use.shapes)
    ]
    where = f"; there are {size} examples, and {', '.join(dict.fromkeys(shared[:3]))}" if shared else ""
    return f"the pass over all examples at once fails ({described(error)}){where}"


def _layouts_of(site: Site, uses: list[Use], more: list[Use], size: int) -> Mapping[tuple[int, ...], Layout]:
    """The layouts of a site's inputs that differ from what it would assume by their shapes."""
    if size > 1 and len(uses) != len(more):
        raise Unattributable(
            f"{site.name} is called {len(uses)} times for {size} examples and {len(more)} times for {size + 1}"
        )
    found: dict[tuple[int, ...], Layout] = {}
    for use, other in zip(uses, more, strict=True):
        for shape, layout in zip(use.shapes, row_layouts(use.shapes, other.shapes, size), strict=True):
            if size == 1:  # all rows belong to the one example
                layout = "rows" if shape[:1] in ((), (1,)) else "flattened"
            elif layout is None or (layout == "shared" and site.kind != "vmap" and shape[:1] != (1,)):
                raise Unattributable(
                    f"{site.name} gets an input of shape {shape}, in which rows do not belong to one example each: "
                    f"there are {size} examples"
                )
            if found.setdefault(shape, layout) != layout:
                raise Unattributable(f"{site.name} gets inputs of shape {shape} with and without a row per example")
    if site.kind != "vmap":
        return MappingProxyType({})
    assumed: dict[tuple[int, ...], Layout] = {shape: "rows" if shape[:1] == (size,) else "shared" for shape in found}
    return MappingProxyType({shape: layout for shape, layout in found.items() if layout != assumed[shape]})


def _moved_by(uses: Uses, losses_moved: bool, flow: DataFlow, branches_for_more: int) -> str | None:
    """How the data decide which rows go where, if they do."""
    site = next((name for name, calls in uses.items() if any(use.moved for use in calls)), None)
    if site is not None or losses_moved:
        operators = ", ".join(dict.fromkeys(flow.moves))
        return f"the data decide which rows reach {site or 'the losses'} ({operators})"
    if flow.values:
        return f"the model reads {flow.values} values of the data, by which it may choose rows"
    if flow.branches != branches_for_more:
        return "the model branches on the data of each example"
    return None


# ---- later passes ----


def calls_of(uses: Uses) -> Calls:
    """The shapes of the tensors of each call of each site."""
    return MappingProxyType({name: tuple(use.shapes for use in calls) for name, calls in uses.items()})


@contextmanager
def recorded(sites: list[Site], calls: Calls, *, reads: bool, together: bool) -> Iterator[list[object]]:
    """Refuse a forward pass inside that calls a site otherwise than `calls` says, by CallsChanged.

    An error inside counts as that too, if the calls before it differ. Gives a log of the values that Python reads, if
    `reads`. together: on all ranks if on one.
    """
    for site in sites:
        site.uses = []
    failure: BaseException | None = None
    try:
        with python_reads() if reads else nullcontext([]) as log:
            yield log
    except torch.OutOfMemoryError:
        raise
    except FAILURES as error:
        failure = error
    finally:
        made = {site.name: tuple(use.shapes for use in site.uses or ()) for site in sites}
        for site in sites:
            site.uses = None
    changed = None
    for name, shapes in made.items():
        expected = calls.get(name, ())
        if shapes != expected and not (failure is not None and shapes == expected[: len(shapes)]):
            changed = (
                f"module {name} was called {len(shapes)} times, with inputs of shapes {list(shapes[:3])}, where an "
                f"earlier pass over a batch of this shape called it {len(expected)} times, with {list(expected[:3])}"
            )
            break
    if failure is not None and changed is None:
        raise failure
    if together and Ranks.current().max(changed is not None):
        changed = changed or "a module was called differently on another rank"
    if changed is not None:
        raise CallsChanged(changed)


@final
class CompiledForward:
    """A compiled forward pass. It is one graph, in which the data can decide neither shapes nor calls.

    What else may change the graph, a state of the model for instance, makes torch compile it again; such a pass is
    reported by CallsChanged, once, so that the eager pass is looked at again.
    """

    def __init__(self, forward: Forward, options: Mapping[str, Any]) -> None:
        for option in ("capture_scalar_outputs", "capture_dynamic_output_shape_ops"):
            if getattr(torch._dynamo.config, option):
                raise InvalidInput(
                    f"torch._dynamo.config.{option} is on, so that the data may decide shapes in a compiled pass; "
                    "switch it off, or do not compile"
                )
        self._forward: Any = torch.compile(forward, **options)
        self._graphs: dict[object, int] = {}  # how many torch had compiled after the last use, by plan

    def __call__(self, plan: object, batch: Batch) -> Tensor:
        before = _graphs()
        result = self._forward(batch)
        known, self._graphs[plan] = plan in self._graphs, _graphs()
        if known and _graphs() != before:
            raise CallsChanged("the forward pass was compiled again for a batch of a known shape")
        return result


def random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Of the generators that a pass on this device draws from."""
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_random_state(state: tuple[Tensor, Tensor | None] | None) -> None:
    """Go back to this state."""
    if state is not None:
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1])


def _graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def head_agrees(
    head: Head, batch: Batch, *, model: nn.Module, loss: Loss, forward: Forward, autocast: torch.dtype | None
) -> bool:
    """Whether the chunked head gives an example the loss that the model and the loss function give it.

    forward gives the input of the head while that is bypassed.
    """
    first = {name: value[:1] for name, value in batch.items()}
    labels, attended = first["labels"], first.get("attention_mask")
    unpadded = torch.ones_like(labels) if attended is None or attended.shape != labels.shape else attended
    # Every token gets a label: an example without labels would agree with anything.
    first["labels"] = torch.where(unpadded > 0, labels.clamp_min(0), labels)
    with without_side_effects(model), torch.no_grad():
        model.eval()
        try:
            with head.bypassed():
                hidden = forward(first)
            agree = True
            for factor in AMPLIFIED:
                ours, *_ = head.losses(hidden * factor, first["labels"], first["labels"].shape[1])
                with (
                    head.amplified(factor),
                    torch.autocast(hidden.device.type, dtype=autocast, enabled=autocast is not None),
                ):
                    theirs = loss(model, first).float()
                agree &= torch.allclose(ours, theirs, rtol=1e-4 if hidden.dtype == torch.float32 else 0.02)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # what follows the head (a separate bias, for instance) cannot work on the head's input
            return False
    return agree


@contextmanager
def _no_fast_path() -> Iterator[None]:
    """Without gradients torch's transformer layers take a fast path around their sublayers, which training does not."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
