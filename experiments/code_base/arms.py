"""The arms: ways to train the same model on the same code base, and the plan of each that promises something.

All protected arms keep the promises of the table of secrets. The uniform one promises every secret all that any is
promised, so that one promise fits all, and uses all data; its noise comes from the tight bound, which is generous to
it. Files without a secret are public under every promise, so hush may also begin where dropping ends: that costs
nothing. Dropping twice is as long as that and shows what of its gain is mere length. An arm with a tenth of the noise
stands for a code base ten times as large whose projects are no larger; one without noise shows what clipping and few
steps cost. Both are simulations and certify nothing.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, final

import numpy as np

from hush.incidence import Incidence
from hush.plan import Plan, make_plan
from hush.secret_table import Secrets

__all__ = ["ARMS", "HARDLY_ANY", "Arm", "plans_of"]

TENTH, HARDLY_ANY = 0.1, 1e-9


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A way to train. data: what an arm without a plan trains on; plan: of which plan; noise_scale: 1 is certified.

    after: the arm, as it was tuned, whose model this one begins with, in place of the base model.
    """

    name: str
    data: Literal["all", "without secrets"] | None = None
    plan: str | None = None
    noise_scale: float = 1.0
    after: "Arm | None" = None

    @property
    def title(self) -> str:
        return self.name + {1.0: "", TENTH: ", a tenth of the noise", HARDLY_ANY: ", no noise"}[self.noise_scale]


DROPPING = Arm(name="dropping", data="without secrets")
ARMS = (
    Arm(name="no protection", data="all"),
    DROPPING,
    Arm(name="dropping, twice", data="without secrets", after=DROPPING),
    Arm(name="uniform", plan="uniform"),
    Arm(name="paper, all data", plan="paper"),
    Arm(name="paper, program", plan="paper-program"),
    Arm(name="hush", plan="hush"),
    Arm(name="dropping, then hush", plan="hush", after=DROPPING),
    Arm(name="paper, program", plan="paper-program", noise_scale=TENTH),
    Arm(name="hush", plan="hush", noise_scale=TENTH),
    Arm(name="dropping, then hush", plan="hush", noise_scale=TENTH, after=DROPPING),
    Arm(name="hush", plan="hush", noise_scale=HARDLY_ANY),
)


def plans_of(
    incidence: Incidence, secrets: Secrets, *, batch_size: int, rounds: int, keep: float, clip_norm: float
) -> dict[str, Plan]:
    """Every plan, by name, for the same batches and rounds."""
    from hush.demo.arms import PAPER, PROGRAM, plan_of

    same = partial(
        make_plan, incidence, batch_size=batch_size, rounds=rounds, clip_norm=clip_norm, secret_ids=secrets.ids
    )
    hush = same(prior=secrets.prior, ceiling=secrets.ceiling, keep=keep)
    prior_SQ, ceiling_SQ = strictest(secrets)
    return {
        "uniform": same(prior=prior_SQ, ceiling=ceiling_SQ, capacity="none"),
        "paper": replace(plan_of(PAPER, hush), clip_norm=clip_norm),
        "paper-program": replace(plan_of(PROGRAM, hush), clip_norm=clip_norm),
        "hush": hush,
    }


def strictest(secrets: Secrets) -> tuple[np.ndarray, np.ndarray]:
    """Priors and ceilings that promise every secret each point that any secret is promised: S × Q."""
    points = np.array(sorted({point for one in secrets.protections for point in one.points}))
    return tuple(np.tile(column, (len(secrets), 1)) for column in points.T)  # pyright: ignore[reportReturnType]
