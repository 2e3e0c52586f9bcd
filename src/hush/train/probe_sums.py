"""The clipper on trial, the last of the probes: are its norms and clipped sums those of autograd on one example?

What cancels in reduced precision is judged by what that precision does to autograd itself.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.distributed import Ranks
from hush.train.layout import gradients_of, is_sharded, whole
from hush.train.trial import OTHER_SHAPE, Batch, Trial, reseed

__all__ = ["ProbedClipper", "refuse_wrong_sums"]

_NEGLIGIBLE = {False: 1e-5, True: 1e-2}  # of the whole gradient: what cancels to rounding errors need not agree
# Where more cancels, the difference from float32 shows how much: so many times that is allowed, but never so large a
# share of a gradient that a parameter which the clipper does not see could pass.
_ROUNDINGS, _SHARE = 4.0, 0.5
_SAME = 2.0**-8  # norm and sum are taken of one and the same gradient, so that only their own rounding may differ


class _Clipped(Protocol):
    @property
    def norms(self) -> Tensor: ...


class ProbedClipper(Protocol):
    """What a trial needs of a clipper."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def clip_norm(self) -> float: ...
    def accumulate(self, batch: Mapping[str, Tensor], real: Tensor) -> _Clipped: ...
    def take(self) -> dict[str, Tensor]: ...


def refuse_wrong_sums(trial: Trial, examples: Batch, clipper: ProbedClipper, *, still: bool) -> int:
    """The clipper against autograd, one example at a time; the others stand by as slots that must not count.

    Returns how many examples had a gradient to compare.
    """
    telling = 0
    if still:
        trial.model.eval()
    parameters = {name: parameter for name, parameter in trial.model.named_parameters() if name in set(clipper.names)}
    relative, negligible = OTHER_SHAPE[trial.reduced], _NEGLIGIBLE[trial.reduced]
    first = next(iter(examples.values()))
    for i in range(len(first)):
        reseed()
        norm = clipper.accumulate(examples, torch.arange(len(first), device=first.device) == i).norms[i]
        sums = clipper.take()
        alone = {key: value[i : i + 1] for key, value in examples.items()}
        loss = trial.losses(alone, still=still, gradients=True)[0]
        gradients = whole(gradients_of(loss, parameters))
        sizes = {name: float(torch.linalg.vector_norm(g, dtype=torch.float64)) for name, g in gradients.items()}
        exact = math.hypot(*sizes.values())
        finite = math.isfinite(exact) and math.isfinite(float(loss.detach()))
        if not finite:  # by rule, such an example adds nothing
            gradients = {name: torch.zeros_like(gradient) for name, gradient in gradients.items()}
            sizes, exact = dict.fromkeys(sizes, 0.0), 0.0
        telling += exact > 0
        scale = _common_scale(sums, sizes, floor=negligible * exact)
        allowed = {name: scale * (relative * size + negligible * exact) for name, size in sizes.items()}
        off = {name: float((sums[name] - scale * gradient).norm()) for name, gradient in gradients.items()}
        wrong = [name for name, difference in off.items() if not difference <= allowed[name]]
        in_doubt = bool(wrong) and finite and trial.autocast is not None
        if Ranks.current().most(in_doubt) if is_sharded(trial.model) else in_doubt:  # a trial of shards communicates
            rounding = _rounding(trial, alone, parameters, gradients, still=still)
            more = {name: min(_ROUNDINGS * rounding[name], _SHARE * sizes[name]) for name in wrong}
            wrong = [name for name in wrong if not off[name] <= allowed[name] + scale * more[name]]
        if wrong:
            raise InvalidInput(
                f"the clipped gradient sum differs from autograd's for {len(wrong)} of {len(sums)} parameters: "
                f"{', '.join(wrong[:5])}. They are used in a way that per-example clipping does not see; freeze them, "
                "or use them only through their own module's forward"
            )
        added = math.hypot(*(float(torch.linalg.vector_norm(own, dtype=torch.float64)) for own in sums.values()))
        most = min(float(norm), clipper.clip_norm) * (1 + _SAME) if norm.isfinite() else 0.0
        if not added <= most:
            raise InvalidInput(
                f"an example adds a gradient of norm {added:.6g}, where its own norm is {float(norm):.6g} and the clip "
                f"norm {clipper.clip_norm:.6g}: this clipper cannot be relied on for this model"
            )
        if finite and not abs(float(norm) - exact) <= relative * exact + 1e-9:
            raise InvalidInput(
                f"a per-example gradient norm is {float(norm) / (exact or 1):.4g} times autograd's, although the sums "
                "agree: this clipper cannot be relied on for this model"
            )
    return telling


def _rounding(
    trial: Trial, alone: Batch, parameters: Mapping[str, nn.Parameter], gradients: Mapping[str, Tensor], *, still: bool
) -> dict[str, float]:
    """What the reduced precision does to autograd's own gradient of each parameter: its distance from float32's."""
    try:
        loss = replace(trial, autocast=None).losses(alone, still=still, gradients=True)[0]
    except RuntimeError:  # it runs in reduced precision only: nothing can be excused by rounding
        return dict.fromkeys(parameters, 0.0)
    exact = whole(gradients_of(loss, parameters))
    return {name: float((gradients[name] - gradient).norm()) for name, gradient in exact.items()}


def _common_scale(sums: Mapping[str, Tensor], sizes: Mapping[str, float], *, floor: float) -> float:
    """By how much an example was scaled, from the upper quartile over parameters: missed ones do not move it."""
    ratios = [float(sums[name].double().norm()) / size for name, size in sizes.items() if size > floor]
    return min(1.0, float(np.quantile(ratios, 0.75, method="higher"))) if ratios else 1.0
