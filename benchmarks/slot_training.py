"""What the private part of examples with slots teaches, and what it costs: slot against difference, beside the stream.

    python benchmarks/slot_training.py abstracts.parquet [--seeds 2] [--output benchmarks/results/slot_training.json]

Rare words of a few thousand abstracts are hidden as spans. A small model is first trained on skeletons alone; every arm
begins there and runs the same rounds under one plan. Losses are on abstracts that no arm trains on: at the tokens of
the secret words, and elsewhere. Noise is the plan's, or a tenth of it, where a promise no longer holds: it shows what
there is to learn. Then the time of a round of each kind against a round without slots.
"""

import argparse
import copy
import json
import os
import platform
import re
import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import hush
from hush.incidence import Incidence
from hush.plan import Plan
from hush.slots import Spans, slots_of_spans
from hush.train import PrivateTraining, PublicStream
from hush.train.language_models import (
    CausalCollator,
    Collator,
    DifferenceLoss,
    MaskedCollator,
    causal_lm_loss,
    masked_lm_loss,
)
from hush.train.slots.batches import Batches, SkeletonBatches
from hush.train.slots.texts import SlotTexts, add_placeholder_tokens, tokenise_slots

TRAIN, TEST = 4000, 1000  # abstracts
LENGTH, WORDS, WIDTH, LAYERS = 40, 2048, 64, 2
BATCH, ROUNDS, PUBLIC_ROUNDS = 64, 60, 300
IN_TEXTS = (4, 12)  # abstracts that a secret word stands in
PRIOR, CEILING, RULE = 1e-4, 0.1, "rare-words"
PARTS = ("example", "slot", "difference")  # "example": a round without slots
WORD = re.compile(r"[a-z]{5,}")


def spans_of(texts: list[str], secret_of: dict[str, int]) -> Spans:
    """Every occurrence of a secret word in these texts."""
    hits = [
        (example, found.start(), found.end(), secret_of[found.group()])
        for example, text in enumerate(texts)
        for found in WORD.finditer(text)
        if found.group() in secret_of
    ]
    example, begin, end, secret = np.array(hits).T
    graph = Incidence.from_pairs(example, secret, num_examples=len(texts), num_secrets=len(secret_of))
    return slots_of_spans(graph, [RULE], example=example, begin=begin, end=end, rule=np.zeros_like(end), secret=secret)


def graph_of(spans: Spans) -> Incidence:
    slots = spans.slots
    example = np.repeat(slots.example_L, np.diff(slots.offset_L))
    return Incidence.from_pairs(example, slots.secret_P, num_examples=slots.num_examples, num_secrets=slots.num_secrets)


def made_tokenizer(texts: list[str]) -> Any:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet, special = pre_tokenizers.ByteLevel.alphabet(), ["<pad>", "<mask>"]
    inner.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet, special_tokens=special, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", mask_token="<mask>")


class Bench:
    """Data, plan and start of one kind of model."""

    def __init__(self, path: Path, *, masked: bool, public_rounds: int = PUBLIC_ROUNDS) -> None:
        texts = [
            text.as_py()
            for text in next(pq.ParquetFile(path).iter_batches(TRAIN + TEST + 2000, columns=["abstract"]))[0]
        ]
        self.train, self.test, other = texts[:TRAIN], texts[TRAIN : TRAIN + TEST], texts[TRAIN + TEST :]
        seen = Counter(word for text in self.train for word in set(WORD.findall(text[:200])))
        anywhere = Counter(word for text in self.train for word in set(WORD.findall(text)))
        tested = {word for text in self.test for word in WORD.findall(text[:200])}
        secrets = [w for w in sorted(seen) if IN_TEXTS[0] <= anywhere[w] <= IN_TEXTS[1] and w in tested]
        secret_of = {word: number for number, word in enumerate(secrets)}
        self.train = [text[:200] for text in self.train]
        self.test = [text[:200] for text in self.test]
        self.spans = spans_of(self.train, secret_of)
        self.plan = hush.make_plan(
            graph_of(self.spans), prior=PRIOR, ceiling=CEILING, batch_size=BATCH, rounds=ROUNDS, slots=self.spans.slots
        )
        self.masked, self.secrets = masked, len(secrets)
        self.tokenizer = made_tokenizer(other)
        torch.manual_seed(0)
        self.start: Any = self._model()
        add_placeholder_tokens(self.start, self.tokenizer, [RULE])
        self.loss = masked_lm_loss if masked else causal_lm_loss
        # The test texts with their secret words as slots: their labels say which tokens are of a secret word.
        test_spans = spans_of(self.test, secret_of)
        test_plan = hush.make_plan(
            graph_of(test_spans), prior=PRIOR, ceiling=0.9, batch_size=8, rounds=1, slots=test_spans.slots
        )
        self.scored = tokenise_slots(
            self.test, self.tokenizer, test_plan, test_spans, max_length=LENGTH, part="difference"
        )
        self.learn_public(public_rounds)

    def _model(self) -> Any:
        shape: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
        if not self.masked:
            drop: dict[str, Any] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
            return GPT2LMHeadModel(
                GPT2Config(
                    vocab_size=WORDS, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=4, **drop, **shape
                )
            )
        drop = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return BertForMaskedLM(
            BertConfig(
                vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
                intermediate_size=4 * WIDTH, max_position_embeddings=LENGTH, **drop, **shape,
            )
        )  # fmt: skip

    def collator(self, slot_share: float = 1.0) -> Collator:
        if not self.masked:
            return CausalCollator(length=LENGTH, padding=0)
        return MaskedCollator(
            length=LENGTH, padding=0, mask=1, vocabulary=WORDS, slot_share=slot_share, special=frozenset((0, 1))
        )

    def texts(self, part: Any) -> SlotTexts:
        return tokenise_slots(self.train, self.tokenizer, self.plan, self.spans, max_length=LENGTH, part=part)

    def learn_public(self, rounds: int) -> None:
        """Ordinary training on skeletons and on abstracts without a secret word, where every arm begins."""
        stream = PublicStream(
            self.plan, SkeletonBatches(self.texts("slot").skeletons, self.collator()), batch_size=64, seed=1
        )
        optimizer = torch.optim.AdamW(self.start.parameters(), lr=2e-3, weight_decay=0.0)
        trainable = dict(self.start.named_parameters())
        for round in range(rounds):
            for name, gradient in stream.gradients(self.start, self.loss, trainable, round=round).items():
                trainable[name].grad = gradient
            optimizer.step()

    @torch.no_grad()
    def scores(self, model: Any) -> dict[str, float]:
        """Mean loss of the test texts' tokens: of secret words, and elsewhere."""
        collate, total = self.collator(), {True: [0.0, 0], False: [0.0, 0]}
        numbers = np.flatnonzero(self.scored.lengths > 1)
        for begin in range(0, len(numbers), 64):
            part = numbers[begin : begin + 64]
            rows = [{k: v for k, v in self.scored[n].items() if k != "skeleton"} for n in part.tolist()]
            batch = collate(rows, examples=part, round=0)
            in_slot = np.zeros((len(rows), LENGTH), dtype=bool)
            for i, row in enumerate(rows):
                in_slot[i, : len(row["in_slot"])] = row["in_slot"] > 0
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            labels, secret = batch["labels"], torch.from_numpy(in_slot)
            if not self.masked:
                logits, labels, secret = logits[:, :-1], labels[:, 1:], secret[:, 1:]
            losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
            for which in (True, False):
                chosen = (labels.flatten() != -100) & (secret.flatten() == which)
                total[which][0] += float(losses[chosen].sum())
                total[which][1] += int(chosen.sum())
        return {"secret_words": total[True][0] / total[True][1], "elsewhere": total[False][0] / total[False][1]}

    def arm(
        self,
        part: Any,
        *,
        seed: int,
        noise: float = 1.0,
        noise_share: float | None = 0.3,
        weight: float | None = None,
        public_batch: int = BATCH,
        slot_share: float = 1.0,
        rate: float = 1e-3,
    ) -> dict[str, Any]:
        """One training; noise_share=None: without the public stream."""
        begun, model, texts = time.perf_counter(), copy.deepcopy(self.start), self.texts(part)
        collator = self.collator(slot_share)
        private_batches, stream = Batches(texts, collator, torch.device("cpu")), None
        if noise_share is not None:
            stream = PublicStream(
                self.plan, SkeletonBatches(texts.skeletons, collator), batch_size=public_batch, weight=weight,
                noise_share=noise_share, seed=10 + seed,
            )  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / ROUNDS)
        private = PrivateTraining(
            model, optimizer, replace(self.plan, noise_scale=noise), scheduler=schedule, micro_batch=64, public=stream,
            loss=DifferenceLoss(self.loss) if part == "difference" else self.loss, insecure_seed=seed,
        )  # fmt: skip
        for round in private.rounds():
            private_batches.round = round.index
            for micro in round.micro_batches():
                private.accumulate(private_batches.of(micro.examples), micro.real)
            private.step()
        settings = {"part": part, "seed": seed, "noise": noise, "noise_share": noise_share, "weight": weight}
        settings |= {"public_batch": public_batch, "slot_share": slot_share, "rate": rate}
        return settings | self.scores(model) | {"seconds": time.perf_counter() - begun}

    def round_seconds(self, part: str, rounds: int = 8) -> float:
        """The median processor time of a private round of BATCH examples; part "example": without slots."""
        model = copy.deepcopy(self.start)
        graph = graph_of(self.spans)
        plan: Plan = self.plan
        texts: Any = self.texts("slot" if part == "example" else part)
        if part == "example":
            whole = hush.make_plan(
                graph, prior=PRIOR, ceiling=CEILING, batch_size=BATCH, rounds=ROUNDS, slots=Spans.none(graph).slots
            )
            plan, texts = whole, tokenise_slots(self.train, self.tokenizer, whole, Spans.none(graph), max_length=LENGTH)
        private = PrivateTraining(
            model, torch.optim.SGD(model.parameters(), lr=0.0), plan, micro_batch=64, insecure_seed=0,
            loss=DifferenceLoss(self.loss) if part == "difference" else self.loss,
        )  # fmt: skip
        batches, seconds = Batches(texts, self.collator(), torch.device("cpu")), []
        for round in private.rounds():
            begun = time.process_time()  # not the clock: other programs may share the cores
            for micro in round.micro_batches():
                private.accumulate(batches.of(micro.examples, LENGTH), micro.real)
            private.step()
            seconds.append(time.process_time() - begun)
            if len(seconds) > rounds:
                break
        private.close()
        return float(np.median(seconds[1:]))  # the first one plans


def arms(seeds: int) -> list[tuple[str, dict[str, Any]]]:
    """The trainings, the most telling ones first."""
    chosen: list[tuple[str, dict[str, Any]]] = []
    for seed in range(seeds):
        chosen += [("slot", {"seed": seed, "noise_share": share}) for share in (1e-6, 0.3, 1.0)]  # first: stream alone
        chosen += [(part, {"seed": seed, "noise": 0.1}) for part in ("slot", "difference")]
        chosen += [("difference", {"seed": seed})]
    chosen += [("slot", {"seed": 0, "noise_share": None}), ("slot", {"seed": 0, "weight": 1.0})]
    chosen += [("slot", {"seed": 0, "noise_share": 0.1}), ("slot", {"seed": 0, "public_batch": 32})]
    return chosen


def masked_arms(seeds: int) -> list[tuple[str, dict[str, Any]]]:
    """For a masked model: how many of a slot's tokens to mask."""
    kinds = (("slot", 1.0), ("slot", 0.5), ("difference", 1.0))
    return [(part, {"seed": seed, "noise": 0.1, "slot_share": share}) for seed in range(seeds) for part, share in kinds]


def main() -> None:
    """Run all arms and write the results after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("abstracts", type=Path)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument(
        "--speed", action="store_true", help="measure the time of a round only, and add it to the output"
    )
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results/slot_training.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.speed:
        stored = json.loads(options.output.read_text())
        for kind in ("causal", "masked"):
            bench = Bench(options.abstracts, masked=kind == "masked", public_rounds=1)
            stored[kind]["round_seconds"] = {part: bench.round_seconds(part) for part in PARTS}
            print(kind, stored[kind]["round_seconds"], flush=True)
        options.output.write_text(json.dumps(stored, indent=2) + "\n")
        return
    results: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"1 thread of {os.cpu_count()} cores, {platform.machine()}",
        "versions": {"hush": hush.__version__, "torch": torch.__version__},
    }
    for kind in ("causal", "masked"):
        bench = Bench(options.abstracts, masked=kind == "masked")
        found: dict[str, Any] = {
            "examples_with_slots": int(bench.spans.slots.has_slots_N.sum()),
            "examples": TRAIN,
            "secrets": bench.secrets,
            "noise_multiplier": bench.plan.noise_multiplier,
            "parameters": sum(p.numel() for p in bench.start.parameters()),
            "before": bench.scores(bench.start),
            "round_seconds": {part: bench.round_seconds(part) for part in PARTS},
            "arms": [],
        }
        results[kind] = found
        print(kind, {name: value for name, value in found.items() if name != "arms"}, flush=True)
        trainings = masked_arms(options.seeds) if kind == "masked" else arms(options.seeds)
        for part, settings in trainings:
            found["arms"].append(bench.arm(part, **settings))
            print(found["arms"][-1], flush=True)
            options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
