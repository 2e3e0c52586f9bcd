"""A run guesses its slots before it plans, with the model that it starts from; the figures stay with the owner."""

import stat
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from test_plan_slots import scanned

from hush.errors import InvalidInput
from hush.plan import Plan
from hush.run.stage_plan import PlanStage

sys.path.append(str(Path(__file__).parents[1] / "audit"))
memorising: Any = import_module("memorising")

WORDS = 16
SECTIONS: dict[str, Any] = {
    "promises": {"prior": 0.3, "ceiling": 0.9},
    "rules": [{"name": "keys", "find": "words", "documents": [2, 2], "hides": "span"}],
    "training": {"max_length": 48},
    "model": {"small": None},
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts with keys that nothing around them gives away, and a model that has read them somewhere."""
    folder = tmp_path_factory.mktemp("desk")
    texts, _ = memorising.planted(WORDS, seed=4)
    tokenizer = memorising.byte_tokenizer()
    rows = [[memorising.END, *tokenizer(text)["input_ids"]] for text in texts]
    model = memorising.trained_plainly(rows, steps=150)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "keys.txt").write_text("\n".join([*texts, *texts, *["nothing to see here"] * 20]) + "\n")
    return folder


def with_model(folder: Path, **more: Any) -> dict[str, Any]:
    return (
        SECTIONS
        | {"data": {"source": str(folder / "keys.txt")}, "model": {"name": str(folder / "model"), "small": None}}
        | more
    )


def test_a_prior_that_the_base_model_beats_is_refused_before_training(desk: Path, tmp_path: Path) -> None:
    job = scanned(tmp_path, **with_model(desk))
    with pytest.raises(InvalidInput, match=r"the guesser 'language model' names 16 of 16 secrets") as refused:
        PlanStage().run(job)
    texts, begins = memorising.planted(WORDS, seed=4)
    assert not any(
        text[begin : begin + memorising.SECRET] in str(refused.value) for text, begin in zip(texts, begins, strict=True)
    )
    assert not (job.paths.plan / "plan.json").exists()


def test_a_model_of_random_weights_guesses_nothing_and_the_others_do_not_refuse(desk: Path, tmp_path: Path) -> None:
    small = {"model": {"small": {"layers": 1, "width": 8, "heads": 1, "length": 48}}}
    job = scanned(tmp_path, **with_model(desk) | small)
    PlanStage().run(job)
    assert Plan.load(job.paths.plan).slots is not None


def test_what_was_measured_is_kept_for_the_owner_and_not_measured_again(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = {"promises": {"prior": 0.97, "ceiling": 0.99}}
    job = scanned(tmp_path, **with_model(desk, **stated))
    PlanStage().run(job)
    kept = job.paths.scan / "owner" / "prior.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "language model" in kept.read_text()

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("measured again")

    monkeypatch.setattr("hush.audit.prior.measure_priors", never)
    PlanStage().run(job)
    other = scanned(tmp_path / "other", **with_model(desk, **stated) | {"promises": {"prior": 0.96, "ceiling": 0.99}})
    with pytest.raises(AssertionError, match="measured again"):
        PlanStage().run(other)
