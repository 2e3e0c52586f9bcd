"""The Gaussian of a round: its law, its freshness, and that it is added once.

Statistical bounds are ones that correct noise would miss with probability ALARM; with an insecure seed they hold always
or never, with fresh entropy (marked) they fail once in 1/ALARM runs.
"""

import math
import os
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from scipy.stats import chi2, kstest, norm
from torch import Tensor

from hush.errors import InvalidInput
from hush.train import noise as noise_module
from hush.train.noise import Noise

ALARM = 1e-9
KEY = bytes(range(32))
CPU = torch.device("cpu")


def noise_of(noise: Noise, size: int, *, scale: float = 1.0, round: int = 0, rank: int = 0) -> np.ndarray:
    sums = {"weight": torch.zeros(size)}
    noise.add_(sums, scale=scale, round=round, rank=rank)
    return sums["weight"].numpy().astype(np.float64)


def has_scale(values: np.ndarray, scale: float) -> bool:
    statistic = float((values**2).sum() / scale**2)
    return bool(chi2.ppf(ALARM / 2, values.size) < statistic < chi2.isf(ALARM / 2, values.size))


def is_uncorrelated(one: np.ndarray, other: np.ndarray) -> bool:
    product = float(one @ other / np.linalg.norm(one) / np.linalg.norm(other)) * math.sqrt(one.size)
    return abs(product) < norm.isf(ALARM / 2)


# --- the law


@pytest.mark.parametrize("scale", [1e-3, 1.0, 37.5])
@pytest.mark.parametrize("seed", [None, 5], ids=["fresh entropy", "insecure seed"])
def test_the_noise_is_normal_with_the_scale_asked_for(scale: float, seed: int | None) -> None:
    values = noise_of(Noise(insecure_seed=seed), 1_000_000, scale=scale)
    assert has_scale(values, scale)
    assert abs(values.mean()) < norm.isf(ALARM / 2) * scale / 1000
    assert kstest(values, norm(scale=scale).cdf).pvalue > ALARM


def test_tails_are_those_of_a_normal() -> None:
    """Beyond 4 and 5 standard deviations, where a generator of few bits fails first."""
    values = np.abs(np.concatenate([noise_of(Noise(insecure_seed=seed), 2_000_000) for seed in range(4)]))
    for bound in (3.0, 4.0, 5.0):
        expected = values.size * 2 * norm.sf(bound)
        assert abs((values > bound).sum() - expected) < 6 * math.sqrt(expected)


def test_extreme_words_give_finite_normals_and_the_largest_is_9_35() -> None:
    words = torch.tensor([0, -1, 2**63 - 1, -(2**63), 1, 5, 2**62, -(2**62)])
    rows = torch.cartesian_prod(words, words).repeat_interleave(4, dim=1)
    normals = noise_module._normals(rows)
    assert normals.isfinite().all()
    assert normals.abs().max().item() == pytest.approx(math.sqrt(2 * 63 * math.log(2)))


def test_box_muller_by_its_formula() -> None:
    words = torch.randint(-(2**63), 2**63 - 1, (50, 8), generator=torch.Generator().manual_seed(0))
    normals = noise_module._normals(words).view(50, 8)
    for row, found in zip(words.tolist(), normals.tolist(), strict=True):
        for i in range(4):
            radius = math.sqrt(-2 * math.log(((row[i] % 2**63) + 1) / 2**63))
            angle = 2 * math.pi * row[i + 4] / 2**64
            assert found[i] == pytest.approx(radius * math.cos(angle), rel=1e-12, abs=1e-14)
            assert found[i + 4] == pytest.approx(radius * math.sin(angle), rel=1e-12, abs=1e-14)


def test_the_result_is_the_float32_nearest_to_sum_plus_noise() -> None:
    size = 10_000
    sums = torch.randn(size, generator=torch.Generator().manual_seed(1)) * 100
    before = sums.clone()
    seeded = Noise(insecure_seed=3)
    seeded.add_({"weight": sums}, scale=0.25, round=2)
    key = seeded._Noise__key(2, 0)  # pyright: ignore[reportAttributeAccessIssue]
    normal = noise_module._normals(noise_module._words_on_cpu(key, 0, 0, size // 8))
    assert torch.equal(sums, (before.double() + 0.25 * normal).float())


# --- freshness and independence


def test_two_calls_never_add_the_same_noise() -> None:
    noise = Noise()
    first, again = noise_of(noise, 100_000, round=4), noise_of(noise, 100_000, round=4)
    other = noise_of(Noise(), 100_000, round=4)
    for one, two in ((first, again), (first, other), (again, other)):
        assert not np.isclose(one, two, rtol=1e-6).mean() > 0.001
        assert is_uncorrelated(one, two)


def test_an_insecure_seed_repeats_by_round_and_rank_and_differs_otherwise() -> None:
    base = noise_of(Noise(insecure_seed=1), 100_000, round=3, rank=2)
    assert np.array_equal(base, noise_of(Noise(insecure_seed=1), 100_000, round=3, rank=2))
    for seed, round, rank in ((2, 3, 2), (1, 4, 2), (1, 3, 1), (13, 2, 2), (1, 2, 3)):
        assert is_uncorrelated(base, noise_of(Noise(insecure_seed=seed), 100_000, round=round, rank=rank))


def test_coordinates_are_independent_within_and_across_tensors() -> None:
    sums = {"a": torch.zeros(200_000), "b": torch.zeros(200_000)}
    Noise(insecure_seed=8).add_(sums, scale=1.0, round=0)
    a, b = (tensor.numpy().astype(np.float64) for tensor in sums.values())
    assert is_uncorrelated(a, b)
    for lag in (1, 2, 4, 7, 8):
        assert is_uncorrelated(a[:-lag], a[lag:])
        assert is_uncorrelated(a[:-lag] ** 2 - 1, a[lag:] ** 2 - 1)


def test_secure_keys_are_32_bytes_of_the_operating_systems_entropy_for_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def recording(count: int, original: Any = os.urandom) -> bytes:
        asked.append(count)
        return original(count)

    monkeypatch.setattr(noise_module.os, "urandom", recording)
    noise = Noise()
    for round in range(3):
        noise_of(noise, 10, round=round)
    assert asked == [32, 32, 32]


def test_neither_torch_nor_numpy_states_are_used_or_changed() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = noise_of(Noise(), 1000)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(0)
    assert not np.array_equal(first, noise_of(Noise(), 1000))


def test_nothing_of_the_noise_is_kept_and_the_seed_never_shows() -> None:
    noise, seeded = Noise(), Noise(insecure_seed=987654321)
    fresh = pickle.dumps(noise)
    noise_of(noise, 1000)
    assert pickle.dumps(noise) == fresh
    assert not hasattr(noise, "__dict__")
    assert "987654321" not in repr(seeded) + str(seeded)
    assert noise.is_secure
    assert not seeded.is_secure


# --- the stream


def test_chacha20_on_a_device_meets_rfc_8439() -> None:
    """Section 2.3.2: key 00..1f, counter 1, nonce 000000090000004a00000000."""
    begin = int.from_bytes(bytes.fromhex("0100000000000009"), "little")
    number = int.from_bytes(bytes.fromhex("0000004a00000000"), "little")
    expected = bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    for words in (
        noise_module._words_on_cpu(KEY, number, begin, 1),
        noise_module._words_on_device(KEY, number, begin, 1, CPU, noise_module._double_round),
    ):
        assert words.numpy().tobytes() == expected


@pytest.mark.parametrize("begin", [0, 1, 2**31 - 5, 2**32 - 300, 2**32, 2**40])
def test_a_device_makes_the_words_of_the_cpu(begin: int) -> None:
    key = bytes(255 - 7 * byte for byte in KEY)
    on_cpu = noise_module._words_on_cpu(key, 3, begin, 300)
    on_device = noise_module._words_on_device(key, 3, begin, 300, CPU, noise_module._double_round)
    assert torch.equal(on_cpu, on_device)


def test_the_words_on_the_cpu_are_the_stream_of_the_cipher() -> None:
    stream = Cipher(ChaCha20(KEY, bytes(16)), mode=None).encryptor().update(bytes(64 * 50))
    parts = [noise_module._words_on_cpu(KEY, 0, begin, 10) for begin in range(0, 50, 10)]
    assert torch.cat(parts).numpy().tobytes() == stream


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, while inductor is loaded
def test_compiling_changes_no_word() -> None:
    compiled = noise_module._compiled_double_round()
    for blocks in (300, 17):
        expected = noise_module._words_on_cpu(KEY, 3, 5, blocks)
        assert torch.equal(noise_module._words_on_device(KEY, 3, 5, blocks, CPU, compiled), expected)


# --- added once, to every coordinate of every tensor


def shapes() -> dict[str, Tensor]:
    return {"one": torch.zeros(1), "matrix": torch.zeros(33, 7), "none": torch.zeros(0, 4), "scalar": torch.zeros(())}


def test_noise_does_not_depend_on_how_the_stream_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = shapes(), shapes()
    Noise(insecure_seed=1).add_(whole, scale=1.0, round=0)
    monkeypatch.setitem(noise_module.CHUNK_NORMALS, "cpu", 16)
    Noise(insecure_seed=1).add_(cut, scale=1.0, round=0)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    values = torch.cat([tensor.flatten() for tensor in whole.values()])
    assert values.unique().numel() == values.numel() == 1 + 33 * 7 + 1


def test_every_coordinate_gets_noise_of_its_own_whatever_the_layout() -> None:
    base = torch.zeros(200, 300)
    sums = {"transposed": base.t(), "wide": torch.zeros(10, 4)[:, ::2]}
    Noise(insecure_seed=1).add_(sums, scale=2.0, round=0)
    assert has_scale(base.numpy().ravel().astype(np.float64), 2.0)
    assert sums["wide"].unique().numel() == 20


def test_parameters_that_require_gradients_are_fine() -> None:
    sums = {"weight": torch.nn.Parameter(torch.zeros(8))}
    Noise().add_(sums, scale=1.0, round=0)
    assert (sums["weight"] != 0).all()
    assert sums["weight"].grad_fn is None


def test_no_sums_and_no_scale_add_nothing() -> None:
    Noise().add_({}, scale=1.0, round=0)
    sums = {"weight": torch.arange(5.0)}
    Noise().add_(sums, scale=0.0, round=0)
    assert sums["weight"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("scale", [-1.0, math.nan, math.inf, 1e37, "a", None])
def test_a_scale_that_is_none_is_refused(scale: Any) -> None:
    sums = {"weight": torch.zeros(3)}
    with pytest.raises(InvalidInput, match="scale"):
        Noise().add_(sums, scale=scale, round=0)
    assert not sums["weight"].any()


@pytest.mark.parametrize("wrong", [torch.zeros(3).long(), torch.zeros(3).bfloat16(), torch.zeros(3).half(), [0.0]])
def test_coarser_sums_are_refused_before_any_noise_is_added(wrong: Any) -> None:
    sums = {"weight": torch.zeros(3), "bias": wrong}
    with pytest.raises(InvalidInput, match=r"sum of bias.*float32"):
        Noise().add_(sums, scale=1.0, round=0)
    assert not sums["weight"].any()


def test_a_tensor_under_two_names_is_refused() -> None:
    tied = torch.zeros(3)
    with pytest.raises(InvalidInput, match="embedding and head are the same"):
        Noise().add_({"embedding": tied, "head": tied.view(3, 1)}, scale=1.0, round=0)
    assert not tied.any()


@pytest.mark.parametrize("arguments", [{"round": -1}, {"round": 0.5}, {"rank": -1}])
def test_rounds_and_ranks_that_are_none_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(arguments))):
        Noise().add_({}, **{"scale": 1.0, "round": 0, **arguments})
    with pytest.raises(InvalidInput, match="insecure_seed"):
        Noise(insecure_seed=0.5)  # pyright: ignore[reportArgumentType]


# --- sharded tensors


@pytest.fixture
def two_ranks() -> Iterator[Any]:
    """The view of rank 0 of 2; the other does not exist, since noise needs no communication."""
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield init_device_mesh("cpu", (2,))
    destroy_process_group()


def test_a_shard_gets_noise_where_it_lies(two_ranks: Any) -> None:
    from torch.distributed.tensor import DTensor, Shard

    local = torch.zeros(500, 100)
    sharded = DTensor.from_local(local, two_ranks, [Shard(0)], run_check=False)
    assert sharded.shape == (1000, 100)
    Noise(insecure_seed=2).add_({"weight": sharded}, scale=3.0, round=0)
    assert has_scale(sharded.to_local().numpy().ravel().astype(np.float64), 3.0)


def test_a_replicated_or_partial_tensor_is_refused(two_ranks: Any) -> None:
    from torch.distributed.tensor import DTensor, Partial, Replicate

    for placement in (Replicate(), Partial()):
        tensor = DTensor.from_local(torch.zeros(4), two_ranks, [placement], run_check=False)
        with pytest.raises(InvalidInput, match="over 2 ranks"):
            Noise().add_({"weight": tensor}, scale=1.0, round=0)
        assert not tensor.to_local().any()
