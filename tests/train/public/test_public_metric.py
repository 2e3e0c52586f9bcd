"""The public metric: the best for its gradients, of public text alone, and the same in a run that is resumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from models import NAMES, tiny, tiny_batch
from private_runs import parameters, training
from reference import cross_entropy, rows, small_data, small_model, small_plan, train
from torch import Tensor

from hush.errors import InvalidInput
from hush.train.clipping import Clipper
from hush.train.clipping.metric import Metric
from hush.train.language_models import default_loss
from hush.train.private_training import PrivateTraining
from hush.train.public.metric import PublicMetric, metric_of
from hush.train.public.stream import PublicStream

PLAN = small_plan()
DATA = small_data()
TOUCHED = [0, 1, 2, 5, 9]


def collate(ids: np.ndarray) -> dict[str, Tensor]:
    return rows(DATA, ids)


def public_metric(**more: Any) -> PublicMetric:
    settings: dict[str, Any] = {"count": 16, "every": 5, "micro_batch": 6} | more
    return PublicMetric.of_plan(PLAN, collate, **settings)


def noise_over_signal(metric: Metric, squares: dict[str, Tensor]) -> float:
    """(Σ s²v)(Σ s⁻²)."""
    full = {name: metric.scales[name].full(v.shape).double() for name, v in squares.items()}
    return sum(float((full[name].square() * v.double()).sum()) for name, v in squares.items()) * sum(
        float(s.pow(-2).sum()) for s in full.values()
    )


# ---- the optimum ----

SQUARES = arrays.arrays(np.float64, st.integers(1, 30), elements=st.floats(1e-6, 1e6))


@given(SQUARES, st.data())
def test_no_diagonal_beats_the_inverse_fourth_root(v: np.ndarray, data: st.DataObject) -> None:
    """Cauchy and Schwarz: (Σ s²v)(Σ s⁻²) ≥ (Σ √v)², with equality at s = v^(-1/4)."""
    s = data.draw(arrays.arrays(np.float64, v.size, elements=st.floats(1e-3, 1e3)))
    least = np.sqrt(v).sum() ** 2
    assert (s**2 * v).sum() * (s**-2).sum() >= least * (1 - 1e-9)
    best = v**-0.25
    assert (best**2 * v).sum() * (best**-2).sum() == pytest.approx(least)
    assert least <= v.size * v.sum() * (1 + 1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_factored_inverse_fourth_root_beats_the_ordinary_norm(name: str) -> None:
    """Measured on some examples and judged on others."""
    model, found = tiny(name), []
    for seed in (1, 2):
        batch = tiny_batch(name, 32, generator=torch.Generator().manual_seed(seed))
        clipper = Clipper(model, default_loss(model), clip_norm=0.5, squares=True)
        clipper.accumulate(batch, torch.ones(32, dtype=torch.bool))
        found.append({key: value / 32 for key, value in clipper.take(exact=True).items()})
    measured, judged = found
    by_exponent = {x: noise_over_signal(metric_of(measured, exponent=x), judged) for x in (0.0, -0.25, -0.375, -0.5)}
    assert by_exponent[-0.25] < 0.9 * by_exponent[0.0]
    sizes = sum(value.numel() for value in judged.values())
    assert by_exponent[0.0] == pytest.approx(sizes * sum(float(v.double().sum()) for v in judged.values()), rel=1e-3)
    assert by_exponent[-0.25] >= sum(float(v.double().sqrt().sum()) for v in judged.values()) ** 2


@given(st.integers(0, 1000), st.floats(-0.5, 0.0), st.sampled_from([1e-3, 0.1, 1.0]))
def test_a_clip_norm_keeps_its_meaning(seed: int, exponent: float, floor: float) -> None:
    """Σ s²v = Σ v, up to the rounding of scales; a parameter without a gradient has a scale as well."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"matrix": (5, 7), "vector": (6,), "number": (), "kernel": (3, 2, 4), "silent": (4, 3), "empty": (0, 3)}
    squares = {name: torch.randn(shape, generator=generator).square() for name, shape in shapes.items()}
    squares["silent"].zero_()
    metric = metric_of(squares, exponent=exponent, floor=floor)
    metric.check(squares)
    total = sum(float(v.double().sum()) for v in squares.values())
    weighed = sum(float((metric.scales[name].full(v.shape).double().square() * v).sum()) for name, v in squares.items())
    assert weighed == pytest.approx(total, rel=0.02)
    for scale in metric.scales.values():
        for factor in (scale.rows, scale.columns):
            assert factor is None or torch.equal(factor, factor.bfloat16().float())


def test_scales_are_the_power_of_factored_squares() -> None:
    """Of a matrix whose squares are an outer product there is nothing to approximate."""
    rows_, columns = torch.rand(5) + 0.5, torch.rand(7) + 0.5
    v = torch.outer(rows_, columns)
    metric = metric_of({"w": v}, exponent=-0.375, floor=1e-3, precondition=0.5)
    scale = metric.scales["w"].full(v.shape)
    torch.testing.assert_close(scale / scale[0, 0], (v / v[0, 0]) ** -0.375, rtol=0.02, atol=0)
    assert metric.preconditioner is not None
    torch.testing.assert_close(metric.preconditioner["w"].full(v.shape), v**0.5, rtol=0.02, atol=0)


def test_exponent_0_is_the_ordinary_norm_bit_for_bit() -> None:
    models = [small_model(), small_model()]
    for model, metric in zip(models, (None, public_metric(exponent=0.0)), strict=True):
        train(private(model, metric=metric), DATA)
    assert all(torch.equal(*pair) for pair in zip(models[0].parameters(), models[1].parameters(), strict=True))


# ---- what is measured ----


def private(model: torch.nn.Module, **more: Any) -> PrivateTraining:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"micro_batch": 4, "insecure_seed": 0} | more
    return PrivateTraining(model, optimizer, PLAN, loss=cross_entropy, **settings)


def test_examples_with_a_secret_are_refused() -> None:
    assert not {*public_metric().examples.tolist()} & {*TOUCHED}
    with pytest.raises(InvalidInput, match="contain a secret"):
        public_metric(examples=[3, 5, 7])


def test_the_public_examples_of_another_plan_are_refused() -> None:
    import hush

    incidence = hush.Incidence.from_pairs([7], [0], num_examples=40, num_secrets=1)
    other = hush.make_plan(incidence, batch_size=8.0, rounds=12, clip_norm=0.7, prior=1e-6, ceiling=1e-2)
    metric = PublicMetric.of_plan(other, collate)
    with pytest.raises(InvalidInput, match="of another plan"):
        private(small_model(), metric=metric)
    private(small_model(), metric=PublicMetric.of_plan(small_plan(), collate))  # an equal plan will do
    private(small_model(), metric=PublicMetric.of_corpus(40, collate))


def test_no_example_with_a_secret_reaches_a_measurement() -> None:
    seen: list[int] = []

    def watched(ids: np.ndarray) -> dict[str, Tensor]:
        seen.extend(ids.tolist())
        return collate(ids)

    metric = PublicMetric.of_plan(PLAN, watched, count=30, every=2, micro_batch=7)
    train(private(small_model(), metric=metric), DATA)
    assert seen
    assert not {*seen} & {*TOUCHED}


def test_a_measurement_depends_on_model_seed_and_round_alone() -> None:
    """It draws from no generator of the caller's, and leaves them as they were."""

    def measured(consumed: int, **more: Any) -> dict[str, tuple[Tensor, Tensor | None]]:
        torch.manual_seed(consumed)
        torch.rand(consumed)
        before = torch.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].copy()  # noqa: NPY002
        settings = {"seed": 0} | more
        round = settings.pop("round", 5)
        metric = public_metric(**settings).measure(
            small_model(dropout=0.5), cross_entropy, round=round, clip_norm=PLAN.clip_norm
        )
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.array_equal(np.random.get_state(legacy=False)["state"]["key"], before[1])  # noqa: NPY002
        return metric.state()["scales"]

    def same(one: dict[str, tuple[Tensor, Tensor | None]], other: dict[str, tuple[Tensor, Tensor | None]]) -> bool:
        return all(torch.equal(pair[0], other[name][0]) for name, pair in one.items())

    assert same(measured(3), measured(1000))
    assert not same(measured(3), measured(3, seed=1))
    assert not same(measured(3), measured(3, round=10))


def test_squares_are_of_gradients_clipped_at_the_clip_norm() -> None:
    model = small_model()
    metric = public_metric(count=30, floor=1e-3)
    found = metric.measure(model, cross_entropy, round=0, clip_norm=0.05)
    squares = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    drawn = np.random.default_rng([0, 0, 2]).choice(metric.examples, 30, replace=False)
    for example in drawn:
        loss = cross_entropy(model, collate(np.array([example]))).sum()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        for name, g in zip(squares, gradients, strict=True):
            squares[name] += (g * min(1.0, 0.05 / norm)).square() / 30
    for name, scale in metric_of(squares, floor=1e-3).scales.items():
        torch.testing.assert_close(found.scales[name].rows, scale.rows, rtol=0.01, atol=0)


def test_examples_without_a_gradient_give_no_metric() -> None:
    with pytest.raises(InvalidInput, match="no finite gradient"):
        metric_of({"w": torch.zeros(3, 3)})


@pytest.mark.parametrize(
    "wrong",
    [{"exponent": 0.1}, {"exponent": -0.6}, {"floor": 0.0}, {"floor": 2.0}, {"precondition": -1.0}, {"count": 0},
     {"every": 0}, {"micro_batch": 0}, {"exponent": float("nan")}, {"examples": []}],
)  # fmt: skip
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        public_metric(**wrong)


# ---- in training ----


@pytest.mark.parametrize("stops", [[3], [5, 7], [1, 10]])
@pytest.mark.parametrize("precondition", [0.0, 0.5])
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    tmp_path: Path, stops: list[int], precondition: float
) -> None:
    """Also between two measurements: the metric in use is stored with the state."""
    finals = []
    for folder, pauses in ((tmp_path / "whole", []), (tmp_path / "parts", stops)):
        torch.manual_seed(3)
        settings: dict[str, Any] = {"insecure_seed": 7, "metric": public_metric(precondition=precondition)}
        run = training(folder, **settings)
        for stop in pauses:
            train(run, DATA, until=stop)
            run.save()
            run.close()
            torch.manual_seed(99)
            run = training(folder, **settings)
            assert run.round == stop
        train(run, DATA)
        run.finish()
        finals.append(parameters(run))
    assert torch.equal(*finals)


def test_a_run_goes_on_with_the_metric_that_it_began_with(tmp_path: Path) -> None:
    run = training(tmp_path, metric=public_metric())
    train(run, DATA, until=2)
    run.save()
    run.close()
    for other in (None, public_metric(exponent=-0.5), PublicMetric.of_corpus(40, collate, count=16, every=5)):
        with pytest.raises(InvalidInput, match="resume it as it began"):
            training(tmp_path, metric=other)
    training(tmp_path, metric=public_metric()).close()


def test_the_update_is_the_noisy_mean_divided_by_the_scales_and_preconditioned() -> None:
    """Without clipping the metric leaves the mean alone, and only the preconditioner changes it."""
    plan = small_plan(clip_norm=1e6)
    moved = []
    for precondition in (0.0, 0.5):
        model = small_model()
        metric = PublicMetric.of_plan(plan, collate, count=16, precondition=precondition)
        run = PrivateTraining(
            model, torch.optim.SGD(model.parameters(), lr=1.0), plan, loss=cross_entropy, insecure_seed=0, metric=metric
        )
        train(run, DATA, until=1)
        start = small_model()
        moved.append({k: v - dict(start.named_parameters())[k] for k, v in model.named_parameters()})
        found = metric.measure(start, cross_entropy, round=0, clip_norm=1e6)
    assert found.preconditioner is not None
    for name, plain in moved[0].items():
        root = found.preconditioner[name].full(plain.shape)
        torch.testing.assert_close(
            moved[1][name] * root, plain, rtol=1e-3, atol=1e-2 * float(plain.detach().abs().max())
        )


def test_the_private_part_beside_the_stream_is_scaled_by_its_noise_in_parameter_space() -> None:
    asked: list[float] = []
    model = small_model()
    metric, stream = public_metric(), PublicStream(PLAN, collate, batch_size=6, weight=None)
    scale = stream.private_scale
    stream.private_scale = lambda gradients, noise_norm, ranks: (  # pyright: ignore[reportAttributeAccessIssue]
        asked.append(noise_norm) or scale(gradients, noise_norm, ranks)
    )
    train(private(model, metric=metric, public=stream), DATA, until=1)
    inverse = metric.measure(small_model(), cross_entropy, round=0, clip_norm=PLAN.clip_norm).inverse_norm
    noise = PLAN.clip_norm * PLAN.training_noise_multiplier
    assert asked == [pytest.approx(noise * inverse / PLAN.batch_size)]
    assert inverse != pytest.approx(sum(p.numel() for p in model.parameters()) ** 0.5, rel=1e-3)
