"""Secret words as spans: skeletons alone, skeletons with the private part, no protection, and words left out.

    python -m experiments.secret_spans --abstracts arxiv.parquet --vocabulary vocab.txt \\
        --start experiments/results/secret_words/start.safetensors

Every run is a line of the log, so that the study goes on where it stopped. The promise is 1e-4 -> 0.1 for every word,
at full noise. Learning rates are chosen on validation data, for every arm in the same way.
"""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hush
from experiments.runs import RunLog, interval
from experiments.secret_spans.data import PLACEHOLDER, Part, prepare
from experiments.secret_spans.training import Bench, losses_of, train_in_slots, train_openly
from experiments.secret_words.data import DOCUMENTS, PARTS
from experiments.secret_words.training import Task, new_model
from hush.slots import Slots

PRIOR, CEILING = 1e-4, 0.1
HERE = Path(__file__).parent.parent
GROUPS = 2  # of words; each is left out once


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the study is: of the public part, and of the private part after it."""

    abstracts: int | None
    documents: tuple[int, int]
    batch_size: int
    rounds: int
    private_batch: int
    private_rounds: int
    micro_batch: int
    rates: tuple[float, ...]
    private_rates: tuple[float, ...]
    weights: tuple[float, ...]  # of the public stream beside the private part
    shares: tuple[float, ...]  # of the slots' pieces that are guessed
    seeds: int


SCALES = {
    "smoke": Scale(
        abstracts=300, documents=(5, 8), batch_size=16, rounds=2, private_batch=16, private_rounds=2, micro_batch=16,
        rates=(1e-3,), private_rates=(1e-3,), weights=(1.0,), shares=(1.0,), seeds=1,
    ),
    "small": Scale(
        abstracts=30_000, documents=(20, 40), batch_size=256, rounds=300, private_batch=512, private_rounds=60,
        micro_batch=64, rates=(1e-3, 3e-3), private_rates=(1e-4, 1e-3), weights=(10.0,), shares=(0.5,), seeds=1,
    ),
    "full": Scale(
        abstracts=None, documents=DOCUMENTS, batch_size=2048, rounds=2000, private_batch=16_384, private_rounds=400,
        micro_batch=2176, rates=(1e-3, 3e-3, 1e-2), private_rates=(1e-4, 3e-4, 1e-3), weights=(3.0, 10.0, 30.0),
        shares=(0.15, 0.5, 1.0), seeds=3,
    ),
}  # fmt: skip


def without_group(part: Part, group: int) -> Any:
    """The rows of a part in which every word of a group is masked by the placeholder's piece."""
    rows = part.token_NT.copy()
    rows[(part.secret_NT >= 0) & (part.secret_NT % GROUPS == group)] = 2
    return rows


def plan_of(work: Path, scale: Scale) -> hush.Plan:
    """The plan of the private part: 1e-4 -> 0.1 for every word, at full noise."""
    folder = work / f"plan-{scale.private_batch}-{scale.private_rounds}"
    if not folder.exists():
        made = hush.make_plan(
            hush.Incidence.from_parquet(work / "incidence.parquet"),
            slots=Slots.from_parquet(work / "slots.parquet"),
            prior=PRIOR,
            ceiling=CEILING,
            batch_size=scale.private_batch,
            rounds=scale.private_rounds,
        )
        made.save(folder)
    return hush.Plan.load(folder)


class Study:
    """All runs of one scale, each a line of the log."""

    def __init__(self, work: Path, log: RunLog, scale: Scale, *, vocabulary: int, start: Path) -> None:
        self.work, self.log, self.scale, self.start = work, log, scale, start
        device = "cuda" if torch.cuda.is_available() else "cpu"
        parts = {name: Part.load(work / f"{name}.npz") for name in PARTS}
        self.bench = Bench(parts=parts, vocabulary=vocabulary, device=device, micro_batch=scale.micro_batch)
        self.plan = plan_of(work, scale)
        self.num_secrets = self.plan.incidence.num_secrets

    def new_model(self) -> Any:
        task = Task(rows={}, vocabulary=self.bench.vocabulary, device=self.bench.device, micro_batch=1)
        return new_model(task, self.start)

    def scores(self, model: Any, group: int | None = None) -> dict[str, Any]:
        chosen = None if group is None else np.arange(self.num_secrets) % GROUPS == group
        return {name: losses_of(self.bench, model, name, of_secrets=chosen) for name in PARTS[1:]}

    def open(self, arm: str, rate: float, seed: int, rounds: int, group: int | None = None) -> dict[str, Any] | None:
        """One run without noise: on full texts, on skeletons, or on texts without one group of words."""
        key = {"arm": arm, "rate": rate, "seed": seed, "rounds": rounds, "group": group}

        def work() -> dict[str, Any]:
            return self.scores(self.open_model(arm, rate, seed, rounds, group), group)

        return self.log.run(key, work)

    def open_model(self, arm: str, rate: float, seed: int, rounds: int, group: int | None = None) -> Any:
        train = self.bench.parts["train"]
        rows = {"skeletons": lambda: train.skeleton_NT, "no protection": lambda: train.token_NT}
        chosen = rows[arm]() if group is None else without_group(train, group)
        return train_openly(
            self.bench, self.new_model(), chosen, batch_size=self.scale.batch_size, rounds=rounds, rate=rate, seed=seed
        )

    def private(self, first: Path, *, rate: float, weight: float, share: float, seed: int) -> dict[str, Any] | None:
        """The private part after skeletons, from the model that was kept."""
        key = {"arm": "private part", "rate": rate, "weight": weight, "share": share, "seed": seed}

        def work() -> dict[str, Any]:
            model = self.new_model()
            model.load_state_dict(torch.load(first, map_location=self.bench.device, weights_only=True))
            trained = train_in_slots(
                self.bench, model, self.plan, public_batch=self.scale.batch_size, public_weight=weight, share=share,
                rate=rate, seed=seed,
            )  # fmt: skip
            return {**self.scores(trained), "noise_multiplier": self.plan.noise_multiplier}

        return self.log.run(key, work)

    def skeleton_model(self, rate: float, seed: int) -> Path:
        """The model after the public part, kept beside the data."""
        path = self.work / f"skeletons-{rate:g}-{seed}.pt"
        if not path.exists():
            torch.save(self.open_model("skeletons", rate, seed, self.scale.rounds).state_dict(), path)
        return path

    def run(self) -> list[dict[str, Any]]:
        """Tune on validation data, then every arm and seed; rows of the table."""
        scale = self.scale
        self.log.run({"arm": "before"}, lambda: self.scores(self.new_model()))
        best = {
            arm: _best([(rate, self.open(arm, rate, 0, scale.rounds)) for rate in scale.rates], "elsewhere")
            for arm in ("no protection", "skeletons")
        }
        settings = [(r, w, s) for r in scale.private_rates for w in scale.weights for s in scale.shares]
        first = self.skeleton_model(best["skeletons"], 0)
        tried = [(each, self.private(first, rate=each[0], weight=each[1], share=each[2], seed=0)) for each in settings]
        rate, weight, share = _best(tried, "secret pieces")
        for seed in range(scale.seeds):
            for arm, chosen in best.items():
                self.open(arm, chosen, seed, scale.rounds)
            self.open("skeletons", best["skeletons"], seed, scale.rounds + scale.private_rounds)
            for group in range(GROUPS):
                self.open("no protection", best["no protection"], seed, scale.rounds, group)
            self.private(self.skeleton_model(best["skeletons"], seed), rate=rate, weight=weight, share=share, seed=seed)
        return self._table(best, {"rate": rate, "weight": weight, "share": share})

    def _table(self, best: dict[str, float], private: dict[str, float]) -> list[dict[str, Any]]:
        longer, rounds = self.scale.rounds + self.scale.private_rounds, self.scale.rounds
        arms: dict[str, list[dict[str, Any]]] = {
            "before training": [{"arm": "before"}],
            **{
                name: [
                    {"arm": arm, "rate": best[arm], "seed": seed, "rounds": lasting, "group": None}
                    for seed in range(self.scale.seeds)
                ]
                for name, arm, lasting in (
                    ("no protection", "no protection", rounds),
                    ("skeletons alone", "skeletons", rounds),
                    ("skeletons alone, longer", "skeletons", longer),
                )
            },
            "skeletons and private part": [
                {"arm": "private part", **private, "seed": seed} for seed in range(self.scale.seeds)
            ],
            "words left out": [
                {"arm": "no protection", "rate": best["no protection"], "seed": seed, "rounds": rounds, "group": group}
                for seed in range(self.scale.seeds)
                for group in range(GROUPS)
            ],
        }
        rows = []
        for name, keys in arms.items():
            outcomes = [outcome for key in keys if (outcome := self.log.outcome(key)) is not None]
            row: dict[str, Any] = {"arm": name, "runs": len(outcomes)}
            for where in ("secret pieces", "whole words", "elsewhere") if outcomes else ():
                row[where] = interval([outcome["test"][where] for outcome in outcomes])
            rows.append(row)
        return rows


def _best(tried: list[tuple[Any, dict[str, Any] | None]], where: str) -> Any:
    """The setting with the least validation loss; of the whole run if it is about the secret pieces."""
    done = [(setting, outcome["validation"]) for setting, outcome in tried if outcome is not None]
    if not done:
        raise SystemExit("no run of this arm has ended; give it more time")
    if where == "elsewhere":
        return min(done, key=lambda each: each[1]["elsewhere"])[0]
    least = min(each[1]["elsewhere"] for each in done)
    kept = [each for each in done if each[1]["elsewhere"] <= least + 0.01]  # what is public must not pay
    return min(kept, key=lambda each: each[1][where])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--abstracts", type=Path, required=True, help="Parquet table with a column abstract")
    parser.add_argument("--vocabulary", type=Path, required=True, help="BERT's uncased word pieces, one a line")
    parser.add_argument("--start", type=Path, required=True, help="a BERT-Tiny to start from (safetensors)")
    parser.add_argument("--scale", choices=tuple(SCALES), default="small")
    parser.add_argument("--work", type=Path, help="prepared data and plans; default: build/secret-spans/SCALE")
    parser.add_argument("--output", type=Path, help="log and table; default: results/secret_spans at full scale")
    parser.add_argument("--minutes", type=float, help="begin no run after so many minutes")
    args = parser.parse_args()
    scale, work = SCALES[args.scale], args.work or HERE.parent / "build" / "secret-spans" / args.scale
    output = args.output or (HERE / "results" / "secret_spans" if args.scale == "full" else work / "results")
    words = args.vocabulary.read_text().splitlines()
    if words[2] != PLACEHOLDER:
        parser.error(f"piece 2 of the vocabulary is not {PLACEHOLDER}; pass BERT's uncased vocabulary")
    prepare(args.abstracts, args.vocabulary, work, limit=scale.abstracts, documents=scale.documents)
    log = RunLog(output / "runs.jsonl", minutes=args.minutes)
    rows = Study(work, log, scale, vocabulary=len(words), start=args.start).run()
    (output / "summary.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    main()
