"""Per-example clipping in one backward pass: the sum over examples of each gradient scaled to norm at most C.

:class:`Clipper` makes a :class:`~hush.train.clipping.routes.ClippingPlan` at the first batch of each shape, which says
by which route the gradients of each layer are taken, and follows it afterwards.

Guarantee: what an example adds to the sum depends on the model, that example and its own randomness alone (which the
probes check), and its norm is at most C, rounding of the norm included. Padded slots, and examples whose loss or
gradient is not finite, add exactly 0.
"""

import secrets
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping.attribution import Weighing, is_due
from hush.train.clipping.dry_run import (
    FAILURES,
    CallsChanged,
    CompiledForward,
    DryRun,
    Misattributed,
    Unattributable,
    head_agrees,
    random_state,
    recorded,
    set_random_state,
)
from hush.train.clipping.failures import described
from hush.train.clipping.lm_head import Head, find_head
from hush.train.clipping.metric import Metric
from hush.train.clipping.norms import Kernels, PerExampleGrads, full_precision, merged
from hush.train.clipping.routes import (
    BatchShape,
    ClippingPlan,
    GradsByParameter,
    LayerRoute,
    SiteTaps,
    Tap,
    batch_shape,
    plan_clipping,
    plan_one_by_one,
)
from hush.train.clipping.sites import attached, find_sites
from hush.train.clipping.sums import MARGIN, ClippedSquares, ClippedSums, Totals
from hush.train.distributed import Ranks, is_sharded
from hush.train.language_models import Loss, logits_and_labels
from hush.train.side_effect_free import without_side_effects

__all__ = ["MARGIN", "Clipped", "Clipper", "ClippingPlan", "LayerRoute"]


MAX_COMPILED_VARIANTS = 512  # of one function, in a process: a few for each length of text, in all its trainings
MIN_CLIP_NORM = 1e-9  # squares of a smaller C would underflow in float32


@final
@dataclass(frozen=True, slots=True, repr=False)
class Clipped:
    """Losses and gradient norms before clipping, one per slot. For the owner only."""

    losses: Tensor
    norms: Tensor


@final
class Clipper:
    """Accumulates clipped sums of per-example gradients of a model's trainable parameters.

    loss(model, batch) gives one loss per example, each from its own example alone. Every tensor of a batch has the
    examples along its first dimension. autocast is the type to compute in (such as torch.bfloat16); norms are float32
    and sums float64 in any case. compile may name a backend of torch.compile. In a metric, gradients are scaled before
    they are clipped, and the sums are of scaled gradients. squares: accumulate the squares of clipped gradients, of
    public examples alone. ``print(clipper.plan_for(batch))`` shows by which route the gradients of each layer are
    taken, and why.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        *,
        clip_norm: float,
        compile: bool | str = False,
        autocast: torch.dtype | None = None,
        metric: Metric | None = None,
        squares: bool = False,
    ) -> None:
        if not MIN_CLIP_NORM <= clip_norm < float("inf"):
            raise InvalidInput(
                f"pass a finite number of at least {MIN_CLIP_NORM:g}", setting="clip_norm", value=clip_norm
            )
        if autocast is torch.float16:
            raise InvalidInput("float16 needs a loss scaler, which couples the examples; use torch.bfloat16")
        self._model, self._loss, self._clip_norm, self._autocast = model, loss, clip_norm, autocast
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self._parameters:
            raise InvalidInput("the model has no parameter that requires a gradient; nothing would be trained")
        backend = compile if isinstance(compile, str) else "inductor" if compile else None
        self._use_head(find_head(model, loss, backend=backend))
        self._sharded = is_sharded(model)
        self._warned = False
        self._compiled, self._kernels = None, Kernels()
        if backend is not None:
            # Shapes are few and fixed, so each gets its own compiled variant; by default torch stops at the eighth of a
            # function. One graph or an error: a pass in several graphs would be slow without notice.
            limits = torch._dynamo.config
            limits.recompile_limit = max(limits.recompile_limit, MAX_COMPILED_VARIANTS)
            limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 8 * MAX_COMPILED_VARIANTS)
            options: dict[str, Any] = {"dynamic": False, "fullgraph": True, "backend": backend}
            self._compiled = CompiledForward(self._forward, options)
            self._kernels = Kernels.compiled(options)
        kind = ClippedSquares if squares else ClippedSums
        self._totals: Totals = kind(self._parameters, clip_norm=clip_norm, kernels=self._kernels)
        if metric is not None:
            self.use_metric(metric)

    @property
    def clip_norm(self) -> float:
        """C: no example adds more."""
        return self._clip_norm

    @property
    def names(self) -> tuple[str, ...]:
        """The trainable parameters, each tied one once."""
        return tuple(self._parameters)

    def accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> Clipped:
        """Add the clipped sum of one micro-batch; real says which slots hold an example."""
        wrong = {name: tuple(value.shape) for name, value in batch.items() if value.shape[:1] != real.shape}
        if wrong:
            raise InvalidInput(
                f"{wrong} in the batch do not have the {len(real)} examples that `real` has, along dimension 0"
            )
        # The caller's autocast would reach norms and sums; _forward sets its own.
        with torch.autocast(self._device.type, enabled=False):
            return self._accumulate(batch, real)

    def take(self, *, exact: bool = False) -> dict[str, Tensor]:
        """The sums since the last take, by parameter, in float32; the next sum starts from zero.

        exact: as they were accumulated, in float64, for the noise to be added before they are rounded.
        """
        totals = self._totals.take()
        return totals if exact else {name: total.float() for name, total in totals.items()}

    def use_metric(self, metric: Metric | None) -> None:
        """Clip in this metric (None: the ordinary norm) from the next sum on, which is then a sum in this metric."""
        if not isinstance(self._totals, ClippedSums):
            raise InvalidInput(
                "squares are of gradients clipped in the ordinary norm; pass no metric", setting="metric"
            )
        self._totals.use(metric)

    def plan_for(self, batch: Mapping[str, Tensor]) -> ClippingPlan:
        """The plan for batches of this shape; made by a dry run, and kept, if this is the first one.

        It shows shapes and names of layers, and nothing of the examples. If the model is sharded, all ranks call this
        together.
        """
        batch = {name: value.to(self._device, non_blocking=True) for name, value in batch.items()}
        with torch.autocast(self._device.type, enabled=False):
            return self._plan_for(batch)[0]

    def routes(self) -> tuple[LayerRoute, ...]:
        """The routes of the plan that was made last, one for each layer and parameter; empty before the first batch."""
        plan = next(reversed(self._plans.values()), None)
        return () if plan is None else plan.routes

    def _accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> Clipped:
        most_labelled = self._most_labelled(batch)  # before anything waits for the device
        batch = {name: value.to(self._device, non_blocking=True) for name, value in batch.items()}
        real = real.to(self._device, non_blocking=True)
        plan, is_new = self._plan_for(batch)
        problem = ""
        for _ in range(3):
            if plan.one_by_one is not None:
                return self._one_by_one(batch, real)
            prove = self._is_proof_due(plan, is_new)
            try:
                losses, grads = self._per_example_grads(plan, batch, real, most_labelled, prove=prove)
                break
            except Misattributed as found:
                plan, problem = self._doubted(plan, found), str(found)
            except CallsChanged as found:  # so this batch is looked at, and this pass begins again
                plan, is_new, problem = self._make_plan(batch, plan.batch_shape), True, str(found)
        else:
            raise InvalidInput(
                f"{problem}; and again in another pass over the same batch. Layers that are left out at random, or "
                "that follow a state of the model, cannot be clipped: make every pass over a batch call the same layers"
            )
        with torch.no_grad(), full_precision():
            alone = len(real) == 1 or self._sharded  # with shards, that NaN spreads to no other example is assumed
            norms = self._totals.add(grads, losses, real, alone=alone)
        if norms is None:  # a value that is not finite may have spread to others in this pass (0 times inf)
            return self._one_by_one(batch, real)
        return Clipped(losses.float(), norms)

    def _per_example_grads(
        self,
        plan: ClippingPlan,
        batch: Mapping[str, Tensor],
        real: Tensor,
        most_labelled: int,
        *,
        prove: bool,
        eager: bool = False,
    ) -> tuple[Tensor, GradsByParameter]:
        """(losses, their gradients by parameter). If `prove`, also prove whose they are, or raise Misattributed."""
        taps = self._taps.fit(plan, len(real))
        compiled = None if eager or plan.every_batch is not None else self._compiled
        log: list[object] = []

        def losses_of_pass() -> tuple[Tensor, list[PerExampleGrads | None]]:
            if compiled is not None:
                losses = compiled(plan, batch)
            else:
                reads = plan.branches > 0
                with recorded(self._taps.sites, plan.calls, reads=reads, together=self._sharded) as found:
                    losses = self._forward(batch)
                log[:] = found
            if self._head is None:
                return losses, []
            losses, *by_role = self._head.losses(losses, batch["labels"], most_labelled)
            return losses, by_role

        def weighed(weight: Tensor) -> dict[Tap, Any]:
            if compiled is None:
                return self._answers(counted, taps, retain_graph=True, weight=weight)
            set_random_state(state)  # a compiled graph is gone after its backward pass: the same pass once more
            again, _ = losses_of_pass()
            return self._answers(torch.where(real, again, 0.0), taps, weight=weight)

        with self._tapped():
            state = random_state(self._device) if prove and compiled is not None else None
            losses, by_role = losses_of_pass()
            is_new_branch = tuple(log) not in self._branches.get(plan.batch_shape, ((),))
            if self._together(is_new_branch and not eager and plan.every_batch is None):
                raise CallsChanged("the model takes a branch that no earlier batch of this shape took")
            prove = self._together(prove or is_new_branch)
            counted = torch.where(real, losses, 0.0)
            answers = self._answers(counted, taps, retain_graph=prove and compiled is None)
            if prove:
                if compiled is None:
                    self._refuse_uses_outside(counted)
                self._prove(plan, answers, weighed, is_new_branch=is_new_branch)
                if plan.branches and plan.every_batch is None:
                    self._branches.setdefault(plan.batch_shape, {()}).add(tuple(log))
        grads = self._taps.per_example_grads(plan, answers)
        for name, from_head in zip(self._head_names, by_role, strict=False):
            if name and from_head is not None:  # joined with those of layers that share the head's parameters
                grads[name] = merged([from_head, *grads.get(name, [])])
        return losses.detach(), grads

    def _answers(
        self, losses: Tensor, taps: Mapping[Tap, Tensor], *, retain_graph: bool = False, weight: Tensor | None = None
    ) -> dict[Tap, Any]:
        """The gradients of the taps for the sum of these losses, multiplied by the weights if there are some."""
        if not losses.requires_grad:
            return dict.fromkeys(taps)
        weight = torch.ones_like(losses) if weight is None else weight.to(losses.dtype)
        found = torch.autograd.grad(losses, list(taps.values()), weight, allow_unused=True, retain_graph=retain_graph)
        return dict(zip(taps, found, strict=True))

    def _one_by_one(self, batch: Mapping[str, Tensor], real: Tensor) -> Clipped:
        """Each example in a pass of its own: every gradient of its backward pass is its own."""
        totals = torch.zeros(2, len(real), device=real.device)
        alone = real.new_ones(1)
        for row in real.nonzero().flatten().tolist():
            with torch.autocast(self._device.type, dtype=self._autocast, enabled=self._autocast is not None):
                loss = self._loss(self._model, {name: value[row : row + 1] for name, value in batch.items()})
            if loss.shape != (1,):
                raise InvalidInput(f"the loss has shape {tuple(loss.shape)} for 1 example; return one loss for each")
            grads: GradsByParameter = {}
            if loss.requires_grad:
                parameters = list(self._parameters.values())
                found = torch.autograd.grad(loss.sum(), parameters, allow_unused=True)
                grads = {
                    name: [g.unsqueeze(0)] for name, g in zip(self._parameters, found, strict=True) if g is not None
                }
            with torch.no_grad(), full_precision():
                totals[0, row] = loss.detach().float()[0]
                norms = self._totals.add(grads, loss.detach(), alone, alone=True)
                totals[1, row] = torch.nan if norms is None else norms[0]
        return Clipped(totals[0], totals[1])

    # ---- attribution ----

    def _is_proof_due(self, plan: ClippingPlan, is_new: bool) -> bool:
        """Whether attribution is proven on this batch; ranks with shards do it together."""
        shape = plan.batch_shape
        self._uses[shape] = use = self._uses.get(shape, 0) + 1
        due = plan.every_batch is not None or shape in self._open_proofs or is_due(use)
        # An eager pass over a batch for which a plan was made proves nothing that this has not.
        return self._together(due and not (is_new and self._compiled is None))

    def _prove(
        self,
        plan: ClippingPlan,
        answers: Mapping[Tap, Any],
        weighed: Callable[[Tensor], Mapping[Tap, Any]],
        *,
        is_new_branch: bool,
    ) -> None:
        """Raise Misattributed unless block j of every tap's gradient comes from loss j alone."""
        gradients = self._taps.block_gradients(answers)
        size = plan.batch_shape[0][1][0]
        dtypes = {value.dtype for value in gradients.values()}
        weighing = Weighing(size, dtypes if self._autocast is None else dtypes | {self._autocast}, self._device)
        weighing.see_plain(gradients)
        wrong: list[Tap] = []
        for weight in weighing.weights:
            wrong += weighing.wrong(weight, self._taps.block_gradients(weighed(weight)))
        proven = self._proven_taps.setdefault(plan.batch_shape, set())
        proven |= weighing.compared
        conclusive = size == 1 or proven.issuperset(gradients)  # a layer without a gradient so far is not proven
        (self._open_proofs.discard if conclusive else self._open_proofs.add)(plan.batch_shape)
        sites = list(dict.fromkeys(site for site, _, _ in wrong))
        if self._together(bool(sites)):
            raise Misattributed(
                f"rows of {', '.join(sites[:3]) or 'a layer, on another rank,'} do not belong to the examples of their "
                "places: another example's loss depends on them",
                is_new_branch=is_new_branch,
            )

    def _refuse_uses_outside(self, losses: Tensor) -> None:
        """Raise Misattributed if a loss reaches a parameter itself: in its module, which is tapped, it is detached."""
        if not losses.requires_grad:
            return
        parameters, ones = list(self._parameters.values()), torch.ones_like(losses)
        reached = torch.autograd.grad(losses, parameters, ones, allow_unused=True, retain_graph=True)
        names = [name for name, found in zip(self._parameters, reached, strict=True) if found is not None]
        if names:
            raise Misattributed(f"{', '.join(names[:3])} is used outside of its own module's forward")

    def _doubted(self, plan: ClippingPlan, found: Misattributed) -> ClippingPlan:
        """What replaces a plan that failed on a batch after its first."""
        if plan.every_batch is None and not found.is_new_branch:
            raise InvalidInput(
                f"{found}. Batches before this one did not show that, and not all of them were checked, so their "
                "sums cannot be relied on; hush does not see what decides which rows go where in this model. Change "
                "the model, or train with micro-batches of one example"
            )
        self._plans[plan.batch_shape] = self._fallback(plan.batch_shape, str(found))
        return self._plans[plan.batch_shape]

    def _together(self, flag: bool) -> bool:
        """Whether it holds on any rank, if the ranks' passes communicate."""
        return bool(Ranks.current().max(flag)) if self._sharded else flag

    # ---- plans ----

    def _plan_for(self, batch: Mapping[str, Tensor]) -> tuple[ClippingPlan, bool]:
        """(the plan, whether it was made on this batch)."""
        shape = batch_shape(batch)
        is_new = shape not in self._plans
        is_new = self._together(is_new)  # a dry run communicates, so all ranks make one if any rank must
        return self._make_plan(batch, shape) if is_new else self._plans[shape], is_new

    def _make_plan(self, batch: Mapping[str, Tensor], shape: BatchShape) -> ClippingPlan:
        """Plan for batches like this one, and prove attribution on it and on a rotation of it."""
        try:
            plan = self._plan_one_pass(batch, shape)
            size = len(next(iter(batch.values())))
            rotations = [0] if size == 1 else [0, 1 + secrets.randbelow(size - 1)]
            with without_side_effects(self._model):
                for rotation in rotations:
                    self._prove_on(plan, {name: value.roll(rotation, 0) for name, value in batch.items()})
        except (Unattributable, Misattributed, CallsChanged) as found:
            plan = self._fallback(shape, str(found))
        earlier = self._plans.get(shape)
        if earlier is not None and plan.one_by_one is None:  # another branch of a model that moves rows
            plan = replace(plan, every_batch=plan.every_batch or earlier.every_batch)
        self._plans[shape] = plan
        return plan

    def _prove_on(self, plan: ClippingPlan, batch: Mapping[str, Tensor]) -> None:
        """Prove attribution on this batch without adding anything to the sums."""
        real = torch.ones(len(next(iter(batch.values()))), dtype=torch.bool, device=self._device)
        most_labelled = self._most_labelled(batch)
        try:
            _, grads = self._per_example_grads(plan, batch, real, most_labelled, prove=True, eager=True)
        except FAILURES as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise Unattributable(f"the pass over all examples at once fails ({described(error)})") from None
        if not grads:
            raise InvalidInput(
                f"no trainable parameter ({', '.join(self.names[:3])}) has a part in the losses of this batch; train "
                "parameters that the loss depends on"
            )

    def _fallback(self, shape: BatchShape, reason: str) -> ClippingPlan:
        """The plan that takes example by example, for this reason; refused where that is not exact."""
        if self._sharded:
            raise InvalidInput(
                f"{reason}. Such a model can be clipped example by example only, which needs all of its parameters in "
                "every process: train replicas instead of shards, or freeze these layers"
            ) from None
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"gradients are taken example by example, which is exact and slow: {reason}. Each example has a "
                "forward and a backward pass of its own, and nothing is compiled",
                stacklevel=2,
            )
        return plan_one_by_one(self.names, shape=shape, reason=reason)

    def _plan_one_pass(self, batch: Mapping[str, Tensor], shape: BatchShape) -> ClippingPlan:
        """The plan by which one pass serves all examples of such batches, if its rows are where they seem to be."""
        if self._head is not None and not self._plans:
            model, loss, autocast = self._model, self._loss, self._autocast
            if not head_agrees(self._head, batch, model=model, loss=loss, forward=self._forward, autocast=autocast):
                self._use_head(None)  # this model does more to its logits than the chunked head knows of
        bypassed = nullcontext if self._head is None else self._head.bypassed
        dry_run = DryRun(taps=self._taps, forward=self._forward, bypassed=bypassed, gives_losses=self._head is None)
        findings = dry_run.findings(batch)
        weight, *_ = self._head_names
        head = None
        if self._head is not None:
            layer = next(name for name, module in self._model.named_modules() if module is self._head.module)
            head = layer, [name for name in self._head_names if name], weight
        plan = plan_clipping(self._taps.sites, findings, shape=shape, device=self._device.type, head=head)
        sharing = [
            (site.name, local) for site in self._taps.sites for local, name in site.parameters.items() if name == weight
        ]
        # What shares the head's weight must come in factors, as the head's own gradient does.
        if any(plan.taps[place].pair is None for place in sharing):
            self._use_head(None)
            return self._plan_one_pass(batch, shape)
        return plan

    def _use_head(self, head: Head | None) -> None:
        """Compute the loss by this head, or by the user's function if it is None; older plans do not hold any more."""
        self._head, sites = head, find_sites(self._model)
        self._head_names: list[str | None] = [None, None]  # the model's names of its weight and bias, if trained
        if head is not None:
            sites = [site for site in sites if site.module is not head.module]
            # By identity, outside of forward: inside it, a sharded module holds other tensors.
            names = {id(p): name for name, p in self._parameters.items()}
            self._head_names = [names.get(id(head.module.weight)), names.get(id(head.module.bias))]
        self._taps = SiteTaps(sites, self._parameters)
        self._plans: dict[BatchShape, ClippingPlan] = {}
        self._uses: dict[BatchShape, int] = {}
        self._branches: dict[
            BatchShape, set[tuple[object, ...]]
        ] = {}  # truth values read in passes that were looked at
        self._proven_taps: dict[BatchShape, set[Tap]] = {}  # those with a gradient for at least two examples
        self._open_proofs: set[BatchShape] = set()  # of which some tap is not among them

    # ---- forward passes ----

    def _forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Losses, or the input of the head if that is computed in chunks."""
        with torch.autocast(self._device.type, dtype=self._autocast, enabled=self._autocast is not None):
            if self._head is None:
                return self._loss(self._model, batch)
            hidden, _ = logits_and_labels(self._model, batch)
            return hidden.to(self._autocast or hidden.dtype)

    def _most_labelled(self, batch: Mapping[str, Tensor]) -> int:
        return 0 if self._head is None else max(1, self._head.most_labelled(batch["labels"]))

    def _tapped(self) -> ExitStack:
        """The model with its sites tapped, and its head bypassed if that is computed in chunks."""
        stack = ExitStack()
        stack.enter_context(attached(self._taps.sites))
        if self._head is not None:
            stack.enter_context(self._head.bypassed())
        return stack

    @property
    def _device(self) -> torch.device:
        return next(iter(self._parameters.values())).device
