"""The sizes of the study: full for one H200, small for a CPU and real text, smoke for a test of the whole way."""

from dataclasses import asdict, dataclass
from typing import Any, final

__all__ = ["SCALES", "Scale", "Size"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A Gemma-2 model. The learning rate falls with the width; micro_batch is a matter of memory alone."""

    name: str
    width: int
    layers: int
    heads: int
    key_value_heads: int
    head_width: int
    inner_width: int
    learning_rate: float
    micro_batch: int


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Everything that is fixed before a run.

    length: tokens of a row. repeated: (how often, how many sequences) of the rows planted in the training data.
    held_out: rows of the validation part that are prompted like the planted ones, as sequences repeated 0 times.
    shown: the prompt and continuation of the main figure. Noise multipliers stand in the order of their runs.
    """

    name: str
    vocabulary: int
    length: int
    batch: int
    rounds: int
    clip_norm: float
    sizes: tuple[Size, ...]
    repeated: tuple[tuple[int, int], ...]
    held_out: int
    validation: int
    prompts: tuple[int, ...]
    continuations: tuple[int, ...]
    shown: tuple[int, int]
    noise_multipliers: tuple[float, ...] = (0.0, 1e-2, 1e-3, 1e-1, 1.0, 1e-4)

    @property
    def rows(self) -> int:
        """Rows that training sees: every round takes new ones."""
        return self.batch * self.rounds

    @property
    def planted(self) -> int:
        """How many of those rows are repeated sequences, repetitions included."""
        return sum(times * sequences for times, sequences in self.repeated)

    def record(self) -> dict[str, Any]:
        """All settings, for the results."""
        return asdict(self)


FULL = Scale(
    name="full",
    vocabulary=16384,
    length=128,
    batch=256,
    rounds=240,
    clip_norm=1.0,
    sizes=(
        Size(
            name="5M", width=160, layers=6, heads=4, key_value_heads=2, head_width=40, inner_width=640,
            learning_rate=4e-3, micro_batch=256,
        ),
        Size(
            name="29M", width=384, layers=8, heads=6, key_value_heads=3, head_width=64, inner_width=2048,
            learning_rate=2e-3, micro_batch=256,
        ),
        Size(
            name="101M", width=768, layers=10, heads=12, key_value_heads=6, head_width=64, inner_width=3072,
            learning_rate=1e-3, micro_batch=128,
        ),
    ),
    repeated=((1, 256), (4, 256), (16, 128), (64, 64), (256, 32)),
    held_out=256,
    validation=1024,
    prompts=(16, 32, 64),
    continuations=(16, 32, 50),
    shown=(32, 32),
)  # fmt: skip

SMALL = Scale(
    name="small",
    vocabulary=2048,
    length=48,
    batch=16,
    rounds=240,
    clip_norm=1.0,
    sizes=(
        Size(
            name="0.1M", width=32, layers=2, heads=2, key_value_heads=1, head_width=16, inner_width=128,
            learning_rate=1e-2, micro_batch=16,
        ),
        Size(
            name="0.3M", width=64, layers=3, heads=4, key_value_heads=2, head_width=16, inner_width=256,
            learning_rate=1e-2, micro_batch=16,
        ),
        Size(
            name="1M", width=128, layers=4, heads=4, key_value_heads=2, head_width=32, inner_width=512,
            learning_rate=6e-3, micro_batch=16,
        ),
    ),
    repeated=((1, 32), (4, 32), (16, 16), (128, 8)),
    held_out=32,
    validation=128,
    prompts=(8, 16, 24),
    continuations=(8, 16, 24),
    shown=(16, 8),
)  # fmt: skip

SMOKE = Scale(
    name="smoke",
    vocabulary=256,
    length=16,
    batch=8,
    rounds=4,
    clip_norm=1.0,
    sizes=tuple(
        Size(
            name=name, width=width, layers=1, heads=2, key_value_heads=1, head_width=8, inner_width=16,
            learning_rate=1e-2, micro_batch=4,
        )
        for name, width in (("a", 8), ("b", 16), ("c", 24))
    ),
    repeated=((1, 4), (4, 2)),
    held_out=4,
    validation=8,
    prompts=(4, 8),
    continuations=(2, 4),
    shown=(4, 4),
    noise_multipliers=(0.0, 1.0),
)  # fmt: skip

SCALES = {scale.name: scale for scale in (FULL, SMALL, SMOKE)}
