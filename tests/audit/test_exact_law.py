"""Slots, a second route: the exact law of two rounds on a model of one parameter, with every draw enumerated.

Nothing here uses the trainer or the accountant except the bound that is checked. Five texts: two hold the drawn secret,
one of them another secret too, one holds the other secret alone, two hold none. A round takes a public step (skeletons
and texts without a secret) and then a private one: the noisy sum of what was drawn of g(text) - g(skeleton), clipped.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import hush
from hush.incidence import Incidence
from hush.slots import slots_of_spans

Array = NDArray[np.float64]

TEXTS = ("x{0}yxz", "{0} xxy", "xz yy", "xyxx", "yy x")  # the letter z is another secret
CLIP, RATE = 1.0, 0.02  # clip norm; learning rate, small enough that gradients keep their signs


def value(text: str) -> float:
    """What the model sees of a text: capitals push one way, digits the other."""
    worth = {" ": 0.13, "x": 0.31, "y": -0.17, "[": 0.05, "]": -0.07, "z": 0.41}
    worth |= dict.fromkeys("ABC", 9.0) | dict.fromkeys("123", -9.0)
    return sum(worth.get(character, 0.01) for character in text)


def gradient(model: Array, text: str) -> Array:
    """Of the loss (model · value - 1)² / 2."""
    return (model * value(text) - 1) * value(text)


@dataclass(frozen=True)
class Owner:
    """What an owner has if this is the secret: texts, skeletons, and the examples that are drawn privately."""

    texts: list[str]
    skeletons: list[str]
    drawn: tuple[int, ...] = (0, 1, 2)
    holders: tuple[int, ...] = (0, 1)

    @classmethod
    def of(cls, secret: str) -> "Owner":
        texts = [text.format(secret) for text in TEXTS]
        graph = Incidence.from_pairs([0, 1, 0, 2], [0, 0, 1, 1], num_examples=5, num_secrets=2)
        # Example, begin, length and number of each secret. The template says where they stand: a search could find
        # one inside the other, and the slots would then depend on the filling.
        where = [(0, 1, len(secret), 0), (1, 0, len(secret), 0), (0, len(texts[0]) - 1, 1, 1), (2, 1, 1, 1)]
        example, begin, length, number = np.transpose(where)
        rule = np.zeros(4, dtype=int)
        spans = slots_of_spans(
            graph, ["names"], example=example, begin=begin, end=begin + length, rule=rule, secret=number
        )
        return cls(texts, [spans.skeleton(example, text) for example, text in enumerate(texts)])

    def private_mean(self, model: Array, draw: tuple[bool, ...]) -> Array:
        """The sum before noise."""
        total = np.zeros_like(model)
        for example, is_drawn in zip(self.drawn, draw, strict=True):
            if is_drawn:
                h = gradient(model, self.texts[example]) - gradient(model, self.skeletons[example])
                total = total + np.clip(h, -CLIP, CLIP)
        return total

    def public_step(self, model: Array, round: int, draw: tuple[bool, ...], *, shared: bool) -> Array:
        """The public part of a round: its own draw, or, where ``shared``, the skeletons of what was drawn privately."""
        own_draw = np.flatnonzero(np.random.default_rng(round).random(5) < 0.6)
        examples = [e for e, is_drawn in zip(self.drawn, draw, strict=True) if is_drawn] if shared else own_draw
        return model - RATE * sum((gradient(model, self.skeletons[example]) for example in examples), np.zeros(()))


def draws(rates: Array) -> list[tuple[float, tuple[bool, ...]]]:
    """Every draw with its probability."""
    each = product([False, True], repeat=len(rates))
    return [(float(np.prod(np.where(draw, rates, 1 - rates))), draw) for draw in each]


# The law of one update.

fillings = st.text("ABC123 []z-", min_size=1, max_size=9)


@given(first=fillings, second=fillings, model=st.floats(-2, 2), round=st.integers(0, 5))
def test_the_law_of_an_update_differs_in_the_private_part_of_the_secrets_examples_only(
    first: str, second: str, model: float, round: int
) -> None:
    one, two = Owner.of(first), Owner.of(second)
    at = np.array(model)
    for _, draw in draws(np.array([0.2, 0.5, 0.7])):
        public = [owner.public_step(at, round, draw, shared=False).tobytes() for owner in (one, two)]
        assert public[0] == public[1]  # bit for bit, whatever was drawn
        means = [owner.private_mean(at, draw) for owner in (one, two)]
        without = one.private_mean(at, (False, False, draw[2]))
        for mean in means:  # the reference: the same with the secret's examples set to zero, C for each of them
            assert abs(mean - without) <= CLIP * sum(draw[:2]) + 1e-12
        if not any(draw[:2]):
            assert means[0].tobytes() == means[1].tobytes()


# The best attack on two rounds, by integration over both noisy sums.


def exact_success(rates: Array, noise: float, *, shared: bool) -> float:
    """How often the likelihood-ratio attack names one of two equally likely secrets, from all models of two rounds.

    The attacker knows all skeletons and both public steps. The second round starts from a model that depends on the
    first noisy sum. With a shared draw the public step tells the draw, so each draw is a case of its own.
    """
    owners = [Owner.of("A"), Owner.of("222")]
    grid = np.linspace(-3 - 7 * noise, 3 + 7 * noise, 501)
    cell = (grid[1] - grid[0]) ** 2

    def density(sum_: Array, mean: Array) -> Array:
        return np.exp(-(((sum_ - mean) / noise) ** 2) / 2) / (noise * np.sqrt(2 * np.pi))

    joint = dict[tuple[object, ...], list[Array]]()  # what the attacker knows of the draws -> density by candidate
    for number, owner in enumerate(owners):
        for (chance_1, draw_1), (chance_2, draw_2) in product(draws(rates), repeat=2):
            start = owner.public_step(np.zeros(()), 0, draw_1, shared=shared)
            first = density(grid, owner.private_mean(start, draw_1))
            after = owner.public_step(start - RATE * grid, 1, draw_2, shared=shared)
            second = density(grid[None, :], owner.private_mean(after, draw_2)[:, None])
            known = (draw_1, draw_2) if shared else ()
            laws = joint.setdefault(known, [np.zeros((grid.size, grid.size)) for _ in owners])
            laws[number] += chance_1 * chance_2 * first[:, None] * second
    return float(sum(np.maximum(one, two).sum() for one, two in joint.values()) * cell / 2)


SETTINGS = [((0.5, 0.0, 0.0), 1.0), ((0.4, 0.3, 0.0), 0.8), ((0.2, 0.2, 0.3), 0.7), ((0.7, 0.5, 0.0), 1.5)]


@pytest.mark.parametrize(("rates", "noise"), SETTINGS)
def test_the_exact_attack_stays_below_the_bound_and_above_it_with_a_shared_draw(
    rates: tuple[float, ...], noise: float
) -> None:
    bound = hush.posterior(rates[:2], noise_multiplier=noise, rounds=2, prior=0.5)
    honest = exact_success(np.array(rates), noise, shared=False)
    shared = exact_success(np.array(rates), noise, shared=True)
    assert 0.5 < honest <= bound
    assert shared > bound + 0.005


def test_the_public_step_of_a_shared_draw_tells_who_was_drawn() -> None:
    owner = Owner.of("A")
    steps = [owner.public_step(np.zeros(()), 0, draw, shared=True).item() for _, draw in draws(np.array([0.5] * 3))]
    assert len({round(step, 9) for step in steps}) == 8
