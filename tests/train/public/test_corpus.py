"""A metric that a recipe asks for: of what is public of the data, or of a corpus that is stated to be public."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import hush
from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.run.sections import SmallModel
from hush.run.stage_train import base_model
from hush.train.fit import Fitted, Stopped, fit
from hush.train.pretrained import load_pretrained
from hush.train.public.corpus import tokenised_sample
from hush.train.settings import MetricSettings, Recipe, Runtime

TEXTS = [f"text {number} of a few, {'and so on ' * (number % 3)}" for number in range(12)]
SECRET = 4


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_model(tmp_path_factory.mktemp("base"), SmallModel(layers=1, width=16, heads=2, length=48))


def run(base: Path, folder: Path, name: str, stop_after: int | None = None, **metric: Any) -> Fitted | Stopped:
    (folder / "data.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    incidence = hush.Incidence.from_pairs([SECRET], [0], num_examples=len(TEXTS), num_secrets=1)
    plan = hush.make_plan(incidence, batch_size=4.0, rounds=5, prior=1e-3, ceiling=0.2)
    rounds = iter(range(100))
    return fit(
        plan,
        Recipe(model=str(base), metric=MetricSettings(count=6, every=2, **metric)),
        read_corpus(folder / "data.txt"),
        key=None,
        unchecked_data=True,
        insecure_seed=1,
        output=folder / name,
        runtime=Runtime(device="cpu", micro_batch=3),
        stop=None if stop_after is None else lambda: next(rounds) + 1 == stop_after,
    )


@pytest.mark.parametrize("of_corpus", [False, True])
def test_a_run_with_a_metric_resumes_bit_for_bit(base: Path, tmp_path: Path, of_corpus: bool) -> None:
    metric: dict[str, Any] = {}
    if of_corpus:
        (tmp_path / "books.txt").write_text("".join(f"a line of book {n}\n" for n in range(9)))
        metric = {"corpus": str(tmp_path / "books.txt")}
    whole = run(base, tmp_path, "whole", **metric)
    assert isinstance(run(base, tmp_path, "parts", stop_after=3, **metric), Stopped)
    parts = run(base, tmp_path, "parts", **metric)
    plain = run(base, tmp_path, "plain", exponent=0.0, **metric)
    models = []
    for done in (whole, parts, plain):
        assert isinstance(done, Fitted)
        models.append(load_file(done.release / "model" / "model.safetensors"))
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())
    assert any(not torch.equal(value, models[2][name]) for name, value in models[0].items())


def test_a_corpus_with_the_text_of_an_example_with_a_secret_is_refused(base: Path, tmp_path: Path) -> None:
    (tmp_path / "books.txt").write_text(f"a line of a book\n{TEXTS[SECRET]}\n")
    with pytest.raises(InvalidInput, match="1 of the examples with a secret are also in the corpus") as caught:
        run(base, tmp_path, "run", corpus=str(tmp_path / "books.txt"))
    assert "text 4" not in str(caught.value)
    (tmp_path / "books.txt").write_text(f"a line of a book\n{TEXTS[SECRET + 1]}\n")
    assert isinstance(run(base, tmp_path, "run", corpus=str(tmp_path / "books.txt")), Fitted)


def test_a_sample_is_spread_over_the_corpus(base: Path, tmp_path: Path) -> None:
    (tmp_path / "books.txt").write_text("".join(f"{n:03}\n" for n in range(100)))
    pretrained = load_pretrained(str(base))
    for most, wanted in ((100, range(100)), (1000, range(100)), (10, range(0, 100, 10)), (30, range(0, 100, 4))):
        sample = tokenised_sample(read_corpus(tmp_path / "books.txt"), pretrained, most=most)
        texts = [pretrained.tokenizer.decode(sample[row]["input_ids"])[:3] for row in range(len(sample))]
        assert np.array_equal([int(text) for text in texts], list(wanted))
