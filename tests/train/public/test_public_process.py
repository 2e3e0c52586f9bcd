"""The public part in a process of its own: what that process gets, and that kills change nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hush
from hush.data import read_corpus
from hush.errors import HushError, InvalidInput
from hush.keys import DataKey
from hush.plan.make import make_plan_holding_out, public_examples
from hush.run.sections import SmallModel
from hush.run.stage_train import base_model
from hush.train import fit
from hush.train.checkpoints import Checkpoints
from hush.train.language_models import TokenizedTexts
from hush.train.public import process
from hush.train.public.first import PublicOutcome
from hush.train.public.process import PublicJob, learn_in_process
from hush.train.public.split import split_public
from hush.train.scores import LOSS_BEFORE, StageLosses
from hush.train.settings import PublicFirst, Recipe, Runtime

MARKER = "qx-7401-marker"
HOLDERS = {0: [3, 17, 30], 1: [5, 41]}
EXAMPLES, LENGTH = 150, 32
WORDS = ["the", "weather", "in", "town", "was", "fine", "wet", "cold", "again", "today"]
FIRST = PublicFirst(learning_rate=3e-3, batch=8, epochs=40, patience=30)


def some_texts() -> list[str]:
    rng = np.random.default_rng(0)
    notes = [" ".join(rng.choice(WORDS, rng.integers(3, 7))) for _ in range(EXAMPLES)]
    for secret, examples in HOLDERS.items():
        for example in examples:
            notes[example] = f"{MARKER}{secret} {notes[example]}"
    return notes


@dataclass(frozen=True, kw_only=True)
class Desk:
    """An owner's model, data, key and plan."""

    root: Path
    plan: hush.Plan
    key: DataKey

    @property
    def model(self) -> str:
        return str(base_model(self.root, SmallModel(layers=1, width=16, heads=2, length=LENGTH)))

    @property
    def data(self) -> Path:
        return self.root / "data.jsonl"

    def job(self, **more: Any) -> PublicJob:
        recipe = Recipe(model=self.model, public_first=FIRST, **more)
        return PublicJob(recipe=recipe, runtime=Runtime(), rules=(), device="cpu")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    root = tmp_path_factory.mktemp("desk")
    (root / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some_texts()))
    pairs = [(example, secret) for secret, examples in HOLDERS.items() for example in examples]
    incidence = hush.Incidence.from_pairs(*zip(*pairs, strict=True), num_examples=EXAMPLES, num_secrets=2)
    key = DataKey.create(root / "my.key")
    free = np.flatnonzero(incidence.secrets_per_example == 0)
    plan = make_plan_holding_out(
        incidence,
        free[:20],
        prior=1e-2,
        ceiling=0.5,
        batch_size=3,
        rounds=4,
        draw="secrets",
        data_fingerprint=key.fingerprint_rows(some_texts()),
    )
    return Desk(root=root, plan=plan, key=key)


ROWS = TokenizedTexts([np.frombuffer(text.encode()[:LENGTH], dtype=np.uint8) % 64 + 2 for text in some_texts()])
SPLIT = split_public(np.arange(45, EXAMPLES), np.arange(42, 45))


def best_weights(run: Path) -> dict[str, torch.Tensor]:
    state = Checkpoints(run / "owner" / "public-first" / "training" / "checkpoints").newest()
    assert state is not None
    return state["best_weights"]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_stopped_and_killed_it_ends_as_if_it_had_not_been(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = learn_in_process(tmp_path / "whole", desk.job(), ROWS, SPLIT)
    run = tmp_path / "run"
    assert learn_in_process(run, desk.job(), ROWS, SPLIT, stop=lambda: True) is None  # stopped

    started, popen = list[subprocess.Popen[str]](), subprocess.Popen

    def noted(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(popen(*arguments, **options))
        return started[-1]

    with monkeypatch.context() as patch:
        patch.setattr(process.subprocess, "Popen", noted)
        with pytest.raises(HushError, match="ended with exit code -9"):
            learn_in_process(run, desk.job(), ROWS, SPLIT, progress=lambda _: started[-1].kill())

    parent = subprocess.Popen([sys.executable, __file__, str(run), str(desk.root)], start_new_session=True)
    training = run / "owner" / "public-first" / "training"
    begun = Checkpoints(training / "checkpoints").newest()
    for _ in range(600):
        time.sleep(0.1)
        now = Checkpoints(training / "checkpoints").newest()
        if now is not None and (begun is None or now["round"] > begun["round"]):
            break
    os.kill(parent.pid, signal.SIGKILL)  # its child learns of it from its standard input
    parent.wait()

    assert learn_in_process(run, desk.job(), ROWS, SPLIT) == whole
    assert same(best_weights(run), best_weights(tmp_path / "whole"))
    assert not (run / "owner" / "public-first" / "inputs").exists()


def test_what_the_process_refuses_is_raised_here(desk: Desk, tmp_path: Path) -> None:
    recipe = Recipe(model=str(tmp_path / "no-model"), public_first=FIRST)
    job = PublicJob(recipe=recipe, runtime=Runtime(), rules=(), device="cpu")
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        learn_in_process(tmp_path, job, ROWS, SPLIT)


def test_a_run_learns_what_is_public_first_and_says_so(desk: Desk, tmp_path: Path) -> None:
    inputs, seen = tmp_path / "run" / "owner" / "public-first", list[str]()
    public = {*public_examples(desk.plan).tolist(), *range(EXAMPLES)} - {e for held in HOLDERS.values() for e in held}
    hidden = tmp_path / "elsewhere.jsonl"

    def look(_: object) -> None:
        """While the process works: everything that it was given, and the data are not where they were."""
        if seen:
            return
        desk.data.rename(hidden)
        seen.extend(path.name for path in inputs.rglob("*") if path.is_file())
        assert not [path for path in inputs.rglob("*") if path.is_file() and MARKER.encode() in path.read_bytes()]
        with np.load(inputs / "inputs" / "tokens.npz") as arrays:
            numbers = np.concatenate([arrays[name] for name in ("train", "validation", "held_out")])
            assert {*numbers.tolist()} <= public
            texts = bytes(arrays["input_ids"].clip(0, 255).astype(np.uint8).tolist())
            tokens = tokenised_marker(desk)
            assert tokens not in texts
            assert tokenised(desk, "weather") in texts
        job = (inputs / "inputs" / "job.json").read_text()
        assert str(desk.data) not in job
        assert "data" not in json.loads(job)

    fitted = fit.fit(
        desk.plan,
        Recipe(model=desk.model, public_first=FIRST),
        read_corpus(str(desk.data)),
        key=desk.key,
        output=tmp_path / "run",
        public_progress=look,
    )
    hidden.rename(desk.data)
    assert {"job.json", "tokens.npz"} <= {*seen}
    assert isinstance(fitted, fit.Fitted)
    free = public_examples(desk.plan).size
    assert fitted.certificate.public_part == {"examples": free, "skeletons": 0}
    assert f"{free} examples without a secret were learnt first" in fitted.certificate.to_markdown()
    verification = hush.verify(fitted.release)
    assert verification.certificate == fitted.certificate
    rows = [json.loads(line) for line in (fitted.release / "evaluations.jsonl").read_text().splitlines()]
    assert fitted.losses == StageLosses.of(rows)
    assert fitted.losses is not None
    assert fitted.losses.public is not None
    assert rows[0][LOSS_BEFORE] == fitted.losses.before > 1.2 * fitted.losses.public
    outcome = PublicOutcome.load(inputs / "training" / "outcome.json")
    assert outcome.after == pytest.approx(fitted.losses.public, rel=2e-3)
    # Without its public part the run cannot be resumed: its certificate would not name it.
    (fitted.owner / "public-first").rename(tmp_path / "lost")
    with pytest.raises(InvalidInput, match="public part"):
        fit.fit(
            desk.plan,
            Recipe(model=desk.model, public_first=FIRST),
            read_corpus(str(desk.data)),
            key=desk.key,
            output=tmp_path / "run",
        )


def test_a_run_that_began_without_it_goes_on_without_it(desk: Desk, tmp_path: Path) -> None:
    """Such as one of version 0.1.0, whose recipe says nothing of it."""
    recipe, corpus = Recipe(model=desk.model), read_corpus(str(desk.data))
    begun = Recipe(model=desk.model, public_first=False)
    stopped = fit.fit(desk.plan, begun, corpus, key=desk.key, output=tmp_path, stop=lambda: True)
    assert isinstance(stopped, fit.Stopped)
    stored = tmp_path / "owner" / "recipe.json"
    record = json.loads(stored.read_text())
    del record["public_first"]
    stored.write_text(json.dumps(record))
    fitted = fit.fit(desk.plan, recipe, corpus, key=desk.key, output=tmp_path)
    assert isinstance(fitted, fit.Fitted)
    assert fitted.certificate.public_part is None
    assert fitted.losses is not None
    assert fitted.losses.public is None


def tokenised(desk: Desk, text: str) -> bytes:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(desk.model)
    return bytes(np.asarray(tokenizer(text)["input_ids"]).clip(0, 255).astype(np.uint8).tolist())


def tokenised_marker(desk: Desk) -> bytes:
    return tokenised(desk, MARKER)


if __name__ == "__main__":
    kept = Desk(root=Path(sys.argv[2]), plan=None, key=None)  # pyright: ignore[reportArgumentType]
    learn_in_process(Path(sys.argv[1]), kept.job(), ROWS, SPLIT)
