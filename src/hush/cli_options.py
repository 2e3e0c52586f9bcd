"""Options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hush.accounting.inputs import Bound

__all__ = [
    "BoundChoice",
    "BoundOption",
    "CeilingOption",
    "IncidenceArgument",
    "JsonOption",
    "PriorOption",
    "RoundsOption",
    "SecretsOption",
]


class BoundChoice(StrEnum):
    """Which proof the number rests on."""

    blowup = "blowup"
    renyi = "renyi"
    kl = "kl"
    all = "all"

    @property
    def bounds(self) -> "tuple[Bound, ...]":
        """The bounds to compute, loosest first."""
        return ("kl", "renyi", "blowup") if self is BoundChoice.all else (self.value,)


BoundOption = Annotated[
    BoundChoice,
    typer.Option(help="Which proof: blowup is the tightest, renyi and kl are older ones; all compares the three."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, every digit, for a program to read.")]
RoundsOption = Annotated[int | None, typer.Option(help="Training rounds (optimizer steps).")]
PriorOption = Annotated[float | None, typer.Option(help="For all secrets: whoever starts below this, in (0, 1) …")]
CeilingOption = Annotated[float | None, typer.Option(help="… must not end above this, from the prior to 1.")]
SecretsOption = Annotated[
    Path | None, typer.Option(help="Instead: ids, priors and ceilings, Parquet from Secrets.to_parquet.")
]
IncidenceArgument = Annotated[
    Path,
    typer.Argument(
        help="Which example contains which secret: Parquet from Incidence.to_parquet, or JSON with num_examples, "
        "num_secrets and pairs, a list of (example, secret) from 0. The JSON may also state rates, prior, ceiling "
        "and rounds; an option counts before it."
    ),
]


class OneBound(StrEnum):
    """Which proof a plan rests on."""

    blowup = "blowup"
    renyi = "renyi"
    kl = "kl"


BatchOption = Annotated[float, typer.Option(help="Expected examples per round.")]
OneBoundOption = Annotated[
    OneBound, typer.Option(help="Which proof: blowup is the tightest, renyi and kl are older ones.")
]
