"""One of two processes that train together: runs every scenario and writes what came out, for test_distributed.py.

A program rather than a test, so that two processes pay for their imports once: python two_ranks.py RANK FOLDER
"""

import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import reference
import torch
import torch.distributed as dist
from reference import cross_entropy, small_data, small_model, small_plan
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

from hush.errors import InvalidInput
from hush.train.clipping import Clipper
from hush.train.distributed import (
    Ranks,
    check_sharding,
    full_parameters,
    full_tensors,
    gradients_of,
    shard_optimizer_state,
    unwrap_ddp,
)
from hush.train.language_models import causal_lm_loss
from hush.train.noise import Noise
from hush.train.private_training import PrivateTraining, noisy_sum
from hush.train.probes import probe
from hush.train.public.metric import PublicMetric
from hush.train.round import MicroBatch, micro_batches

WORDS, LENGTH, SLOTS, CLIP_NORM = 11, 5, 4, 0.5
# By round, what each of two ranks draws: unequal numbers of micro-batches, an empty draw on either, on both.
DRAWS = [([0, 1, 2, 3, 4, 5, 6, 7, 8], [9, 10]), ([], [3, 4, 5]), ([1], []), ([], []), ([2], list(range(5, 17)))]
SPARE = MicroBatch(examples=np.zeros(SLOTS, dtype=np.int64), real=np.zeros(SLOTS, dtype=np.bool_), length=None)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    """A small language model with tied weights; its 11 words do not divide by 2."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def shard(model: Net, **options: Any) -> Net:
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model.norm, **options)
    fully_shard(model, **options)
    return model


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    logits = model(batch["ids"]).float().transpose(1, 2)
    return nn.functional.cross_entropy(logits, batch["wanted"], reduction="none").mean(1)


def coupled(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return loss(model, batch) * loss(model, batch).mean()


def collate(examples: Any) -> dict[str, Tensor]:
    table = torch.randint(0, WORDS, (2, 40, LENGTH), generator=torch.Generator().manual_seed(7))
    chosen = torch.as_tensor(examples)
    return {"ids": table[0][chosen], "wanted": table[1][chosen]}


def train(
    model: nn.Module, ranks: Ranks, draws: list[list[int]], *, scale: float, optimizer: Any = torch.optim.AdamW
) -> dict[str, Any]:
    """Rounds as training does them, with draws that are given; parameters and how many micro-batches each round ran."""
    ranks.broadcast_model_(model)
    parameters = dict(model.named_parameters())
    steps = optimizer(parameters.values(), lr=0.05)
    clipper = Clipper(model, loss, clip_norm=CLIP_NORM)
    noise = Noise(insecure_seed=3)
    counts, norms = [], []
    for index, drawn in enumerate(draws):
        batches = ranks.pad_batches(list(micro_batches(drawn, size=SLOTS)), SPARE, model=model)
        counts.append(len(batches))
        for batch in batches:
            clipper.accumulate(collate(batch.examples), torch.as_tensor(batch.real))
        sums, norm = noisy_sum(clipper.take(), parameters, ranks=ranks, noise=noise, scale=scale, round=index)
        for name, parameter in parameters.items():
            parameter.grad = sums[name] / 8
        steps.step()
        steps.zero_grad()
        norms.append(float(norm))
    return {"parameters": values(model), "counts": counts, "norms": norms}


def values(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: parameter.detach().clone() for name, parameter in full_tensors(dict(model.named_parameters())).items()
    }


def replicas(ranks: Ranks) -> Any:
    return train(build(), ranks, [drawn[ranks.rank] for drawn in DRAWS], scale=0.3)


def unequal_replicas(ranks: Ranks) -> Any:
    """The ranks start from different models; the first rank's counts."""
    return train(build(seed=ranks.rank), ranks, [drawn[ranks.rank] for drawn in DRAWS], scale=0.3)


def data_parallel(ranks: Ranks) -> Any:
    wrapped = DistributedDataParallel(build())
    found = train(unwrap_ddp(wrapped), ranks, [drawn[ranks.rank] for drawn in DRAWS], scale=0.3)
    # Even through the wrapper, raw gradients now stay in their process.
    loss(wrapped, collate([ranks.rank])).sum().backward()
    return found | {"raw": wrapped.module.norm.weight.grad}


def shards(ranks: Ranks) -> Any:
    return train(shard(build()), ranks, [drawn[ranks.rank] for drawn in DRAWS], scale=0.0)


def noisy_shards(ranks: Ranks) -> Any:
    return train(shard(build()), ranks, [drawn[ranks.rank] for drawn in DRAWS], scale=0.3, optimizer=torch.optim.SGD)


def lengths_of_shards(ranks: Ranks) -> Any:
    """Sequences of other lengths on one rank than on the other: a shape may be new to one of them alone."""
    model = shard(build())
    clipper = Clipper(model, loss, clip_norm=CLIP_NORM)
    for length in ((5, 3, 5, 4), (5, 5, 4, 5))[ranks.rank]:
        batch = {key: value[:, :length] for key, value in collate(range(4)).items()}
        clipper.accumulate(batch, torch.ones(4, dtype=torch.bool))
    return clipper.take()


def language_model() -> nn.Module:
    torch.manual_seed(4)
    config = GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=WORDS, n_positions=LENGTH, pad_token_id=0)
    return GPT2LMHeadModel(config).eval()


def language_batch(rank: int) -> dict[str, Tensor]:
    ids = collate(range(5 * rank, 5 * rank + 4))["ids"]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def language_model_shards(ranks: Ranks) -> Any:
    """A Hugging Face model whose tied head is computed apart; with the outermost module's parameters cut or not."""
    found = {}
    for cut in (True, False):
        model: Any = language_model()
        for block in model.transformer.h:
            fully_shard(block)
        fully_shard(model, reshard_after_forward=cut)
        clipper = Clipper(model, causal_lm_loss, clip_norm=CLIP_NORM)
        clipper.accumulate(language_batch(ranks.rank), torch.ones(4, dtype=torch.bool))
        found[cut] = clipper.take()
    return found


def reduced_shards(ranks: Ranks) -> Any:
    """FSDP2's own mixed precision: modules see bfloat16, sums and parameters are float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard(build(), mp_policy=policy)
    return train(model, ranks, [drawn[ranks.rank] for drawn in DRAWS], scale=0.0, optimizer=torch.optim.SGD)


def only_noise(model: nn.Module, ranks: Ranks) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    zeros = {name: torch.zeros(parameter.shape) for name, parameter in parameters.items()}
    sums, _ = noisy_sum(zeros, parameters, ranks=ranks, noise=Noise(), scale=2.0, round=0)
    return {name: value.clone() for name, value in full_tensors(sums).items()}


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(200, 200, bias=False), nn.Linear(200, 100, bias=False))


def noise_of_replicas(ranks: Ranks) -> Any:
    return only_noise(wide(), ranks)


def noise_of_shards(ranks: Ranks) -> Any:
    model = wide()
    fully_shard(model)
    return only_noise(model, ranks)


def noise_of_both(ranks: Ranks) -> Any:
    """One layer sharded, the other replicated."""
    model = wide()
    fully_shard(model[1])  # pyright: ignore[reportIndexIssue]
    return only_noise(model, ranks)


def saved_and_loaded(ranks: Ranks) -> Any:
    """Two steps in a row, and the second again from what was saved whole after the first."""
    batch = collate([0, 1, 2])
    model = shard(build())
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.05)

    def step() -> None:
        for name, gradient in gradients_of(loss(model, batch).sum(), parameters).items():
            parameters[name].grad = gradient
        optimizer.step()
        optimizer.zero_grad()

    step()
    state = {"model": values(model), "optimizer": full_tensors(optimizer.state_dict())}
    torch.save(state, Path(sys.argv[2]) / f"saved.{ranks.rank}")
    step()
    found = {"straight": values(model)}
    saved = torch.load(Path(sys.argv[2]) / f"saved.{ranks.rank}", weights_only=True)
    model = build()
    model.load_state_dict(saved["model"] | {"head.weight": saved["model"]["words.weight"]})
    parameters = dict(shard(model).named_parameters())
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.05)
    optimizer.load_state_dict(shard_optimizer_state(saved["optimizer"], optimizer))
    step()
    return found | {"resumed": values(model)}


def written_whole(ranks: Ranks) -> Any:
    """The model's own state as the first rank would write it, and that its shards are back afterwards."""
    model = shard(build())
    before = list(model.parameters())
    with full_parameters(model, here=ranks.is_first):
        state = {name: value.clone() for name, value in model.state_dict().items()} if ranks.is_first else {}
    back = all(one is other for one, other in zip(before, model.parameters(), strict=True))
    return {"state": state, "back": back}


def probes_of_shards(ranks: Ranks) -> Any:
    model, batch, real = shard(build()), collate([0, 1, 2, 3]), torch.ones(4, dtype=torch.bool)
    found = probe(model, loss, batch, real, clipper=Clipper(model, loss, clip_norm=CLIP_NORM))
    return {"examples": found.examples, "coupled": refusal(lambda: probe_coupled(model, batch, real))}


def probe_coupled(model: nn.Module, batch: dict[str, Tensor], real: Tensor) -> object:
    return probe(model, coupled, batch, real, clipper=Clipper(model, coupled, clip_norm=CLIP_NORM))


def hybrid(ranks: Ranks) -> Any:
    model = shard(build(), mesh=init_device_mesh("cpu", (1, 2), mesh_dim_names=("copies", "shards")))
    return refusal(lambda: check_sharding(dict(model.named_parameters()), world=ranks.world))


def in_a_folder(name: str, layout: Callable[[nn.Module], Any], *, metric: bool = False) -> Any:
    """A whole training with a break in the middle: half of it, then another that goes on from the folder."""
    folder = Path(sys.argv[2]) / name
    for until in (3, None):
        model = small_model(seed=0 if until else 5)  # the folder's state replaces what it starts from
        private = start(layout(model), folder, metric=metric)
        reference.train(private, small_data(), until=until)
        if until:
            private.save()
            private.release()
            private.close()
    certificate, live = private.finish(), private.live
    assert live is not None
    written = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.safetensors"))
    return {
        "parameters": values(model),
        "marks": list(certificate.marks),
        "written": written,
        "loss": live.loss,
    }


def start(model: nn.Module, folder: Path | None, *, metric: bool = False) -> PrivateTraining:
    optimizer = torch.optim.AdamW(unwrap_ddp(model).parameters(), lr=0.02)
    plan, data = small_plan(rounds=6), small_data()
    public = PublicMetric.of_plan(
        plan, lambda ids: reference.rows(data, ids), count=12, every=2, micro_batch=5, precondition=0.25
    )
    return PrivateTraining(
        model,
        optimizer,
        plan,
        loss=cross_entropy,
        micro_batch=3,
        metric=public if metric else None,
        folder=folder,
        insecure_seed=8,
    )


def private_replicas(ranks: Ranks) -> Any:
    return in_a_folder("replicas", DistributedDataParallel)


def private_shards(ranks: Ranks) -> Any:
    return in_a_folder("shards", fully_shard)


def metric_replicas(ranks: Ranks) -> Any:
    return in_a_folder("metric_replicas", DistributedDataParallel, metric=True)


def metric_shards(ranks: Ranks) -> Any:
    return in_a_folder("metric_shards", fully_shard, metric=True)


def talk(ranks: Ranks) -> Any:
    return {
        "max": ranks.max(10 * ranks.rank),
        "broadcast": ranks.broadcast(f"seed of {ranks.rank}"),
        "gather": ranks.gather(ranks.rank + 5),
        "is_first": ranks.is_first,
        "run_on_first": ranks.run_on_first(lambda: f"done by {ranks.rank}"),
        "error": refusal(lambda: ranks.run_on_first(lambda: refuse(ranks.rank))),
    }


def refuse(rank: int) -> None:
    raise InvalidInput(f"refused by {rank}")


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except InvalidInput as error:
        return str(error)
    return ""


SCENARIOS = [
    talk, replicas, unequal_replicas, data_parallel, shards, noisy_shards, reduced_shards, lengths_of_shards,
    language_model_shards, noise_of_replicas, noise_of_shards, noise_of_both, saved_and_loaded, probes_of_shards,
    written_whole, hybrid, private_replicas, private_shards,
    metric_replicas, metric_shards,
]  # fmt: skip


def main(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    found = {scenario.__name__: scenario(Ranks.current()) for scenario in SCENARIOS}
    torch.save(found, folder / f"found.{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
