"""Fewer noised directions, and the mean of the last models: what each gains under the same certified noise.

    python benchmarks/private_directions.py abstracts.parquet [--parallel 6] [--output FILE]      # one GPU
    python benchmarks/private_directions.py abstracts.parquet --small [--arms full bitfit]        # CPU, 10 minutes

A masked model (BERT-Tiny's shape) or a causal one is trained on abstracts without a secret. Then come private rounds on
abstracts of another field, each of which is a secret, at the noise that takes a prior of 1e-10 to at most 1e-3 (or
--sigma). The arms differ in what these rounds train: everything, biases and norms, the bias of the head, adapters, or
adapters whose down-projection is frozen, at random or along the gradients of public abstracts. All arms have the same
rates to choose from, and are compared where validation texts of the private field are best. From each training come the
losses of the last model and of the means over the last shares of the rounds, on test texts of the private field
(secret-like) and of the others (ordinary). --streams: the public stream beside the rounds: none, auto (the noise has at
most 0.3 of its norm), a weight such as 1, or a weight that falls to 0 over the rounds, 1:linear. With alone the private
part is scaled down to nothing: what is better than that was learnt from private texts.
"""

import argparse
import copy
import json
import multiprocessing
import os
import platform
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

import hush
from hush.incidence import Incidence
from hush.slots import Spans
from hush.train.average import IterateAverage
from hush.train.language_models import (
    CausalCollator,
    Collator,
    Loss,
    MaskedCollator,
    TokenizedTexts,
    causal_lm_loss,
    masked_lm_loss,
)
from hush.train.private_training import PrivateTraining
from hush.train.public.down_projections import freeze_down_projections
from hush.train.public.stream import NOISE_SHARE, PublicStream
from hush.train.slots.batches import Batches
from hush.train.trainable import train_only

FULL: dict[str, Any] = {
    "public": 60_000, "private": 40_000, "held": 2_000, "length": 64, "words": 8192, "width": 128, "layers": 2,
    "batch": 2048, "rounds": 250, "micro_batch": 1024, "public_steps": 2000, "public_batch": 512,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "public": 6_000, "private": 4_000, "held": 500, "length": 24, "words": 2048, "width": 64, "layers": 2,
    "batch": 128, "rounds": 60, "micro_batch": 128, "public_steps": 1200, "public_batch": 64,
}  # fmt: skip
FIELD = "cs."  # the first category of a private abstract begins so
PAD, MASK, UNKNOWN = 0, 1, 2
PRIOR, CEILING, CLIP_NORM = 1e-10, 1e-3, 1.0
SHARES = (0.1, 0.3, 0.5)
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
RANK = 8
DIRECTION_EXAMPLES, CAUGHT_TEXTS = 512, 50
ARMS: dict[str, dict[str, Any]] = {
    "full": {},
    "bitfit": {"trainable": ["norms", "biases"]},
    "head-bias": {"trainable": ["head-bias"]},
    "lora": {"down": "trained"},
    "lora-random": {"down": "random"},
    "lora-public": {"down": "public"},
}


def texts_of(path: Path, size: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Abstracts of other fields and of the private one, in the file's order."""
    wanted = size["public"] + 2 * size["held"], size["private"] + 2 * size["held"]
    found: tuple[list[str], list[str]] = [], []
    for batch in pq.ParquetFile(path).iter_batches(20_000, columns=["abstract", "categories"]):
        for text, categories in zip(batch["abstract"].to_pylist(), batch["categories"].to_pylist(), strict=True):
            fields = categories.split()
            private = fields[0].startswith(FIELD)
            if private or not any(field.startswith(FIELD) for field in fields):
                found[private].append(text)
        if all(len(texts) >= count for texts, count in zip(found, wanted, strict=True)):
            return found[0][: wanted[0]], found[1][: wanted[1]]
    raise SystemExit(
        f"{path} has {len(found[0])} public and {len(found[1])} private abstracts, and {wanted} are needed"
    )


def untrained(size: dict[str, Any], words: int) -> Any:
    """Of BERT-Tiny's shape, or a GPT-2 of the same."""
    from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    if size["model"] == "causal":
        drop: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        ends: dict[str, Any] = {"bos_token_id": PAD, "eos_token_id": PAD, "pad_token_id": PAD}
        shape: dict[str, Any] = {"n_embd": size["width"], "n_layer": size["layers"], "n_head": 2}
        return GPT2LMHeadModel(GPT2Config(vocab_size=words, n_positions=size["length"], **shape, **drop, **ends))
    drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    shape = {"num_hidden_layers": size["layers"], "num_attention_heads": 2, "intermediate_size": 4 * size["width"]}
    more: dict[str, Any] = {"max_position_embeddings": size["length"], "pad_token_id": PAD}
    return BertForMaskedLM(BertConfig(vocab_size=words, hidden_size=size["width"], **shape, **drop, **more))


def prepare(path: Path, size: dict[str, Any], folder: Path, device: torch.device) -> None:
    """Tokens, and a model trained on public texts: what all trainings share, in a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    public, private = texts_of(path, size)
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[MASK]", "[UNK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=size["words"], special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(public[: size["public"]], trainer)
    tokens = [
        np.asarray(one.ids[: size["length"]], dtype=np.int32)
        for one in tokenizer.encode_batch([text.lower() for text in public + private])
    ]
    cuts = np.cumsum([size["public"], size["held"], size["held"], size["private"], size["held"]])
    names = ("public", "ordinary_validation", "ordinary_test", "private", "secret_validation", "secret_test")
    parts = {
        n: [tokens[i] for i in part] for n, part in zip(names, np.split(np.arange(len(tokens)), cuts), strict=True)
    }
    model = untrained(size, tokenizer.get_vocab_size()).to(device)
    learn(model, parts["public"], size, device)
    torch.save(
        {"size": size, "parts": {n: [torch.from_numpy(r) for r in p] for n, p in parts.items()}}, folder / "data"
    )
    torch.save(model.cpu(), folder / "model")


def learn(model: Any, rows: list[np.ndarray], size: dict[str, Any], device: torch.device) -> None:
    """Ordinary training, with a rate that falls to 0."""
    batches = Batches(TokenizedTexts(rows), collator(size), device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=size["public_steps"])
    random = np.random.default_rng(0)
    for step in range(size["public_steps"]):
        batches.round = step
        chosen = np.sort(random.choice(len(rows), size["public_batch"], replace=False))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = loss_of(size)(model, batches.of(chosen, size["length"])).float().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def loss_of(size: dict[str, Any]) -> Loss:
    """One loss per text."""
    return causal_lm_loss if size["model"] == "causal" else masked_lm_loss


def collator(size: dict[str, Any]) -> Collator:
    """Every text has its own masks, new ones each round."""
    if size["model"] == "causal":
        return CausalCollator(length=size["length"], padding=PAD)
    return MaskedCollator(
        length=size["length"], padding=PAD, mask=MASK, vocabulary=size["words"], special=frozenset((PAD, MASK, UNKNOWN))
    )


class Bench:
    """What all trainings share: data, plan and start. Examples: first the public ones, then the private ones."""

    def __init__(self, folder: Path, sigma: float | None = None) -> None:
        stored = torch.load(folder / "data", weights_only=True)
        self.size: dict[str, Any] = stored["size"]
        self.parts = {name: [row.numpy() for row in rows] for name, rows in stored["parts"].items()}
        self.start: Any = torch.load(folder / "model", weights_only=False)  # written by this script
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.autocast = torch.bfloat16 if self.device.type == "cuda" else None
        public, private = self.size["public"], self.size["private"]
        graph = Incidence.from_pairs(
            np.arange(public, public + private), np.arange(private), num_examples=public + private, num_secrets=private
        )
        plan = hush.make_plan(
            graph, prior=PRIOR, ceiling=CEILING, batch_size=self.size["batch"], rounds=self.size["rounds"],
            clip_norm=CLIP_NORM, slots=Spans.none(graph).slots, capacity="none",
        )  # fmt: skip
        self.plan = plan if sigma is None else replace(plan, noise_scale=sigma / plan.noise_multiplier)
        self.tokens = TokenizedTexts(self.parts["public"] + self.parts["private"])

    @torch.no_grad()
    def scores(self, model: Any, part: str) -> dict[str, float]:
        """Mean losses on held-out texts, with the same masks every time."""
        model.eval()
        found: dict[str, float] = {}
        for kind in ("secret", "ordinary"):
            rows = self.parts[f"{kind}_{part}"]
            batches, losses = Batches(TokenizedTexts(rows), collator(self.size), self.device), []
            for begin in range(0, len(rows), 250):
                chosen = np.arange(begin, min(begin + 250, len(rows)))
                losses.append(loss_of(self.size)(model, batches.of(chosen, self.size["length"])).double().cpu())
            found[kind] = float(torch.cat(losses).mean())
        model.train()
        return found

    def made(self, arm: str, seed: int) -> Any:
        """The start of an arm: what is trained has a gradient."""
        settings, model = ARMS[arm], copy.deepcopy(self.start).to(self.device)
        torch.manual_seed(seed)
        if "trainable" in settings:
            if settings["trainable"] == ["head-bias"] and self.size["model"] == "causal":
                raise SystemExit("a GPT-2 has no bias in its head; leave the arm head-bias out, or take --model masked")
            train_only(model, settings["trainable"])
        if "down" in settings:
            from peft import LoraConfig, get_peft_model

            causal = self.size["model"] == "causal"
            targets = ["c_attn", "c_proj", "c_fc"] if causal else ["query", "key", "value", "dense"]
            model = get_peft_model(
                model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=targets, fan_in_fan_out=causal)
            )
            model.to(self.device)
            if settings["down"] == "public":
                batches = Batches(self.tokens, collator(self.size), self.device)
                chosen = np.random.default_rng(seed).choice(self.size["public"], DIRECTION_EXAMPLES, replace=False)
                parts = [batches.of(np.sort(part), self.size["length"]) for part in np.array_split(chosen, 8)]
                freeze_down_projections(model, loss_of(self.size), parts)
            elif settings["down"] == "random":
                freeze_down_projections(model)
        return model.train()

    def caught(self, arm: str) -> float:
        """The share of a private text's squared gradient that the down-projections catch; the mean of all layers."""
        model = self.made(arm, 0).eval()
        layers = [module for module in model.modules() if hasattr(module, "lora_A")]
        weights = [layer.base_layer.weight.requires_grad_(True) for layer in layers]
        rows = [torch.linalg.qr(layer.lora_A["default"].weight.detach().mT).Q for layer in layers]
        batches = Batches(TokenizedTexts(self.parts["secret_validation"]), collator(self.size), self.device)
        shares: list[float] = []
        for text in range(CAUGHT_TEXTS):
            losses = loss_of(self.size)(model, batches.of(np.array([text]), self.size["length"]))
            for weight, basis, layer in zip(torch.autograd.grad(losses.sum(), weights), rows, layers, strict=True):
                gradient = weight.mT if layer.fan_in_fan_out else weight
                shares.append(float((gradient @ basis).square().sum() / gradient.square().sum().clamp_min(1e-30)))
        return float(np.mean(shares))

    def train(self, *, arm: str, rate: float, schedule: str, stream: str, seed: int) -> dict[str, Any]:
        """One training, and the losses of its last model and of the means."""
        begun = time.perf_counter()
        model, batches = self.made(arm, seed), Batches(self.tokens, collator(self.size), self.device)
        trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        optimizer = torch.optim.AdamW(trainable.values(), lr=rate, weight_decay=0.0)
        rounds = self.plan.rounds
        falls = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: 1 - t / rounds if schedule == "linear" else min(1.0, (t + 1) / 10)
        )
        public, (weight, _, falling) = None, stream.partition(":")
        if stream != "none":
            public = PublicStream(
                self.plan, lambda chosen: batches.of(chosen, self.size["length"]), batch_size=self.size["public_batch"],
                weight=None if stream in ("auto", "alone") else float(weight), seed=10 + seed,
                noise_share=1e-9 if stream == "alone" else NOISE_SHARE,
            )  # fmt: skip
        private = PrivateTraining(
            model, optimizer, self.plan, scheduler=falls, loss=loss_of(self.size), micro_batch=self.size["micro_batch"],
            public=public, insecure_seed=seed, autocast=self.autocast,
        )  # fmt: skip
        means = {share: IterateAverage(model, trainable, share=share, rounds=rounds) for share in SHARES}
        for current in private.rounds():
            batches.round = current.index
            if public is not None and falling:
                public.weight = float(weight) * (1 - current.index / rounds)
            for micro in current.micro_batches():
                private.accumulate(batches.of(micro.examples, self.size["length"]), micro.real)
            private.step()
            for mean in means.values():
                mean.update(private.round)
        found = {"last": {part: self.scores(model, part) for part in ("validation", "test")}}
        for share, mean in means.items():
            with mean.shown():
                found[f"mean {share:g}"] = {part: self.scores(model, part) for part in ("validation", "test")}
        private.close()
        settings = {"arm": arm, "rate": rate, "schedule": schedule, "stream": stream, "seed": seed}
        seconds = time.perf_counter() - begun
        return settings | {"trained": private.num_trained, "losses": found, "seconds": seconds}


@cache
def _bench(folder: Path, sigma: float | None) -> Bench:
    """One for each process."""
    return Bench(folder, sigma)


def one(folder: Path, sigma: float | None, settings: dict[str, Any]) -> dict[str, Any]:
    """A training in a process of the pool."""
    torch.set_num_threads(1)
    return _bench(folder, sigma).train(**settings)


def best(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each arm, stream and release, the rate and schedule with the least validation loss on the private field."""
    groups: dict[tuple[str, str, str], dict[tuple[float, str], list[dict[str, Any]]]] = {}
    for run in runs:
        for release, losses in run["losses"].items():
            group = groups.setdefault((run["stream"], run["arm"], release), {})
            group.setdefault((run["rate"], run["schedule"]), []).append(run | {"losses": losses})
    rows: list[dict[str, Any]] = []
    for (stream, arm, release), choices in sorted(groups.items()):

        def mean(choice: tuple[float, str], part: str, kind: str, of: Any = choices) -> float:
            return float(np.mean([run["losses"][part][kind] for run in of[choice]]))

        chosen = min(choices, key=lambda choice: mean(choice, "validation", "secret"))
        tested = [run["losses"]["test"]["secret"] for run in choices[chosen]]
        rows.append(
            {
                "stream": stream, "arm": arm, "release": release, "rate": chosen[0], "schedule": chosen[1],
                "trained": choices[chosen][0]["trained"], "secret": float(np.mean(tested)),
                "ordinary": mean(chosen, "test", "ordinary"), "spread": float(np.ptp(tested)), "seeds": len(tested),
            }
        )  # fmt: skip
    return sorted(rows, key=lambda row: (row["stream"], row["secret"]))


def show(rows: list[dict[str, Any]], before: dict[str, float]) -> None:
    """The table."""
    print(f"before: secret-like {before['secret']:.4f}, ordinary {before['ordinary']:.4f}")
    print(f"{'stream':10}{'arm':13}{'release':10}{'trained':>10}{'rate':>8} {'schedule':9}{'secret-like':>12}"
          f"{'ordinary':>10}{'spread':>8}")  # fmt: skip
    for row in rows:
        print(f"{row['stream']:10}{row['arm']:13}{row['release']:10}{row['trained']:>10,}{row['rate']:>8.0e} "
              f"{row['schedule']:9}{row['secret']:>12.4f}{row['ordinary']:>10.4f}{row['spread']:>8.4f}")  # fmt: skip


def main() -> None:
    """Prepare once, run all trainings, print the table and write everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("abstracts", type=Path)
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--schedules", nargs="+", choices=("linear", "constant"), default=["linear", "constant"])
    parser.add_argument("--streams", nargs="+", default=["auto"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sigma", type=float, help="noise multiplier; by default the one that the promise needs")
    parser.add_argument(
        "--folder", type=Path, help="keep the prepared data and model here, or take those that are here"
    )
    parser.add_argument("--parallel", type=int, default=1, help="trainings at a time")
    parser.add_argument("--model", choices=("masked", "causal"), default="masked")
    parser.add_argument("--small", action="store_true", help="a small model and little data, for a CPU")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--output", type=Path, default=Path("private_directions.json"))
    options = parser.parse_args()
    chosen = {name: getattr(options, name) for name in ("model", "rounds", "batch")}
    size = (SMALL if options.small else FULL) | {name: value for name, value in chosen.items() if value is not None}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {os.cpu_count()} cores"
    with tempfile.TemporaryDirectory() as temporary:
        folder, begun = options.folder or Path(temporary), time.perf_counter()
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "model").exists():
            prepare(options.abstracts, size, folder, device)
        bench = Bench(folder, options.sigma)
        shared = {
            "size": bench.size,
            "parameters": sum(p.numel() for p in bench.start.parameters()),
            "noise_multiplier": bench.plan.training_noise_multiplier,
            "before": bench.scores(bench.start.to(device), "test"),
            "caught": {arm: bench.caught(arm) for arm in options.arms if "down" in ARMS[arm]},
        }
        print(f"prepared in {time.perf_counter() - begun:.0f} s: {shared}", flush=True)
        settings = [
            {"arm": arm, "rate": rate, "schedule": schedule, "stream": stream, "seed": seed}
            for seed in range(options.seeds)
            for stream in options.streams
            for rate in options.rates
            for schedule in options.schedules
            for arm in options.arms
        ]
        results: dict[str, Any] = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "hardware": f"{hardware}, {platform.machine()}, {options.parallel} at a time",
            "versions": {"hush": hush.__version__, "torch": torch.__version__},
            **shared,
            "runs": [],
        }
        with ProcessPoolExecutor(options.parallel, mp_context=multiprocessing.get_context("spawn")) as pool:
            waiting = [pool.submit(one, folder, options.sigma, each) for each in settings]
            for number, done in enumerate(as_completed(waiting), start=1):
                run = done.result()
                results["runs"].append(run)
                last = run["losses"]["last"]["test"]
                print(
                    f"{number}/{len(settings)} {run['stream']} {run['arm']} {run['rate']:g} {run['schedule']} seed "
                    f"{run['seed']}: {last['secret']:.4f} {last['ordinary']:.4f} in {run['seconds']:.0f} s",
                    flush=True,
                )
                results["table"] = best(results["runs"])
                options.output.write_text(json.dumps(results, indent=2) + "\n")
        show(results["table"], shared["before"])
        print(f"all in {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
