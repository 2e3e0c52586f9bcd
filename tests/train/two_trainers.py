"""One of two processes that train with ``HushTrainer``: runs every scenario, for test_trainer_ranks.py.

A program rather than a test; a launcher starts it: torchrun --nproc-per-node 2 two_trainers.py FOLDER SCENARIO …
Without a launcher it is both processes: it imports everything once, and forks them.
"""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from models import tiny
from trainers import Stops, Watches, collator, texts, trainer_for, trainer_plan
from transformers import TrainerCallback, TrainerState

import hush
from hush.errors import InvalidInput
from hush.train import PublicFirst, PublicStream
from hush.train.distributed import full_tensors
from hush.train.hf.trainer import HushTrainer
from hush.train.public.metric import PublicMetric

FIRST = PublicFirst(learning_rate=3e-3, batch=8, epochs=2)
SAVED: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2}
SCORED: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 3, "per_device_eval_batch_size": 4}
STOP = 3
RANK = int(os.environ.get("RANK", "0"))


def trainer(output: Path, *, shard: bool = False, public: bool = False, seed: int = 0, **more: Any) -> HushTrainer:
    """A trainer with everything that is public switched on or off, as replicas or in shards."""
    plan = trainer_plan()
    settings = {**SAVED, **more.pop("settings", {}), **({"fsdp": True} if shard else {})}
    sgd = torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}
    parts = public_parts(plan) if public else {}
    model = tiny("llama", seed=seed)
    return trainer_for(
        plan, output, model=model, settings=settings, optimizers=(None, None), optimizer_cls_and_kwargs=sgd,
        **parts, **more,
    )  # fmt: skip


def public_parts(plan: hush.Plan) -> dict[str, Any]:
    """Public first, beside the private rounds, and as a metric."""
    data, collate = texts(), collator("llama")
    assert collate is not None

    def batch_of(examples: np.ndarray) -> dict[str, torch.Tensor]:
        return collate([data[number] for number in examples.tolist()], examples=examples)

    return {
        "public": PublicStream(plan, batch_of, batch_size=8, weight=0.5),
        "public_first": FIRST,
        "metric": PublicMetric.of_plan(plan, batch_of, count=12, every=3),
        "average": 0.5,
    }


def values(model: Any) -> dict[str, torch.Tensor]:
    """Whole parameters, on all ranks."""
    found = full_tensors(dict(model.named_parameters()))
    return {name: parameter.detach().clone() for name, parameter in found.items()}


def trained(trainer: HushTrainer, *, resume: bool = False) -> dict[str, Any]:
    trainer.train(resume_from_checkpoint=resume)
    certificate = trainer.certificate
    return {
        "parameters": values(trainer.model),
        "step": trainer.state.global_step,
        "marks": None if certificate is None else list(certificate.marks),
        "first": None if trainer.learnt_first is None else trainer.learnt_first.validation,
        "wrapped": type(trainer.model_wrapped).__name__,
    }


# ---- scenarios ----


def replicas(folder: Path) -> Any:
    """With scores that are public; the second process starts from other weights, and the first one's count."""
    watch = Watches()
    found = trained(
        trainer(
            folder, settings=SCORED, eval_dataset=texts(1), eval_is_public=True, callbacks=[watch],
            seed=RANK,
        )
    )  # fmt: skip
    return found | {"scores": [row["eval_loss"] for row in watch.scores], "logs": watch.logs}


def shards(folder: Path) -> Any:
    return trained(trainer(folder, shard=True, settings=SCORED, eval_dataset=texts(1)))


def public_replicas(folder: Path) -> Any:
    return trained(trainer(folder, public=True))


def public_shards(folder: Path) -> Any:
    return trained(trainer(folder, public=True, shard=True))


def one_is_stopped(folder: Path) -> Any:
    """A callback of the second process alone asks to stop; both stop, and both go on."""
    stop = [Stops(STOP)] if RANK else []
    stopped = trained(trainer(folder, callbacks=stop))
    return {"stopped": stopped["step"], **trained(trainer(folder), resume=True)}


def two_then_one(folder: Path) -> Any:
    return trained(trainer(folder, shard=True, callbacks=[Stops(STOP)]))


def one_then_two(folder: Path) -> Any:
    return trained(trainer(folder), resume=True)


class Killed(TrainerCallback):
    """Ends this process without a word when the gradients of a round are there, before its noise."""

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        if state.global_step == STOP:
            os.kill(os.getpid(), signal.SIGKILL)


def one_is_killed(folder: Path) -> Any:
    """The second process is killed in the middle of a round."""
    trainer(folder, callbacks=[Killed()] if RANK else []).train()


def refused(folder: Path) -> Any:
    return {
        "settings": refusal(lambda: trainer(folder, average=0.5 if RANK else None).train()),
        "offload": refusal(lambda: trainer(folder, shard=True, settings={"fsdp_config": {"cpu_offload": True}})),
        "first version": refusal(lambda: trainer(folder, shard=True, settings={"fsdp_config": {"version": 1}})),
        "optimizer": refusal(lambda: trainer_with_optimizer(folder).train()),
        "each node": refusal(lambda: trainer(folder, settings={"save_on_each_node": True})),
    }


def trainer_with_optimizer(folder: Path) -> HushTrainer:
    return trainer_for(trainer_plan(), folder, settings={"fsdp": True})


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except InvalidInput as error:
        return str(error)
    return ""


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names:
        found = globals()[name](folder / name)
        torch.save(found, folder / f"{name}.{RANK}")
    dist.barrier()
    dist.destroy_process_group()


def fork_both(folder: Path, names: list[str]) -> int:
    """Be the launcher; 1 if one of the processes failed."""
    global RANK
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    children: list[int] = []
    for RANK in range(2):
        children.append(os.fork())
        if children[-1]:
            continue
        os.environ |= {"RANK": str(RANK), "LOCAL_RANK": str(RANK), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        code = 1
        try:
            main(folder, names)
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(code)
    ended = [os.waitpid(child, 0)[1] for child in children]
    return int(any(ended))


if __name__ == "__main__":
    if "RANK" not in os.environ:
        sys.exit(fork_both(Path(sys.argv[1]), sys.argv[2:]))
    main(Path(sys.argv[1]), sys.argv[2:])
