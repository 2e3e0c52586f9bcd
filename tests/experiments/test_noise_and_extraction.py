"""The study of noise against extraction: its command end to end at smoke scale, and the readings it rests on."""

import csv
import gzip
import json
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hush.errors import InvalidInput

ROOT = Path(__file__).parents[2]
MODULES = (
    "__main__",
    "corpus",
    "kinds",
    "measures",
    "pretraining",
    "scales",
    "study",
    "summary",
    "tables",
    "vocabulary",
)
RESULTS = ROOT / "experiments" / "results" / "noise_and_extraction"
FIGURES = {"extraction_loss.svg", "extraction_memorised.svg", "extraction_lengths.svg"}

Modules = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def module() -> Modules:
    """Modules of the study by name; experiments are run from the root and are no part of the installed package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return {name: import_module(f"experiments.noise_and_extraction.{name}") for name in MODULES}.__getitem__


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, module: Modules) -> Path:
    """A folder with both sources, of made-up sentences, and a BPE tokenizer trained on them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    folder, generator = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    words = ["".join(generator.choice(list("abcdefgh"), size)) for size in generator.integers(1, 7, 300)]
    lines = [" ".join(generator.choice(words, 60)) for _ in range(40)]
    for place, name in enumerate(module("corpus").SOURCES):
        with gzip.open(folder / name, "wt") as file:
            file.writelines(json.dumps({"text": line}) + "\n" for line in lines[place::2])
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=350, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def prepared(texts: Path, module: Modules) -> Any:
    return module("corpus").prepare(texts, texts / "tokenizer.json", module("scales").SCALES["smoke"])


def command(module: Modules, monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr(sys, "argv", ["noise_and_extraction", "--scale", "smoke", "--device", "cpu", *map(str, words)])
    module("__main__").main()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def runs(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


def test_one_command_makes_runs_tables_and_figures_and_goes_on_where_it_stopped(
    texts: Path, tmp_path: Path, module: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale, results = module("scales").SCALES["smoke"], tmp_path / "results"
    places = ("--prepared", tmp_path / "data.npz", "--results", results)
    given = (*places, "--data", texts, "--tokenizer", texts / "tokenizer.json")
    command(module, monkeypatch, *given)

    done = runs(results)
    each = 1 + len(scale.noise_multipliers)  # a reference and every multiplier
    assert Counter(run["key"]["size"] for run in done) == {size.name: each for size in scale.sizes}
    assert all(np.isfinite(run["outcome"]["validation_loss"]) and run["hardware"] and run["commit"] for run in done)
    assert {path.name for path in results.glob("*.svg")} == FIGURES
    assert len(rows(results / "losses.csv")) == len(done)
    cells = len(scale.prompts) * len(scale.continuations) * (1 + len(scale.repeated))
    fractions = rows(results / "fractions.csv")
    assert len(fractions) == len(scale.sizes) * len(scale.noise_multipliers) * cells
    assert {"size", "noise_multiplier", "prompt", "continuation", "repetitions", "memorised"} <= set(fractions[0])
    kinds = rows(results / "remaining.csv")
    assert sum(int(row["sequences"]) for row in kinds) == 6 * sum(sequences for _, sequences in scale.repeated)

    before = (results / "runs.jsonl").read_text()
    command(module, monkeypatch, "run", *places)
    assert (results / "runs.jsonl").read_text() == before

    lost, *others = before.splitlines()
    (results / "runs.jsonl").write_text("\n".join(others) + "\n")
    command(module, monkeypatch, "run", *places)
    again, first = runs(results)[-1], json.loads(lost)
    assert again["key"] == first["key"]
    assert again["outcome"]["validation_loss"] == first["outcome"]["validation_loss"]
    assert again["outcome"]["matched"] == first["outcome"]["matched"]


def test_without_being_told_otherwise_it_leaves_the_committed_results_alone(
    texts: Path, tmp_path: Path, module: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module("__main__"), "HERE", tmp_path / "experiments")
    command(module, monkeypatch, "--data", texts, "--tokenizer", texts / "tokenizer.json", "--minutes", -1)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {"build/noise-and-extraction/smoke.npz", "build/noise-and-extraction/smoke/about.json"} <= made
    assert not (tmp_path / "experiments").exists()


def test_a_file_that_was_not_finished_is_not_taken_for_prepared(
    prepared: Any, tmp_path: Path, module: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(file: Any, **_: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    path = tmp_path / "data.npz"
    with monkeypatch.context() as patch:
        patch.setattr(np, "savez_compressed", stops)
        with pytest.raises(KeyboardInterrupt):
            prepared.save(path)
    assert not path.exists()
    prepared.save(path)
    np.testing.assert_array_equal(module("corpus").Prepared.load(path).base_RT, prepared.base_RT)


def test_a_failed_run_is_logged_and_the_others_go_on(
    prepared: Any, tmp_path: Path, module: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretraining, study = module("pretraining").Pretraining, module("study")
    scale = module("scales").SCALES["smoke"]
    train = pretraining.train

    def fails_without_noise(self: Any, *arguments: Any, noise_multiplier: float, seed: int) -> Any:
        if noise_multiplier == 0:
            raise RuntimeError("no memory")
        return train(self, *arguments, noise_multiplier=noise_multiplier, seed=seed)

    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "train", fails_without_noise)
        study.run(prepared, scale, tmp_path, device="cpu", compile=False, sizes=["b"])
    assert [("failed" in run, run["key"]["noise_multiplier"]) for run in runs(tmp_path)] == [
        (True, 0),
        (True, 0),
        (False, 1),
    ]
    assert module("summary").Summary.load(tmp_path).fractions() == []  # no reference, nothing to say of memory
    study.run(prepared, scale, tmp_path, device="cpu", compile=False, sizes=["b"])
    assert [("failed" in run) for run in runs(tmp_path)[3:]] == [False, False]


def test_runs_on_other_rows_are_not_taken_for_its_own(prepared: Any, tmp_path: Path, module: Modules) -> None:
    scale, asked = module("scales").SCALES["smoke"], {"device": "cpu", "compile": False, "sizes": ["a"]}
    module("study").run(prepared, scale, tmp_path, **asked)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    others = replace(prepared, kind_N=prepared.kind_N[::-1], facts={**prepared.facts, "texts": [1, 2]})
    with pytest.raises(InvalidInput, match="other rows"):
        module("study").run(others, scale, tmp_path, **asked)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == kept


def test_an_overfit_model_says_all_it_learnt_and_a_random_one_nothing(module: Modules) -> None:
    scale = replace(module("scales").SCALES["smoke"], vocabulary=64, rounds=100, batch=4)
    size = replace(scale.sizes[-1], layers=2, width=32)
    row_NT = np.random.default_rng(0).integers(0, 64, (4, scale.length)).astype(np.uint16)
    pretraining = module("pretraining").Pretraining(size, scale, device="cpu", compile=False)
    asked = {"prompts": (4, 8), "longest": 4}
    for matched_N in module("measures").matched_tokens(pretraining.model, row_NT, **asked).values():
        assert (matched_N < 4).all()
    pretraining.train(np.tile(row_NT, (100, 1)), noise_multiplier=0.0, seed=0)
    for matched_N in module("measures").matched_tokens(pretraining.model, row_NT, **asked).values():
        assert (matched_N == 4).all()
    assert module("measures").validation_loss(pretraining.model, row_NT) < 1
    # As much noise as this leaves nothing of it.
    pretraining.train(np.tile(row_NT, (100, 1)), noise_multiplier=30.0, seed=0)
    assert module("measures").validation_loss(pretraining.model, row_NT) > 3


def test_planted_rows_come_as_often_as_stated_and_the_reference_sees_none(prepared: Any, module: Modules) -> None:
    scale = module("scales").SCALES["smoke"]
    trained, reference = (
        Counter(row.tobytes() for row in prepared.training_rows(planted=planted)) for planted in (True, False)
    )
    assert trained.total() == reference.total() == scale.rows
    for row, times in zip(prepared.prompted_NT, prepared.repetitions_N, strict=True):
        assert trained[row.tobytes()] == times
        assert reference[row.tobytes()] == 0


def test_the_prepared_file_holds_what_was_prepared(prepared: Any, tmp_path: Path, module: Modules) -> None:
    prepared.save(tmp_path / "data.npz")
    read = module("corpus").Prepared.load(tmp_path / "data.npz")
    for name in ("base_RT", "spare_RT", "validation_RT", "prompted_NT", "repetitions_N"):
        np.testing.assert_array_equal(getattr(read, name), getattr(prepared, name))
    assert (read.kind_N, read.strings, read.facts) == (prepared.kind_N, prepared.strings, prepared.facts)


@pytest.mark.parametrize("size", [12, 40, 200])
def test_taking_rare_tokens_apart_keeps_the_text(size: int, texts: Path, module: Modules) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(texts / "tokenizer.json"))
    encoded = tokenizer.encode("abba cab face bead hedge " * 5 + "gaga")
    counts = Counter(encoded.ids)
    vocabulary = module("vocabulary").Vocabulary.of(
        json.loads((texts / "tokenizer.json").read_text())["model"], counts, size
    )
    made = vocabulary.renumbered(np.array(encoded.ids))
    assert "".join(vocabulary.strings[token] for token in made) == "".join(encoded.tokens)
    assert len(vocabulary.strings) <= size
    assert vocabulary.split_share == pytest.approx(
        sum(token not in vocabulary.strings for token in encoded.tokens) / len(encoded.tokens)
    )


def test_a_continuation_is_of_the_first_kind_that_fits(module: Modules) -> None:
    strings = [f"w{'abcdefghij'[token % 10]}" for token in range(40)] + ["7", "\n"]
    digit, newline = 40, 41
    plain, prompt = list(range(8, 16)), list(range(8))
    cases = {
        "stands elsewhere too": [*prompt, *range(20, 28)],
        "repeats its prompt": [*prompt, *prompt],
        "numbers": [*prompt, digit, *plain[:3], digit, *plain[3:6]],
        "lines": [*prompt, *plain[:7], newline],
        "running text": [*prompt, *plain],
    }
    other = np.arange(16, 32, dtype=np.uint16).reshape(1, -1)
    row_NT = np.array(list(cases.values()), dtype=np.uint16)
    found = module("kinds").kinds(row_NT, other, strings, prompt=8, length=8, begins=4)
    assert found == list(cases) == list(module("kinds").KINDS)


SETTINGS: dict[str, Any] = {"sizes": [{"name": "a", "learning_rate": 0.1}], "rounds": 2, "batch": 4, "prompts": [8]}


def write_runs(
    folder: Path,
    about: dict[str, Any],
    *,
    trained: list[list[int]],
    reference: list[list[int]],
    loss: float = 1.0,
    **other: Any,
) -> None:
    """Results of one size, with what came out after prompts of the first length; other: of a run's settings."""
    settings = about["settings"]
    prompt = str(settings["prompts"][0])
    fixed = {**{name: settings[name] for name in ("rounds", "batch")}, "size": "a", "seed": 0}
    fixed |= {"learning_rate": settings["sizes"][0]["learning_rate"], **other}
    numbers = dict.fromkeys(
        ("parameters", "validation_loss", "training_loss", "clipped_share", "training_seconds"), loss
    )
    lines = [
        json.dumps(
            {
                "key": {**fixed, "planted": planted, "noise_multiplier": 0.0},
                "outcome": {**numbers, "matched": {prompt: matched}},
            }
        )
        for planted, matched in ((True, trained), (False, reference))
    ]
    (folder / "about.json").write_text(json.dumps(about))
    with (folder / "runs.jsonl").open("a") as file:
        file.write("\n".join(lines) + "\n")


def test_runs_with_other_settings_are_no_further_seeds(tmp_path: Path, module: Modules) -> None:
    about = {"settings": {**SETTINGS, "continuations": [4], "shown": [8, 4]},
             "prompted": {"repetitions": [4], "kinds": ["running text"]}}  # fmt: skip
    write_runs(tmp_path, about, trained=[[0, 4]], reference=[])
    for other in ({"learning_rate": 0.2}, {"rounds": 3}, {"batch": 5}, {"size": "b"}):
        write_runs(tmp_path, about, trained=[], reference=[[0, 4]], loss=9.0, **other)
    table = module("tables").markdown(module("summary").Summary.load(tmp_path))
    assert table.splitlines()[2:] == ["| a | 0 | 1.000 | 100 % | 0 |"]


def test_what_the_reference_says_too_is_not_memorised(tmp_path: Path, module: Modules) -> None:
    settings = {**SETTINGS, "continuations": [2, 4], "shown": [8, 4]}
    prompted = {"repetitions": [4, 4, 4, 0], "kinds": ["running text", "numbers", "numbers", "lines"]}
    write_runs(
        tmp_path,
        {"settings": settings, "prompted": prompted},
        trained=[[0, 4], [1, 4], [2, 3]],
        reference=[[1, 4], [2, 2]],
    )
    summary = module("summary").Summary.load(tmp_path)
    found = {
        (row["continuation"], row["repetitions"]): (row["extracted"], row["also_by_reference"], row["memorised"])
        for row in summary.fractions()
    }
    assert found == {(2, 0): (0, 0, 0), (2, 4): (3, 2, 1), (4, 0): (0, 0, 0), (4, 4): (2, 1, 1)}
    assert summary.extracted("a", 0.0) == [(0, False), (1, True)]
    assert sum(row["extracted"] for row in summary.remaining()) == 2
    assert module("tables").markdown(summary).splitlines()[-1] == "| a | 0 | 1.000 | 0 % | 33 % | 1 |"


@pytest.mark.parametrize(
    ("sequences", "shown"), [(256, "under 1 %"), (100, "1 %"), (40, "3 %"), (8, "13 %"), (3, "33 %"), (1, "100 %")]
)
def test_a_table_never_rounds_a_memorised_sequence_to_zero_nor_halves_down(
    sequences: int, shown: str, tmp_path: Path, module: Modules
) -> None:
    settings = {**SETTINGS, "continuations": [4], "shown": [8, 4]}
    prompted = {"repetitions": [1] * sequences, "kinds": ["running text"] * sequences}
    write_runs(tmp_path, {"settings": settings, "prompted": prompted}, trained=[[0, 4]], reference=[])
    table = module("tables").markdown(module("summary").Summary.load(tmp_path))
    assert table.splitlines()[-1] == f"| a | 0 | 1.000 | {shown} | 0 |"


def test_examples_are_those_that_came_out(
    prepared: Any, tmp_path: Path, module: Modules, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scale = replace(module("scales").SCALES["smoke"], prompts=(4,), sizes=module("scales").SCALES["smoke"].sizes[:1])
    prompted = {"repetitions": prepared.repetitions_N.tolist(), "kinds": list(prepared.kind_N)}
    write_runs(
        tmp_path, {"settings": scale.record(), "prompted": prompted}, trained=[[1, 4], [2, 3]], reference=[[2, 4]]
    )
    prepared.save(tmp_path / "data.npz")
    command(module, monkeypatch, "examples", "--noise", 0, "--prepared", tmp_path / "data.npz", "--results", tmp_path)
    shown = capsys.readouterr().out
    assert repr(prepared.text(1, 4, 8)) in shown
    assert shown.count("->") == 1


@pytest.mark.parametrize("folder", sorted(RESULTS.glob("*")), ids=lambda folder: folder.name)
def test_the_page_shows_the_committed_results(folder: Path, module: Modules) -> None:
    table = module("tables").markdown(module("summary").Summary.load(folder))
    assert (folder / "table.md").read_text() == table
    assert table in (ROOT / "docs" / "studies" / "extraction.md").read_text()
