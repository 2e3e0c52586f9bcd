"""Twenty settings: is ``hush run`` ever worse than dropping or redacting, and is it better where it said so?

    python benchmarks/never_worse.py --texts textbooks.jsonl.gz --code FOLDER --work FOLDER [--only texts-whole-20]

Each setting (``never_worse_settings.py``) is run as a new user would: the template of ``hush init`` with the data and
the rules filled in, and nothing else. Beside it, from the same model, by the trainer of the public part with its
defaults: dropping the examples with a secret, redacting them, and no protection. With whole examples as secrets
nothing of them may be shown, so redacting leaves what dropping leaves. Where the run itself learnt first what dropping
or redacting leaves, that model is taken, so that the difference is what the private rounds changed.

Losses are in nats per byte, mean over documents that no training reads: on ordinary content, and on content like the
secrets'.
A finished setting is not repeated; each prints one line.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from never_worse_settings import Document, Setting, all_settings, code_documents, make_data, text_documents

from hush.plan import Plan
from hush.run import Outcome, run_pipeline
from hush.run.config import Config, load_config, template
from hush.run.folder import RunPaths
from hush.run.stage_train import base_model_path
from hush.slots import spans_in
from hush.train.pretrained import Pretrained, load_for_training
from hush.train.public.first import split_public, train_public
from hush.train.public.process import load_public_weights, was_learnt_first
from hush.train.settings import Recipe, Runtime

MARGIN = 0.005  # relative: how much worse hush may be on ordinary content
MANY = 5  # times as many documents of each subject as a setting needs are read
FEWEST = 40  # examples, below which ordinary training leaves the model as it is
SECOND = {"texts": "principles-finance", "code": "physics"}


class Scale(NamedTuple):
    """How much a setting does. plan: what replaces the template's auto, only to be quick."""

    documents: int
    held_out: int
    plan: dict[str, Any]
    epochs: float | None


SCALES = {
    "smoke": Scale(documents=140, held_out=20, plan={"batch_size": 4, "rounds": 3, "keep": 1.0}, epochs=1.0),
    "full": Scale(documents=400, held_out=150, plan={}, epochs=None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Mean losses of a model, in nats per byte."""

    ordinary: float
    like: float


# ---- one setting ----


def run_setting(setting: Setting, documents: list[Document], work: Path, scale: Scale) -> dict[str, Any]:
    """Run one setting in its folder, and say what every way reached."""
    folder = work / setting.name
    make_data(setting, documents, folder, count=scale.documents, held_out=scale.held_out)
    config = load_config(_write_config(folder, scale))
    begin = time.perf_counter()
    outcome = run_pipeline(config)
    seconds = time.perf_counter() - begin
    trained = RunPaths(outcome.folder).trainings / outcome.outputs["train"]["training"]
    judge = _Judge(folder)
    before = judge(_begun(config))
    plan = Plan.load(RunPaths(outcome.folder).plan)
    texts = [json.loads(line)["text"] for line in (folder / "data.jsonl").read_text(encoding="utf-8").splitlines()]
    free = np.flatnonzero(plan.incidence.secrets_per_example == 0)
    ways = {"before": before, "no protection": _ordinary(config, texts, np.arange(len(texts)), judge, before)}
    first = judge(_learnt_first(config, outcome, trained)) if was_learnt_first(trained) else before
    if setting.scope == "whole":
        ways |= {"dropping": first, "redacting": first}
    else:
        ways |= {"dropping": _ordinary(config, texts, free, judge, before), "redacting": first}
    ways["hush"] = judge(_released(config, trained))
    outlook = outcome.outputs["plan"]["outlook"]
    return {
        "setting": setting.name,
        "documents": len(texts),
        "with_a_secret": len(texts) - int(free.size),
        "secrets": plan.certificate.num_found,
        "noise_multiplier": plan.noise_multiplier,
        "batch_size": plan.batch_size,
        "rounds": plan.rounds,
        "rounds_trained": _rounds_trained(trained),
        "signal": outlook["signal"],
        "verdict": None if outlook["prediction"] is None else outlook["prediction"]["verdict"],
        "hopeless": outlook["hopeless"],
        "losses": {way: asdict(losses) for way, losses in ways.items()},
        "seconds": round(seconds, 1),
    } | _claims(ways, outlook)


def _claims(ways: dict[str, Judged], outlook: dict[str, Any]) -> dict[str, Any]:
    """What hush lost on ordinary content, relative to the better of the others; what it gained on the other content."""
    others = [ways["dropping"], ways["redacting"]]
    worse = ways["hush"].ordinary / min(other.ordinary for other in others) - 1
    gain = min(other.like for other in others) - ways["hush"].like
    promised = outlook["prediction"] is not None and outlook["prediction"]["verdict"] == "promising"
    return {
        "worse_on_ordinary": round(worse, 5),
        "never_worse": bool(worse <= MARGIN),
        "gain_on_like": round(gain, 5),
        "promised": promised,
        "kept_its_word": bool(gain > 0) if promised else None,
    }


def _rounds_trained(trained: Path) -> int:
    certificate = json.loads((trained / "release" / "certificate.json").read_text(encoding="utf-8"))
    return int(certificate.get("private_rounds", certificate["rounds"]))


def _write_config(folder: Path, scale: Scale) -> Path:
    content = yaml.safe_load(template("text"))
    content["data"]["source"] = "data.jsonl"
    content["rules"] = json.loads((folder / "rules.json").read_text(encoding="utf-8"))
    del content["audit"]  # it attacks the model, and changes nothing about it
    content["report"] = {"frontier": False, "methods": False}  # nor do these tables
    content["plan"] |= scale.plan
    if scale.epochs is not None:
        content["training"]["public_first"] = {"epochs": scale.epochs, "learning_rate": 1e-3}
    path = folder / "hush.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


# ---- models ----


def _recipe(config: Config) -> tuple[Recipe, Runtime]:
    if config.model.small is None or config.output is None:
        raise SystemExit("the template names a small model and an output")
    base = base_model_path(RunPaths(config.output).owner / "base-model", config.model.small)
    return config.training.recipe(str(base)), config.training.runtime


def _begun(config: Config, rules: tuple[str, ...] = ()) -> Pretrained:
    recipe, runtime = _recipe(config)
    torch.manual_seed(0)
    return load_for_training(recipe, runtime, torch.device("cpu"), rules)


def _learnt_first(config: Config, outcome: Outcome, trained: Path) -> Pretrained:
    spans = spans_in(RunPaths(outcome.folder).scan)
    model = _begun(config, () if spans is None else spans.slots.rules)
    load_public_weights(trained, model.model)
    return model


def _released(config: Config, trained: Path) -> Pretrained:
    recipe, runtime = _recipe(config)
    return load_for_training(
        recipe.model_copy(update={"model": str(trained / "release" / "model")}), runtime, torch.device("cpu"), ()
    )


def _ordinary(
    config: Config,
    texts: list[str],
    examples: np.ndarray[Any, np.dtype[np.int64]],
    judge: Callable[[Pretrained], Judged],
    before: Judged,
) -> Judged:
    """Ordinary training on these texts: what the public part of a run does."""
    if examples.size < FEWEST:
        return before
    from hush.train.language_models import tokenise
    from hush.train.settings import PublicFirst
    from hush.train.slots.batches import Batches

    model = _begun(config)
    rows = tokenise(texts, model.tokenizer, max_length=model.max_length)
    batches = Batches(rows, model.collator(model.max_length), torch.device("cpu"))
    asked = config.training.public_first
    train_public(
        model.model,
        model.loss,
        lambda chosen, step: batches.of(chosen, round=step),
        split_public(examples.astype(np.int64)),
        settings=asked if isinstance(asked, PublicFirst) else None,
        lengths=rows.lengths,
    )
    return judge(model)


class _Judge:
    """The losses of a model on what a setting is judged on."""

    def __init__(self, folder: Path) -> None:
        content = json.loads((folder / "judged.json").read_text(encoding="utf-8"))
        self._ordinary: list[tuple[str, Any]] = [(text, None) for text in content["ordinary"]]
        self._like: list[tuple[str, Any]] = [(row["text"], row["spans"]) for row in content["like"]]

    def __call__(self, model: Pretrained) -> Judged:
        return Judged(ordinary=_loss(model, self._ordinary), like=_loss(model, self._like))


@torch.no_grad()
def _loss(model: Pretrained, texts: list[tuple[str, Any]]) -> float:
    """The mean over texts of the mean loss of the bytes in these places, or of all but the first."""
    model.model.eval()
    found: list[torch.Tensor] = []
    for text, spans in texts:
        encoded = model.tokenizer(text, truncation=True, max_length=model.max_length, return_offsets_mapping=True)
        ids = torch.tensor([encoded["input_ids"]])
        logits = model.model(input_ids=ids).logits[0, :-1].float()
        losses = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
        begins = np.array([begin for begin, _ in encoded["offset_mapping"]][1:])
        wanted = np.ones(begins.size, dtype=bool)
        if spans is not None:
            wanted = np.logical_or.reduce([(begins >= begin) & (begins < end) for begin, end in spans])
        found.append(losses[torch.from_numpy(wanted)].double().mean())
    model.model.train()
    return float(torch.stack(found).mean())


# ---- all of them ----


def line_of(result: dict[str, Any]) -> str:
    """One line for people."""
    losses = result["losses"]
    shown = "  ".join(f"{way} {row['ordinary']:.3f}/{row['like']:.3f}" for way, row in losses.items())
    said = f"{result['verdict']}, {result['rounds_trained']} rounds, noise {result['noise_multiplier']:.2f}"
    kept = {None: "", True: ", as it said", False: ", AGAINST WHAT IT SAID"}[result["kept_its_word"]]
    verdict = "" if result["never_worse"] else "  WORSE"
    changed = f"ordinary {100 * result['worse_on_ordinary']:+.2f} %{verdict}, like {result['gain_on_like']:+.3f}{kept}"
    return f"{result['setting']:16} {said}; {shown}; {changed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--texts", type=Path, required=True, help="a .jsonl.gz file with id and text, or a folder of .md"
    )
    parser.add_argument("--code", type=Path, required=True, help="a folder of Python files")
    parser.add_argument("--second-texts", default=SECOND["texts"], help="what ids of the second subject contain")
    parser.add_argument("--second-code", default=SECOND["code"], help="what paths of the second subject contain")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--scale", choices=SCALES, default="full")
    parser.add_argument("--only", nargs="*", help="names of settings, such as texts-whole-20")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    scale = SCALES[asked.scale]
    most = MANY * (scale.documents + scale.held_out)
    documents = {
        "texts": text_documents(asked.texts, asked.second_texts, most=most),
        "code": code_documents(asked.code, asked.second_code, most=most),
    }
    results: list[dict[str, Any]] = []
    for setting in all_settings():
        if asked.only and setting.name not in asked.only:
            continue
        path = asked.work / f"{setting.name}.json"
        if not path.is_file():
            result = run_setting(setting, documents[setting.corpus], asked.work, scale)
            path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        results.append(json.loads(path.read_text(encoding="utf-8")))
        print(line_of(results[-1]), flush=True)
    worse = [row["setting"] for row in results if not row["never_worse"]]
    broken = [row["setting"] for row in results if row["kept_its_word"] is False]
    idle = [row["setting"] for row in results if row["hopeless"] and row["rounds_trained"]]
    print(
        f"{len(results)} settings; worse: {worse}; said so and was not better: {broken}; hopeless, but trained: {idle}"
    )
    if asked.output is not None:
        record = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread",
            "torch": torch.__version__,
            "scale": asked.scale,
            "worse": worse,
            "against_what_it_said": broken,
            "settings": results,
        }
        asked.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
