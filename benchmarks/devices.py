"""Private rounds by several processes on one machine against one process: the same model, and how much faster.

    PYTHONPATH=src python benchmarks/devices.py [--device cuda|cpu] [--size tiny|small|base] [--ranks 1 2 4] [--shard]
        [--rounds 8] [--output FILE]

Each number of processes does the same rounds under the same plan and seed: a GPT-2 made on the spot, random tokens. All
processes of a machine with one GPU share it, over Gloo (NCCL refuses several processes on one GPU), so that the sums
travel through the CPU: this shows that the result is the same, and what communication costs at worst. With --shard the
parameters are sharded (FSDP2) and noise is left out in all runs, since each shard has noise of its own. On a CPU every
process has one thread.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from training_measures import hardware, installed

SIZES: dict[str, dict[str, int]] = {  # layers, width, heads, words, tokens; examples a round and at once
    "tiny": {"layers": 2, "width": 32, "heads": 2, "words": 97, "tokens": 16, "batch": 24, "at_once": 4},
    "small": {"layers": 6, "width": 256, "heads": 4, "words": 8_192, "tokens": 128, "batch": 128, "at_once": 16},
    "base": {"layers": 12, "width": 768, "heads": 12, "words": 50_257, "tokens": 256, "batch": 256, "at_once": 16},
}
EXAMPLES, WARM_UP, LIMIT_SECONDS = 2_000, 2, 420.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cuda", "cpu"))
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--shard", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)  # rank, world, folder
    asked = parser.parse_args()
    if asked.worker:
        rank, world, folder = asked.worker
        work(asked, int(rank), int(world), Path(folder))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {world: together(asked, world, Path(folder)) for world in sorted({1, *asked.ranks})}
    one = found[1]
    moved = distance(one["parameters"], one["start"])
    rows = [
        {
            "processes": world,
            "seconds_per_round": row["seconds"],
            "of_these_communicating": row["communicating"],
            "speed_of_one": one["seconds"] / row["seconds"],
            "alike_on_all_processes": row["alike"],
            "distance_from_one_over_update": distance(row["parameters"], one["parameters"]) / moved,
        }
        for world, row in found.items()
    ]
    result = {
        "what": f"{'shards' if asked.shard else 'replicas'} of GPT-2, {asked.size}: {SIZES[asked.size]}",
        "parameters": int(one["parameters"].numel()),
        "rounds": asked.rounds,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "hardware": hardware(asked.device),
        "versions": {name: installed(name) for name in ("torch", "transformers")},
        "rows": rows,
    }
    print(json.dumps(result, indent=2))
    if asked.output is not None:
        asked.output.write_text(json.dumps(result, indent=2) + "\n")


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm())


def together(asked: argparse.Namespace, world: int, folder: Path) -> dict[str, Any]:
    """What so many processes come to."""
    begin, place = time.perf_counter(), folder / str(world)
    place.mkdir()
    command = [sys.executable, *sys.argv]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen([*command, "--worker", str(rank), str(world), str(place)], env=environment)
        for rank in range(world)
    ]
    try:
        codes = [worker.wait(timeout=LIMIT_SECONDS) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    if any(codes):
        raise SystemExit(f"{world} processes ended with {codes}")
    found = [torch.load(place / f"{rank}.pt", weights_only=True) for rank in range(world)]
    alike = all(torch.equal(one["parameters"], found[0]["parameters"]) for one in found)
    print(f"{world} processes: {time.perf_counter() - begin:.0f} s in all", file=sys.stderr, flush=True)
    return {**found[0], "alike": alike}


def work(asked: argparse.Namespace, rank: int, world: int, folder: Path) -> None:
    """One of the processes."""
    import hush
    from hush.train.distributed import Ranks, full_tensors
    from hush.train.language_models import causal_lm_loss
    from hush.train.noise import Noise
    from hush.train.pretrained import shard_blocks
    from hush.train.private_training import PrivateTraining

    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    shape, device = SIZES[asked.size], torch.device(asked.device)
    model = gpt2(shape).to(device)
    start = values(dict(model.named_parameters()))
    if asked.shard:
        setattr(Noise, "add_", lambda self, sums, **_: None)  # noqa: B010
        if world > 1:
            shard_blocks(model, device)
    holders = [0, 1, 2, 5, 9]
    incidence = hush.Incidence.from_pairs(holders, [0, 0, 1, 1, 1], num_examples=EXAMPLES, num_secrets=2)
    plan = hush.make_plan(
        incidence, prior=1e-6, ceiling=1e-2, batch_size=shape["batch"], rounds=asked.rounds, capacity="none"
    )
    tokens = torch.randint(1, shape["words"], (EXAMPLES, shape["tokens"]), generator=torch.Generator().manual_seed(1))
    waited = [0.0]
    for name in ("sum", "share"):
        setattr(Ranks, name, timed(getattr(Ranks, name), waited, device))
    private = PrivateTraining(
        model, torch.optim.AdamW(model.parameters(), lr=1e-3), plan, loss=causal_lm_loss, insecure_seed=3,
        micro_batch=shape["at_once"],
    )  # fmt: skip
    seconds: list[float] = []
    communicating: list[float] = []
    begin = now(device)
    for current in private.rounds():
        waited[0] = 0.0
        for part in current.micro_batches():
            ids = tokens[torch.as_tensor(np.asarray(part.examples))].to(device)
            private.accumulate({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}, part.real)
        private.step()
        end = now(device)
        seconds.append(end - begin)
        communicating.append(waited[0])
        begin = end
        if rank == 0:
            print(f"{world} processes, round {current.index + 1}: {seconds[-1]:.3f} s", file=sys.stderr, flush=True)
    found = {
        "parameters": values(full_tensors(dict(model.named_parameters()))),
        "start": start,
        "seconds": statistics.median(seconds[WARM_UP:]),
        "communicating": statistics.median(communicating[WARM_UP:]),
    }
    torch.save(found, folder / f"{rank}.pt")
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # torch caches what belongs to the group


def gpt2(shape: dict[str, int]) -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(
        vocab_size=shape["words"], n_embd=shape["width"], n_layer=shape["layers"], n_head=shape["heads"],
        n_positions=shape["tokens"], bos_token_id=0, eos_token_id=0, **still,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


def values(parameters: dict[str, Any]) -> torch.Tensor:
    return torch.cat([parameter.detach().cpu().reshape(-1) for parameter in parameters.values()]).clone()


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def timed(call: Any, waited: list[float], device: torch.device) -> Any:
    """The call, whose time is added up: that of messages, and of waiting for the slowest process."""

    def called(*args: Any, **options: Any) -> Any:
        begin = now(device)
        try:
            return call(*args, **options)
        finally:
            waited[0] += now(device) - begin

    return called


if __name__ == "__main__":
    main()
