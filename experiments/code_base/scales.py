"""How large the study is: what is taken of the code base, which model, how long it trains, what is measured."""

from dataclasses import dataclass
from typing import Literal, final

__all__ = ["FULL", "SCALES", "SMALL", "Scale", "Setting"]

Trained = Literal["all", "few"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is tuned, for every arm alike. trained: all parameters, or biases and layer norms only."""

    trained: Trained
    learning_rate: float


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes. largest: bytes of a file of the company. public_size: bytes of public code for the base model.

    share: a person with this share of a file's commits is its contributor. micro_batch: slots of a private pass.
    plain_batch: examples of a step without noise, which needs no large batches. keep: of their weight, by examples with
    secrets under hush's plan. repeats: of each canary. spans: of secret files that are extracted, at most. candidates:
    of a canary that are ranked.
    """

    name: str
    largest: int
    public_size: int
    vocabulary: int
    length: int
    share: float
    layers: int
    width: int
    heads: int
    base_steps: int
    base_batch: int
    base_rate: float
    batch_size: int
    rounds: int
    micro_batch: int
    plain_batch: int
    keep: float
    clip_norm: float
    canaries: int
    repeats: int
    spans: int
    candidates: int
    tried: tuple[Setting, ...]
    seeds: int


SMALL = Scale(
    name="small",
    largest=8_000,
    public_size=1_500_000,
    vocabulary=512,
    length=48,
    share=0.7,
    layers=1,
    width=64,
    heads=2,
    base_steps=300,
    base_batch=16,
    base_rate=3e-3,
    batch_size=64,
    rounds=12,
    micro_batch=88,
    plain_batch=8,
    keep=0.5,
    clip_norm=0.1,
    canaries=4,
    repeats=24,
    spans=100,
    candidates=100,
    tried=(Setting(trained="all", learning_rate=2e-3), Setting(trained="few", learning_rate=1e-2)),
    seeds=1,
)
FULL = Scale(
    name="full",
    largest=6_000,
    public_size=24_000_000,
    vocabulary=4096,
    length=128,
    share=0.7,
    layers=6,
    width=384,
    heads=6,
    base_steps=2000,
    base_batch=128,
    base_rate=1e-3,
    batch_size=2048,
    rounds=32,
    micro_batch=384,
    plain_batch=128,
    keep=0.5,
    clip_norm=0.1,
    canaries=8,
    repeats=32,
    spans=1000,
    candidates=1000,
    tried=(
        Setting(trained="all", learning_rate=5e-5),
        Setting(trained="all", learning_rate=2e-4),
        Setting(trained="all", learning_rate=1e-3),
        Setting(trained="all", learning_rate=3e-3),
        Setting(trained="few", learning_rate=2e-2),
    ),
    seeds=3,
)
SCALES = {scale.name: scale for scale in (SMALL, FULL)}
