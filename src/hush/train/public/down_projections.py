"""LoRA whose down-projections are frozen, at random or along the directions in which public gradients lie.

An adapter adds B A x to W x. If A is frozen, only B is trained and gets noise: of what the gradient G of W says, B sees
G Aᵀ, the part in the directions of A's rows. Random rows catch r / (inputs of W) of the squared norm of G on average.
The best r rows for examples like the public ones are the leading eigenvectors of Σᵢ GᵢᵀGᵢ / ‖Gᵢ‖², the second moment
of their normalised gradients, that is the leading right singular vectors of these gradients on top of each other.

It costs no promise: A is fixed before the first round and depends on public examples, the released start and a seed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast, final

import torch
from torch import Tensor, nn

from hush.errors import InvalidInput, Setting
from hush.plan import Plan
from hush.plan.make import public_examples
from hush.train.checkpoints import durable_file
from hush.train.clipping import Loss
from hush.train.distributed import Ranks, is_sharded
from hush.train.public.stream import Collate, PublicStream
from hush.train.settings import Learning, Runtime
from hush.train.side_effect_free import without_side_effects

__all__ = ["begun_with", "down_projections", "freeze_down_projections", "store_down_projections"]


ITERATIONS = 3  # of the subspace, the last one for the eigenvectors within it: later ones change next to nothing
OVERSAMPLING = 8  # directions beyond the rank that the iteration carries
ROW_NORM = 3**-0.5  # of a random down-projection as PEFT draws it, so that learning rates mean the same
EXAMPLES, SEED = 512, 1  # of a run: public examples whose gradients are taken, and their draw, not that of the stream
FILE = "down_projections.pt"  # among the owner's files

Batches = Sequence[Mapping[str, Tensor]]


def freeze_down_projections(
    model: nn.Module,
    loss: Loss | None = None,
    batches: Batches = (),
    *,
    autocast: torch.dtype | None = None,
    seed: int = 0,
) -> None:
    """Freeze the down-projections of a PEFT model with LoRA, in place; call it before the optimizer is made.

    batches: of public examples alone, in which case the projections first become the leading directions of their
    gradients (the model's ``loss``, one for each example); without them they stay as they are. The model keeps its
    modes and random states. A resumed run needs the same projections, and a GPU may round them otherwise the second
    time: save the adapters before training, and load them when resuming.
    """
    adapted = _adapted(model)
    if batches:
        if _have_learnt(adapted):
            raise InvalidInput(
                "the adapters have learnt something, which other down-projections would turn into something else; take "
                "the directions first, or freeze the projections as they are, without batches"
            )
        if loss is None:
            raise InvalidInput("directions of gradients need a loss; pass one per example, as PrivateTraining takes it")
        if is_sharded(model):
            raise InvalidInput("directions of gradients are taken before a model is sharded; call this before that")
        _set_along_gradients(model, adapted, loss, batches, autocast=autocast, seed=seed)
    for _, down in adapted:
        down.weight.requires_grad_(False)


def down_projections(model: nn.Module) -> list[Tensor]:
    """A copy of the down-projections of a PEFT model with LoRA."""
    return [down.weight.detach().to("cpu", copy=True) for _, down in _adapted(model)]


def store_down_projections(projections: Sequence[Tensor], folder: Path) -> None:
    """Keep them in the folder of a run: what is frozen is in no checkpoint, and a resumed run needs the same."""
    with durable_file(folder / "owner" / FILE) as file:
        torch.save(list(projections), file)


def begun_with(
    model: nn.Module,
    loss: Loss,
    recipe: Learning,
    plan: Plan,
    collate: Collate,
    *,
    runtime: Runtime,
    folder: Path,
    ranks: Ranks,
) -> None:
    """Freeze the down-projections that a run began with; in a new run, those that its recipe asks for.

    Adapters that have learnt from public examples before keep the projections that they learnt there.
    All ranks call it; those of the first one count, and reach the others with the model.
    """

    def on_first() -> None:
        path = folder / "owner" / FILE
        if path.is_file():
            _load(model, path)
        elif recipe.lora is not None and recipe.lora.down == "public" and not _have_learnt(_adapted(model)):
            stream = _stream(plan, collate, runtime)
            autocast = torch.bfloat16 if recipe.bf16 else None
            freeze_down_projections(model, loss, list(stream.batches(0)), autocast=autocast)

    ranks.run_on_first(on_first)
    freeze_down_projections(model)


def _stream(plan: Plan, collate: Collate, runtime: Runtime) -> PublicStream:
    """Public examples, drawn once."""
    if runtime.shard:
        raise InvalidInput(
            "a sharded model takes no down-projections from public gradients; use random ones, or drop ",
            Setting("shard"),
            setting="lora.down",
        )
    public = public_examples(plan).size
    if not public:
        raise InvalidInput(
            "every example holds a secret, so there are no public gradients to take directions from; use random "
            "down-projections, or train them",
            setting="lora.down",
        )
    return PublicStream(plan, collate, batch_size=min(public, EXAMPLES), micro_batch=runtime.micro_batch, seed=SEED)


def _load(model: nn.Module, path: Path) -> None:
    stored = torch.load(path, map_location="cpu", weights_only=True)
    adapted = _adapted(model)
    if [value.shape for value in stored] != [down.weight.shape for _, down in adapted]:
        raise InvalidInput(f"{path} is of another model or rank; resume the run as it began, or train in a new folder")
    with torch.no_grad():
        for (_, down), value in zip(adapted, stored, strict=True):
            down.weight.copy_(value)


def _adapted(model: nn.Module) -> list[tuple[nn.Module, nn.Linear]]:
    """The modules with an adapter, and its down-projection; refuses adapters that are no product of two matrices."""
    found: list[tuple[nn.Module, nn.Linear]] = []
    for name, module in model.named_modules():
        lora: Any = module
        downs = list(getattr(lora, "lora_A", {}).values()) + list(getattr(lora, "lora_embedding_A", {}).values())
        if not downs:
            continue
        if len(downs) > 1 or type(downs[0]) is not nn.Linear:
            raise InvalidInput(
                f"the adapter of {name} is not one pair of matrices on a linear layer, so its down-projection cannot "
                "be frozen; target linear layers, with one adapter each",
                setting="lora.targets",
            )
        found.append((module, downs[0]))
    if not found:
        raise InvalidInput("the model has no LoRA adapters; add them with peft.get_peft_model first")
    return found


def _have_learnt(adapted: list[tuple[nn.Module, nn.Linear]]) -> bool:
    """Whether an adapter adds something: its up-projection begins as 0."""
    ups: Iterator[Any] = (up for module, _ in adapted for up in cast(Any, module).lora_B.values())
    return any(bool(up.weight.detach().any()) for up in ups)


# ---- directions of gradients ----


@final
class _Subspace:
    """The leading directions of one layer's gradients, by subspace iteration; no gradient is ever materialised.

    With inputs a (T × I) and gradients at outputs δ (T × O) of an example, G = δᵀa, so G Q = δᵀ(aQ), and ‖G‖² is the
    sum of the entries of (a aᵀ) ∘ (δ δᵀ).
    """

    def __init__(self, down: nn.Linear, generator: torch.Generator) -> None:
        width = min(down.in_features, down.out_features + OVERSAMPLING)
        start = torch.randn(down.in_features, width, generator=generator)
        self.basis = torch.linalg.qr(start.to(down.weight.device)).Q
        self.moment = torch.zeros_like(self.basis)  # Σ GᵀG Q
        self.inner = torch.zeros(width, width, device=self.basis.device)  # Σ QᵀGᵀG Q

    def add(self, inputs: Tensor, gradient: Tensor, examples: int) -> None:
        """Add the gradients of a batch, each divided by its norm."""
        a, delta = (_by_example(value.detach().float(), examples) for value in (inputs, gradient))
        squares = ((a @ a.mT) * (delta @ delta.mT)).sum((1, 2))
        share = torch.where(squares > 0, 1 / squares, 0.0).nan_to_num(0.0, 0.0, 0.0)
        projected = delta.mT @ (a @ self.basis)  # B × O × k
        weighted = projected * share.view(-1, 1, 1)
        self.moment += (a.mT @ (delta @ weighted)).nan_to_num(0.0, 0.0, 0.0).sum(0)
        self.inner += (projected.mT @ weighted).nan_to_num(0.0, 0.0, 0.0).sum(0)

    def iterate(self) -> None:
        """Move the basis towards the leading directions."""
        self.basis = torch.linalg.qr(self.moment).Q
        self.moment.zero_()
        self.inner.zero_()

    def leading(self, rank: int) -> Tensor:
        """The rows that catch most, in this order."""
        values, vectors = torch.linalg.eigh(self.inner)
        return (self.basis @ vectors[:, values.argsort(descending=True)[:rank]]).mT


def _by_example(value: Tensor, examples: int) -> Tensor:
    """B × T × features; rows that cannot be attributed to examples count as one example each."""
    rows = value.flatten(0, -2) if value.ndim > 1 else value.unsqueeze(0)
    return rows.unflatten(0, (examples, -1)) if len(rows) % examples == 0 else rows.unsqueeze(1)


def _set_along_gradients(
    model: nn.Module,
    adapted: list[tuple[nn.Module, nn.Linear]],
    loss: Loss,
    batches: Batches,
    *,
    autocast: torch.dtype | None,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    subspaces = [_Subspace(down, generator) for _, down in adapted]
    differentiated = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = adapted[0][1].weight.device
    with without_side_effects(model):
        model.eval()
        for iteration in range(ITERATIONS):
            for batch in batches:
                examples = len(next(iter(batch.values())))
                with _recorded(adapted, subspaces, examples), torch.enable_grad():
                    with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
                        losses = loss(model, batch)
                    torch.autograd.grad(losses.float().sum(), differentiated, allow_unused=True)
            if iteration + 1 < ITERATIONS:
                for subspace in subspaces:
                    subspace.iterate()
    with torch.no_grad():
        for (_, down), subspace in zip(adapted, subspaces, strict=True):
            if not float(subspace.inner.diagonal().sum()) > 0:
                raise InvalidInput(
                    "the public examples have no gradient at a layer with an adapter, so no directions; pass others, "
                    "or target layers that the loss uses",
                    setting="lora.down",
                )
            down.weight.copy_(subspace.leading(down.out_features) * ROW_NORM)


@contextmanager
def _recorded(adapted: list[tuple[nn.Module, nn.Linear]], subspaces: list[_Subspace], examples: int) -> Iterator[None]:
    """Inside the block a backward pass adds each layer's gradients to its subspace."""

    def hook(subspace: _Subspace) -> Callable[..., None]:
        def record(_: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
            if output.requires_grad:
                given = inputs[0].detach()
                output.register_hook(lambda gradient: subspace.add(given, gradient, examples))

        return record

    with ExitStack() as stack:
        for (module, _), subspace in zip(adapted, subspaces, strict=True):
            stack.callback(module.register_forward_hook(hook(subspace)).remove)
        yield
