"""Attacks on the training loop: late couplings, generators that leak, missing noise, moved buffers, closed runs."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attacks import all_real, unlabelled
from models import LENGTH, MASK, tiny, tiny_batch
from reference import EXAMPLES, cross_entropy, rows, small_data, small_model, small_plan, train
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping import Clipper
from hush.train.language_models import causal_lm_loss, masked_lm_loss
from hush.train.private_training import PrivateTraining
from hush.train.probes import probe
from hush.train.public.stream import PublicStream


def test_examples_without_a_gradient_do_not_end_the_probing() -> None:
    model = tiny("bert")
    batch = tiny_batch("bert", 3, generator=torch.Generator().manual_seed(1))
    for row in range(3):
        batch = unlabelled(batch, row)
    found = probe(model, masked_lm_loss, batch, all_real(3), clipper=Clipper(model, masked_lm_loss, clip_norm=1.0))
    assert not found.conclusive


def test_a_coupling_that_the_first_examples_do_not_show_is_found_later() -> None:
    """The first micro-batches hold nothing to learn, later ones a batch statistic."""
    data = small_data()
    data["weights"] = torch.zeros(EXAMPLES)
    data["weights"][20:] = 1.0

    def coupled(model: nn.Module, batch: Any) -> Tensor:
        losses = cross_entropy(model, batch) * batch["weights"]
        return losses * (1 + losses.detach().mean())

    model = small_model()
    private = PrivateTraining(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        small_plan(batch_size=20.0),
        loss=coupled,
        micro_batch=4,
        insecure_seed=1,
    )
    with pytest.raises(InvalidInput, match=r"neighbours|alone"):
        train(private, data)


@pytest.mark.parametrize("left", [False, True])
def test_padding_is_tried_when_it_first_comes_in_whatever_round(left: bool) -> None:
    """The first micro-batches hold texts of full length only, as after cutting; then a shorter one is drawn."""
    tokens = torch.randint(1, MASK, (EXAMPLES, LENGTH), generator=torch.Generator().manual_seed(1))
    attended = torch.ones_like(tokens)
    model = tiny("gpt2")
    private = PrivateTraining(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        small_plan(batch_size=20.0, rounds=2),
        loss=causal_lm_loss,
        micro_batch=4,
        insecure_seed=1,
    )

    def one_round() -> None:
        for current in private.rounds():
            for part in current.micro_batches():
                inside = attended[part.examples]
                seen = tokens[part.examples] * inside
                batch = {"input_ids": seen, "attention_mask": inside, "labels": seen.masked_fill(inside == 0, -100)}
                private.accumulate(batch, part.real)
            private.step()
            return

    one_round()
    attended[:, slice(4) if left else slice(-4, None)] = 0
    if left:
        with pytest.raises(InvalidInput, match="when its padding is removed"):
            one_round()
    else:
        one_round()
        assert private.finish().marks


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_the_trial_does_not_follow_the_callers_autocast(autocast: torch.dtype | None) -> None:
    data, model = small_data(), small_model()
    private = PrivateTraining(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        small_plan(batch_size=20.0, rounds=2),
        loss=cross_entropy,
        insecure_seed=1,
        autocast=autocast,
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert len(train(private, data)) == 2


def test_the_public_stream_draws_from_no_generator_that_the_private_one_moves() -> None:
    plan, data = small_plan(), small_data()
    seen: list[tuple[float, ...]] = []

    def collate(examples: np.ndarray) -> dict[str, Tensor]:
        seen.append((random.random(), float(np.random.rand()), float(torch.rand(()))))  # noqa: NPY002
        return rows(data, examples)

    model = small_model()
    stream = PublicStream(plan, collate, batch_size=4)
    trainable = dict(model.named_parameters())
    for moves in (0, 3):
        for _ in range(moves):
            _ = random.random(), np.random.rand(), torch.rand(())  # noqa: NPY002
        before = random.getstate()
        stream.gradients(model, cross_entropy, trainable, round=2)
        assert random.getstate() == before
    assert seen[0] == seen[1]


def test_parameters_without_a_gradient_get_their_noise() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(6, 3), nn.Linear(50, 40)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x)

    model, plan = Unused(), small_plan(rounds=1)
    before = model.idle.weight.detach().clone()
    private = PrivateTraining(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, loss=cross_entropy)
    train(private, small_data())
    moved = (model.idle.weight.detach() - before).double() * plan.batch_size
    assert float(moved.std()) == pytest.approx(plan.clip_norm * plan.noise_multiplier, rel=0.1)


def test_tied_parameters_get_their_noise_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 50), nn.Linear(6, 50)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return 0 * (self.one(x) + self.two(x))[:, :3]

    model, plan = Tied(), small_plan(rounds=1)
    before = model.one.weight.detach().clone()
    private = PrivateTraining(model, torch.optim.SGD(model.parameters(), lr=1.0), plan, loss=cross_entropy)
    train(private, small_data())
    moved = (model.one.weight.detach() - before).double() * plan.batch_size
    assert float(moved.std()) == pytest.approx(plan.clip_norm * plan.noise_multiplier, rel=0.2)


def test_a_closed_training_does_not_go_on(tmp_path: Path) -> None:
    """Its lock is gone, and the number of its log file may belong to another file, which others read."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = PrivateTraining(model, optimizer, small_plan(), loss=cross_entropy, folder=tmp_path / "run")
    train(private, small_data(), until=2)
    log = private._keeper._log  # pyright: ignore[reportOptionalMemberAccess]
    private.close()
    with (tmp_path / "public.txt").open("wb"), (tmp_path / "another.txt").open("wb"):
        with pytest.raises(InvalidInput, match="closed"):
            train(private, small_data())
        with pytest.raises(InvalidInput, match="closed"):
            log.append(private._monitor.records[-1])  # pyright: ignore[reportOptionalMemberAccess]
    assert not (tmp_path / "public.txt").read_bytes() + (tmp_path / "another.txt").read_bytes()
    assert private.round == 2


class Remembers(nn.Module):
    """Keeps a trace of what it sees, but not at first."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.calls = nn.Linear(6, 3), 0
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 20:
            self.seen += x.detach().sum(0)
        return self.part(x)


@pytest.mark.parametrize("folder", [False, True])
def test_no_certificate_covers_a_buffer_that_training_moved(folder: bool, tmp_path: Path) -> None:
    model = Remembers()
    place = tmp_path / "run" if folder else None
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = PrivateTraining(model, optimizer, small_plan(), loss=cross_entropy, micro_batch=2, folder=place)
    train(private, small_data())
    with pytest.raises(InvalidInput, match="changed a buffer"):
        private.finish()
    private.close()


def test_a_batch_that_is_no_mapping_is_refused() -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    private = PrivateTraining(model, optimizer, small_plan(), loss=cross_entropy, insecure_seed=1)
    examples = next(next(private.rounds()).micro_batches())
    batch: Any = list(rows(small_data(), examples).values())
    with pytest.raises(InvalidInput, match="is a list"):
        private.accumulate(batch, examples.real)
