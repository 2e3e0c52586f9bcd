"""Which optimizers and schedulers may step, and when: with noisy gradients of all that is trained, and only then."""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import final
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.hooks import RemovableHandle

from hush.errors import InvalidInput
from hush.train.refusals import refuse_scaler

__all__ = ["StepGuard", "check_optimizer", "check_parameters", "check_scheduler"]

_SHOWN = 5
_GUARDS: "WeakKeyDictionary[Optimizer, RemovableHandle]" = WeakKeyDictionary()


@final
class StepGuard:
    """Refuses every step of an optimizer but those inside ``allowed``: they would use gradients without noise."""

    def __init__(self, optimizer: Optimizer) -> None:
        older = _GUARDS.get(optimizer)
        if older is not None:
            older.remove()  # the optimizer belongs to whoever took it last
        self._open = False
        self._handle = _GUARDS[optimizer] = optimizer.register_step_pre_hook(self._check)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let the optimizer step."""
        self._open = True
        try:
            yield
        finally:
            self._open = False

    def remove(self) -> None:
        """Give the optimizer free."""
        self._handle.remove()

    def _check(self, *_: object) -> None:
        if not self._open:
            raise InvalidInput(
                "optimizer.step() was called outside of PrivateTraining.step(); leave the steps to private.step(), and "
                "leave out any loss scaler"
            )


def check_optimizer(optimizer: Optimizer, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> None:
    """Refuse an optimizer of other parameters, and one that would look at the data again."""
    if not isinstance(optimizer, Optimizer):
        raise InvalidInput(f"the optimizer is a {type(optimizer).__name__}; pass a torch.optim.Optimizer")
    refuse_scaler(getattr(optimizer, "scaler", None))  # the wrapper of accelerate has one
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InvalidInput(
            f"{type(optimizer).__name__} evaluates the loss several times in a step, each of which would cost a round; "
            "use an optimizer that takes one gradient per step, such as AdamW or SGD"
        )
    check_parameters(optimizer, model, trainable)


def check_parameters(optimizer: Optimizer, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> None:
    """Refuse an optimizer that does not have exactly the trainable parameters, those that training began with."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    due = {id(parameter): name for name, parameter in trainable.items()}
    if held == due.keys():
        return
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    lacks = [name for parameter, name in due.items() if parameter not in held]
    beyond = [names.get(parameter, "one of another model") for parameter in held - due.keys()]
    if lacks:
        raise InvalidInput(
            f"the optimizer lacks {len(lacks)} trainable parameters ({_listed(lacks)}), whose share of the noise would "
            "be wasted; give it all parameters that require a gradient, or freeze these before training begins"
        )
    raise InvalidInput(
        f"the optimizer has {len(beyond)} parameters that are not trained privately ({_listed(beyond)}); leave them "
        "out of it, or let them require a gradient before training begins"
    )


def check_scheduler(scheduler: object) -> None:
    """Refuse a schedule that follows a score: on private data that score is a release of its own."""
    if isinstance(scheduler, ReduceLROnPlateau):
        raise InvalidInput(
            "ReduceLROnPlateau sets the rate by a score, which on private data would be a release that no plan "
            "accounts for; use a schedule of the round alone, such as CosineAnnealingLR or LinearLR"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(sorted(names)[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
