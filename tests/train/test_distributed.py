"""Two processes train as one: the same update, noise once, the same model on every rank, however the draws fall."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
import two_ranks
from reference import small_data, small_model
from torch import Tensor, nn

from hush.errors import InvalidInput
from hush.train.clipping import Clipper
from hush.train.distributed import Ranks, communicate_flat, full_tensors, message_buckets, shard_like, unwrap_ddp
from hush.train.language_models import causal_lm_loss
from hush.train.noise import Noise
from hush.train.private_training import noisy_sum
from hush.train.round import micro_batches

ALONE = Ranks(rank=0, world=1)
JOINED = [first + second for first, second in two_ranks.DRAWS]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found, by scenario."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-W", "error", str(Path(__file__).with_name("two_ranks.py"))]
    ranks = [
        subprocess.Popen([*command, str(rank), str(folder)], stderr=subprocess.PIPE, text=True) for rank in range(2)
    ]
    errors = [rank.communicate(timeout=120)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors)
    return [torch.load(folder / f"found.{rank}", weights_only=True) for rank in range(2)]


def assert_close(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float = 2e-6) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], rtol=0, atol=tolerance, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("scenario", ["replicas", "unequal_replicas", "data_parallel"])
def test_replicas_make_the_update_of_one_process_noise_included(found: list[dict[str, Any]], scenario: str) -> None:
    one = two_ranks.train(two_ranks.build(), ALONE, JOINED, scale=0.3)
    # AdamW divides by the root of small second moments, which magnifies the order of additions.
    assert_close(found[0][scenario]["parameters"], one["parameters"], 2e-5)


def test_shards_make_the_update_of_one_process(found: list[dict[str, Any]]) -> None:
    one = two_ranks.train(two_ranks.build(), ALONE, JOINED, scale=0.0)
    assert_close(found[0]["shards"]["parameters"], one["parameters"], 2e-5)


def test_noisy_shards_add_each_ranks_noise_to_its_own_shard(found: list[dict[str, Any]]) -> None:
    """Noise of fixed seeds, put together here shard by shard, is what the sharded training added in each round."""
    model = two_ranks.build()
    rounds = [[(drawn[rank], rank) for rank in range(2)] for drawn in two_ranks.DRAWS]
    parameters = dict(model.named_parameters())
    clipper = Clipper(model, two_ranks.loss, clip_norm=two_ranks.CLIP_NORM)
    for index, draws in enumerate(rounds):
        for drawn, _ in draws:
            for batch in micro_batches(drawn, size=two_ranks.SLOTS):
                clipper.accumulate(two_ranks.collate(batch.examples), torch.as_tensor(batch.real))
        sums = clipper.take()
        for rank in range(2):
            parts = {name: value.chunk(2)[rank] for name, value in sums.items()}
            Noise(insecure_seed=3).add_(parts, scale=0.3, round=index, rank=rank)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter -= 0.05 * sums[name] / 8
    assert_close(found[0]["noisy_shards"]["parameters"], two_ranks.values(model))


def test_mixed_precision_of_fsdp_trains_close_to_float32(found: list[dict[str, Any]]) -> None:
    one = two_ranks.train(two_ranks.build(), ALONE, JOINED, scale=0.0, optimizer=torch.optim.SGD)
    start = two_ranks.values(two_ranks.build())
    moved = torch.cat([(value - start[name]).flatten() for name, value in one["parameters"].items()])
    reduced = found[0]["reduced_shards"]["parameters"]
    error = torch.cat([(reduced[name] - value).flatten() for name, value in one["parameters"].items()])
    assert error.norm() < 0.03 * moved.norm()


@pytest.mark.parametrize(
    "scenario", ["replicas", "unequal_replicas", "data_parallel", "shards", "noisy_shards", "reduced_shards"]
)
def test_every_rank_ends_with_the_same_model(found: list[dict[str, Any]], scenario: str) -> None:
    one, other = (rank[scenario]["parameters"] for rank in found)
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_only_shards_pad_to_the_same_number_of_micro_batches(found: list[dict[str, Any]]) -> None:
    own = [[math.ceil(len(drawn[rank]) / two_ranks.SLOTS) for drawn in two_ranks.DRAWS] for rank in range(2)]
    assert [rank["replicas"]["counts"] for rank in found] == own
    assert own[0] != own[1]
    most = [max(pair) for pair in zip(*own, strict=True)]
    assert [rank["shards"]["counts"] for rank in found] == [most, most]
    assert 0 in most  # a round that is empty everywhere runs nothing, and is a round


def test_shapes_that_are_new_to_one_rank_alone_keep_shards_in_step(found: list[dict[str, Any]]) -> None:
    for rank, lengths in enumerate(((5, 3, 5, 4), (5, 5, 4, 5))):
        model = two_ranks.build()
        clipper = Clipper(model, two_ranks.loss, clip_norm=two_ranks.CLIP_NORM)
        for length in lengths:
            batch = {key: value[:, :length] for key, value in two_ranks.collate(range(4)).items()}
            clipper.accumulate(batch, torch.ones(4, dtype=torch.bool))
        assert_close(found[rank]["lengths_of_shards"], clipper.take())


@pytest.mark.parametrize("cut", [True, False])
def test_a_sharded_language_model_gives_the_clipped_sum_of_a_whole_one(found: list[dict[str, Any]], cut: bool) -> None:
    for rank in range(2):
        clipper = Clipper(two_ranks.language_model(), causal_lm_loss, clip_norm=two_ranks.CLIP_NORM)
        clipper.accumulate(two_ranks.language_batch(rank), torch.ones(4, dtype=torch.bool))
        assert_close(found[rank]["language_model_shards"][cut], clipper.take())


@pytest.mark.parametrize("scenario", ["noise_of_replicas", "noise_of_shards", "noise_of_both"])
def test_noise_is_added_exactly_once_in_any_layout(found: list[dict[str, Any]], scenario: str) -> None:
    one, other = (torch.cat([value.flatten() for value in rank[scenario].values()]) for rank in found)
    assert torch.equal(one, other)
    # The sum of n squares of N(0, 4) is within 6 standard deviations of 4 n: twice or no noise would be far outside.
    count = one.numel()
    assert abs(float(one.double().square().sum()) / (4 * count) - 1) < 6 * math.sqrt(2 / count)
    assert float(one.abs().max()) < 2 * 7
    for value in found[0][scenario].values():
        halves = value.chunk(2)
        alike = float((halves[0].double() * halves[1].double()).mean()) / 4
        assert abs(alike) < 6 / math.sqrt(halves[0].numel())  # the ranks' noises are independent


def test_a_wrapped_model_no_longer_averages_raw_gradients(found: list[dict[str, Any]]) -> None:
    one, other = (rank["data_parallel"]["raw"] for rank in found)
    assert not torch.allclose(one, other)


def test_a_sharded_state_that_was_saved_whole_goes_on_as_if_nothing_had_been(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert_close(rank["saved_and_loaded"]["straight"], rank["saved_and_loaded"]["resumed"], 0)
    straight = found[0]["saved_and_loaded"]["straight"]
    model, batch = two_ranks.build(), two_ranks.collate([0, 1, 2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        two_ranks.loss(model, batch).sum().backward()
        optimizer.step()
    assert_close(straight, two_ranks.values(model), 2e-5)


def test_a_sharded_model_can_be_written_as_if_it_were_whole(found: list[dict[str, Any]]) -> None:
    assert_close(found[0]["written_whole"]["state"], dict(two_ranks.build().state_dict()), 0)
    assert found[1]["written_whole"]["state"] == {}
    assert [rank["written_whole"]["back"] for rank in found] == [True, True]


@pytest.mark.parametrize("scenario", ["replicas", "shards"])
def test_the_norm_of_the_sum_is_that_over_all_ranks(found: list[dict[str, Any]], scenario: str) -> None:
    one = two_ranks.train(two_ranks.build(), ALONE, JOINED, scale=0.3 if scenario == "replicas" else 0.0)
    for rank in found:
        assert rank[scenario]["norms"] == pytest.approx(one["norms"], rel=1e-4)


def test_probes_work_on_shards(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["probes_of_shards"]["examples"] == 3
        assert "neighbours" in rank["probes_of_shards"]["coupled"]


def test_layouts_that_would_need_other_sums_are_refused(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert "mesh of one dimension" in rank["hybrid"]


def test_private_training_on_two_ranks_ends_as_on_one(
    found: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replicas draw rank 0's noise; shards their own, which is put together here for the one process."""
    add, parts = Noise.add_, 1

    def add_by_shard(self: Noise, sums: dict[str, Tensor], *, scale: float, round: int, rank: int) -> None:
        for shard in range(parts):
            add(self, {name: v.chunk(parts)[shard] for name, v in sums.items()}, scale=scale, round=round, rank=shard)

    monkeypatch.setattr(Noise, "add_", add_by_shard)
    scenarios = {"private_replicas": 1, "private_shards": 2, "metric_replicas": 1, "metric_shards": 2}
    for scenario, parts in scenarios.items():  # noqa: B007 - read by add_by_shard
        model = small_model()
        private = two_ranks.start(model, None, metric=scenario.startswith("metric"))
        reference.train(private, small_data())
        certificate = private.finish()
        for rank in found:
            assert_close(rank[scenario]["parameters"], two_ranks.values(model), 2e-5)
            assert rank[scenario]["marks"] == list(certificate.marks)
            assert rank[scenario]["loss"] == pytest.approx(private.live.loss, rel=1e-3)  # pyright: ignore


def test_only_the_first_rank_writes_and_it_writes_whole_models(found: list[dict[str, Any]], tmp_path: Path) -> None:
    for scenario in ("private_replicas", "private_shards"):
        files = ["release/model/model.safetensors", "release/round-000003/model.safetensors"]
        assert [rank[scenario]["written"] for rank in found] == [files, files]


def test_ranks_agree(found: list[dict[str, Any]]) -> None:
    for index, rank in enumerate(found):
        assert rank["talk"] == {"max": 10, "broadcast": "seed of 0", "gather": [5, 6], "is_first": index == 0} | {
            "run_on_first": "done by 0",
            "error": "refused by 0",
        }


def test_one_process_is_the_trivial_case() -> None:
    assert Ranks.current() == ALONE
    model = nn.Linear(3, 2)
    assert unwrap_ddp(model) is model
    ALONE.broadcast_model_(model)
    assert (ALONE.max(7), ALONE.broadcast("a"), ALONE.gather("a"), ALONE.is_first) == (7, "a", ["a"], True)
    assert ALONE.pad_batches([1, 2], 0, model=model) == [1, 2]
    sums = {name: torch.randn(value.shape) for name, value in model.named_parameters()}
    expected = {name: value.clone() for name, value in sums.items()}
    Noise(insecure_seed=2).add_(expected, scale=0.7, round=4)
    parameters = dict(model.named_parameters())
    norm = math.sqrt(sum(float(value.square().sum()) for value in sums.values()))
    noisy, size = noisy_sum(sums, parameters, ranks=ALONE, noise=Noise(insecure_seed=2), scale=0.7, round=4)
    assert all(torch.equal(noisy[name], value) for name, value in expected.items())
    assert float(size) == pytest.approx(norm)
    assert full_tensors(noisy) == noisy
    assert shard_like(model.weight, model.bias) is model.weight


def test_processes_that_were_not_connected_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidInput, match="init_process_group"):
        Ranks.current()


def test_buckets_hold_every_tensor_once_and_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hush.train.distributed.MAX_MESSAGE_COORDINATES", 10)
    tensors = {name: torch.zeros(size) for name, size in zip("abcdef", (4, 6, 1, 25, 0, 9), strict=True)}
    cut = list(message_buckets(tensors))
    assert [name for names in cut for name in names] == list(tensors)
    assert all(len(names) == 1 or sum(tensors[name].numel() for name in names) <= 10 for names in cut)


def test_flat_messages_come_back_into_their_tensors() -> None:
    tensors = [torch.ones(2, 3).t(), torch.zeros(0), torch.full((4,), 2.0)]
    communicate_flat(tensors, lambda flat: flat.mul_(3))
    assert [value.tolist() for value in tensors] == [[[3.0, 3.0]] * 3, [], [6.0] * 4]
