"""The study of a code base: end to end at a tiny scale on a code base made on the spot, and the laws it rests on."""

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.plan import make_plan
from hush.scan.code.imports import ImportGraph
from hush.train.language_models import causal_lm_loss
from hush.train.private_training import PrivateTraining

ROOT = Path(__file__).parents[2]
MODULES = ("__main__", "arms", "company", "figures", "prepare", "prepared", "scales", "study", "tables", "training")
ANA, BEN = ("Ana <ana@acme.com>", "Ben <ben@acme.com>")

Modules = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def module() -> Modules:
    """Modules of the study by name; experiments are run from the root and are no part of the installed package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        return {name: import_module(f"experiments.code_base.{name}") for name in MODULES}.__getitem__


def source(name: str, *imports: str, lines: int = 40) -> str:
    head = "".join(f"from parts import {one}\n" for one in imports)
    return head + "".join(f"{name}_{number} = {name!r} * {number % 7}\n" for number in range(lines))


@pytest.fixture(scope="module")
def code_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty projects by Ana and one by Ben, who also wrote a tool; all use a library, two use another project."""
    root = tmp_path_factory.mktemp("code-base")
    files = {
        f"parts/p{number}/{part}.py": source(f"p{number}{part}", "shared") for number in range(20) for part in "ab"
    }
    files |= {
        "parts/shared.py": source("shared"),
        "parts/__init__.py": "names = []\n",
        "parts/p0/c.py": "from parts.p1 import a\n" + source("x"),
    }
    files |= {f"loose{number}.py": source(f"loose{number}", lines=60) for number in range(30)}
    by_ben = {"parts/bea/main.py": source("main", "shared"), "tool.py": source("tool")}
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    for author, written in ((ANA, files), (BEN, by_ben)):
        for name, text in written.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        # Everything that Ana wrote lies in one commit of hers; as a person she is told apart by the share alone.
        for command in (["add", "--all"], ["commit", "--quiet", "-m", "work", f"--author={author}"]):
            identity = ["-c", "user.name=Bot", "-c", "user.email=bot@acme.com"]
            subprocess.run(["git", "-C", str(root), *identity, *command], check=True)
    return root


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("public")
    for number in range(30):
        (folder / f"open{number}.py").write_text(source(f"open{number}", lines=30))
    return folder


@pytest.fixture(scope="module")
def tiny(module: Modules) -> Any:
    scales = module("scales")
    return replace(
        scales.SMALL, name="tiny", public_size=20_000, vocabulary=300, length=32, width=16, base_steps=3, base_batch=4,
        batch_size=8, rounds=2, micro_batch=16, plain_batch=8, canaries=2, repeats=2, spans=10, candidates=20,
        tried=(scales.Setting(trained="few", learning_rate=1e-3),),
    )  # fmt: skip


@pytest.fixture(scope="module")
def without_people(code_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same files without their history: one author of nearly everything would leave nothing free of secrets."""
    copy = tmp_path_factory.mktemp("plain")
    for path in code_base.rglob("*.py"):
        there = copy / path.relative_to(code_base)
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_bytes(path.read_bytes())
    return copy


@pytest.fixture(scope="module")
def prepared(module: Modules, without_people: Path, public: Path, tiny: Any) -> Any:
    return module("prepare").prepare(without_people, tiny, projects="parts", public=[public])


@pytest.fixture(scope="module")
def finished(module: Modules, prepared: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a whole study, begun with no time left and then taken up."""
    output, kept = tmp_path_factory.mktemp("study"), tmp_path_factory.mktemp("prepared")
    prepared.save(kept)
    again = module("prepared").Prepared.load(kept)
    module("study").run_study(again, output, minutes=0, device="cpu")
    assert not (output / "runs.jsonl").exists()
    module("study").run_study(again, output, device="cpu")
    return output


def test_every_arm_is_tuned_alike_and_run_once_per_seed(module: Modules, finished: Path, tiny: Any) -> None:
    entries = [json.loads(line) for line in (finished / "runs.jsonl").read_text().splitlines()]
    arms = module("arms").ARMS
    assert not [entry for entry in entries if "failed" in entry]
    assert len(entries) == 1 + len(arms) * (len(tiny.tried) + tiny.seeds)
    assert {(entry["key"]["arm"], entry["key"]["noise_scale"]) for entry in entries[1:]} == {
        (arm.name, arm.noise_scale) for arm in arms
    }
    for entry in entries:
        if "seed" in entry["key"]:
            assert all(np.isfinite(entry["outcome"][name]) for name in ("loss_free", "loss_projects", "exposure"))
            plain = entry["key"]["arm"] in ("no protection", "dropping", "dropping, twice")
            assert entry["outcome"]["certified"] == (not plain and entry["key"]["noise_scale"] == 1)


def test_a_finished_study_is_not_run_again_and_a_missing_run_is(module: Modules, finished: Path, prepared: Any) -> None:
    log = finished / "runs.jsonl"
    lines = log.read_text().splitlines()
    module("study").run_study(prepared, finished, device="cpu")
    assert log.read_text().splitlines() == lines
    log.write_text("\n".join(lines[:-1]) + "\n")
    module("study").run_study(prepared, finished, device="cpu")
    assert [json.loads(line)["key"] for line in log.read_text().splitlines()] == [
        json.loads(line)["key"] for line in lines
    ]


def test_runs_on_another_code_base_are_not_taken_for_its_own(module: Modules, finished: Path, prepared: Any) -> None:
    lines = (finished / "runs.jsonl").read_text()
    other = replace(prepared, facts={**prepared.facts, "files": 1 + prepared.facts["files"]})
    with pytest.raises(InvalidInput, match="another code base"):
        module("study").run_study(other, finished, device="cpu")
    assert (finished / "runs.jsonl").read_text() == lines


def test_table_and_figure_come_from_the_log_alone(module: Modules, finished: Path) -> None:
    module("figures").draw(finished, finished)
    rows = (finished / "table.md").read_text().splitlines()
    assert all(any(row.startswith(f"| {arm.title} |") for row in rows) for arm in module("arms").ARMS)
    assert (finished / "code-base.svg").stat().st_size > 1000


def test_a_small_study_does_not_take_the_committed_runs_for_its_own(
    module: Modules, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = module("__main__")
    monkeypatch.setattr(main, "HERE", tmp_path / "experiments")
    for scale, place in (("small", "build/code-base/small/results"), ("full", "experiments/results/code_base/full")):
        main.main(["--scale", scale, "--part", "figures"])
        assert capsys.readouterr().out.startswith(f"{tmp_path / place} holds no finished run")


@pytest.mark.parametrize("scale", ["full", "small"])
def test_what_is_shown_is_what_the_log_of_the_runs_says(module: Modules, scale: str, tmp_path: Path) -> None:
    kept, page = ROOT / "experiments" / "results" / "code_base" / scale, ROOT / "docs" / "studies" / "code-base.md"
    (tmp_path / "runs.jsonl").write_bytes((kept / "runs.jsonl").read_bytes())
    module("figures").draw(tmp_path, tmp_path)
    drawn = (tmp_path / "table.md").read_text()
    assert (kept / "table.md").read_text() == drawn
    picture = kept / "code-base.svg" if scale == "small" else ROOT / "docs" / "images" / "studies" / "code-base.svg"
    assert _words(picture) == _words(tmp_path / "code-base.svg")
    if scale == "full":
        assert all(part.strip() in page.read_text() for part in drawn.split("\n\n"))


def _words(picture: Path) -> list[str]:
    """Words and numbers, which matplotlib notes beside the shapes of their letters."""
    found = re.findall(r"<!-- (.*?) -->", picture.read_text())
    assert found
    return found


@given(
    losses=st.lists(st.decimals(0, 10, places=4).map(float), min_size=2, max_size=5),
    limits=st.tuples(st.floats(-1, 0), st.floats(0, 1)),
    posterior=st.floats(1e-12, 1),
)
def test_a_table_never_shows_more_certainty_than_was_measured(
    module: Modules, losses: list[float], limits: tuple[float, float], posterior: float
) -> None:
    arm = next(arm for arm in module("arms").ARMS if arm.name == "hush" and arm.noise_scale == 1)
    same = {"named": 0, "said": 0, "canaries": 1, "exposure": 1.0, "said_trained": [0, 1], "said_held_out": [0, 1]}
    outcomes = [
        {**same, "loss_free": loss, "loss_projects": loss, "memorised": 0.0, "memorised_limits": limits,
         "noise_multiplier": 1.0, "certified": True, "canary_posterior": posterior}
        for loss in losses
    ]  # fmt: skip
    facts = {"examples": 2, "examples_with_secrets": 1}
    base = {"outcome": {**outcomes[0], "facts": facts, "canary": {"prior": 0.1}}}
    base |= {"hardware": "", "versions": "", "date": "", "commit": ""}
    quality, leakage = (
        line.split(" | ")
        for line in module("tables").tables(base, [{"arm": arm, "outcomes": outcomes, "commits": []}]).splitlines()
        if line.startswith("| hush |")
    )
    mean, radius = map(float, quality[4].split(" ± "))
    half = mean_confidence_radius(losses)
    assert abs(mean - np.mean(losses)) <= 0.0005 + 1e-9
    assert half - 1e-9 <= radius <= half + 0.001 + 1e-9
    lower, upper = (float(number) for number in re.findall(r"-?[0-9.]+", leakage[3])[1:])
    assert lower <= 100 * limits[0] + 1e-9  # to percent and back is a rounding of its own
    assert upper >= 100 * limits[1] - 1e-9
    assert float(leakage[7].removesuffix(" |")) >= posterior


def mean_confidence_radius(values: list[float]) -> float:
    """By scipy's test of one sample."""
    if len(set(values)) == 1:
        return 0.0
    low, high = ttest_1samp(values, 0).confidence_interval(0.95)
    return float(high - low) / 2


def test_no_result_holds_text_of_the_code_base_or_a_canary(finished: Path, prepared: Any) -> None:
    said = (finished / "runs.jsonl").read_text()
    assert not any(prepared.candidates.text(canary.truth) in said for canary in prepared.canaries)
    assert "loose1_" not in said
    assert "p1a_" not in said


def test_what_is_prepared_survives_its_folder(module: Modules, prepared: Any, tmp_path: Path) -> None:
    prepared.save(tmp_path)
    again = module("prepared").Prepared.load(tmp_path)
    assert again.scale == prepared.scale
    assert again.incidence.fingerprint == prepared.incidence.fingerprint
    np.testing.assert_array_equal(again.trained.tokens, prepared.trained.tokens)
    for name, plan in prepared.plans.items():
        assert again.plans[name].promises_fingerprint == plan.promises_fingerprint
        np.testing.assert_array_equal(again.plans[name].rates, plan.rates)
    assert [repr(canary) for canary in again.canaries] == [repr(canary) for canary in prepared.canaries]


def test_nothing_that_is_held_out_is_trained_on(prepared: Any) -> None:
    trained = {tuple(row) for row in prepared.trained.tokens.tolist()}
    for blocks in (prepared.valid_free, prepared.test_free, prepared.valid_projects, prepared.test_projects):
        assert len(blocks)
        assert trained.isdisjoint(tuple(row) for row in blocks.tokens.tolist())


def test_dropping_trains_on_no_example_with_a_secret(prepared: Any) -> None:
    free = set(prepared.free_N.tolist())
    assert free
    assert free.isdisjoint(prepared.incidence.example_of_entry.tolist())


def test_the_uniform_promise_covers_every_other(prepared: Any) -> None:
    uniform, hush = prepared.plans["uniform"], prepared.plans["hush"]
    offered = [set(zip(*points, strict=True)) for points in zip(uniform.prior, uniform.ceiling, strict=True)]
    for secret, promised in enumerate(zip(hush.prior, hush.ceiling, strict=True)):
        assert set(zip(*promised, strict=True)) <= offered[secret]
    assert uniform.noise_multiplier >= hush.noise_multiplier
    assert (uniform.weights == 1).all()


def test_a_library_is_no_secret_and_a_secret_spreads_by_imports(module: Modules, without_people: Path) -> None:
    company = module("company").read_company(without_people, projects="parts", largest=10_000, share=0.7)
    assert company.people == 0
    assert "shared" not in company.names
    assert "parts/shared.py" not in company.secrets_of
    # Which projects are secrets follows from their names: p1 is one, p0 is not.
    assert company.secrets_of["parts/p0/c.py"] == (company.names.index("p1"),)
    assert "parts/p0/a.py" not in company.secrets_of


def test_a_project_that_many_import_is_a_library(module: Modules) -> None:
    projects = module("company")
    for importers, secret in ((projects.LIBRARY, True), (projects.LIBRARY + 1, False)):
        users = {f"parts/user{number}.py": ("parts/shared.py",) for number in range(importers)}
        graph = ImportGraph(imports=users, with_errors=(), files={})
        found = projects.secret_projects(["parts/shared.py", *users], graph, folder="parts")
        assert ("shared" in found) == secret


def test_a_secret_spreads_to_what_its_contributors_wrote(module: Modules, code_base: Path) -> None:
    company = module("company").read_company(code_base, projects="parts", largest=10_000, share=0.7)
    assert company.people == 2
    bea = company.names.index("bea")
    anas = {number for number, name in enumerate(company.names) if name.startswith("p")}
    assert anas <= set(company.secrets_of["loose0.py"])
    assert bea not in company.secrets_of["loose0.py"]
    assert company.secrets_of["tool.py"] == (bea,)


@given(tokens=st.lists(st.integers(0, 9), max_size=200), length=st.integers(1, 50))
def test_blocks_are_a_file_in_order_but_for_a_short_rest(module: Modules, tokens: list[int], length: int) -> None:
    blocks = list(module("prepare").blocks_of(tokens, length))
    joined = [token for block in blocks for token in block]
    assert joined == tokens[: len(joined)]
    assert len(tokens) - len(joined) < min(module("prepare").SHORTEST, length)
    assert all(len(block) <= length for block in blocks)


@pytest.fixture(scope="module")
def certain(module: Modules) -> tuple[Any, Any]:
    """Six examples and a plan that leaves nothing to chance: rates of 1 and hardly any noise."""
    rng = np.random.default_rng(0)
    blocks = module("prepared").Blocks.of([rng.integers(1, 300, 32).tolist() for _ in range(6)], 32)
    graph = Incidence.from_pairs([0, 1], [0, 0], num_examples=6, num_secrets=1)
    plan = make_plan(graph, prior=1e-10, ceiling=1e-3, batch_size=6, rounds=3, capacity="none", noise_scale=1e-15)
    return module("training").Table(blocks, torch.device("cpu")), replace(plan, clip_norm=0.1)


@pytest.mark.parametrize("private", [True, False])
def test_a_run_that_failed_leaves_nothing_to_the_next(
    module: Modules, tiny: Any, certain: tuple[Any, Any], private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a failed round there are sums of some micro-batches, of a failed step gradients; the model is shared."""
    training, (table, plan) = module("training"), certain
    scale = replace(tiny, micro_batch=2)
    setting = module("scales").Setting(trained="all", learning_rate=1e-2)

    def run(learner: Any) -> None:
        learner.put_back()
        if private:
            learner.private(table, plan, setting)
        else:
            learner.plain(table, np.arange(6), steps=3, batch=2, rate=1e-2, seed=0)

    calls: list[int] = []
    batch = training.Table.batch

    def fails_third(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("no memory")
        return batch(*arguments)

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    weights: list[dict[str, torch.Tensor]] = []
    for failed in (False, True):
        learner = training.Learner(model=training.make_model(tiny, torch.device("cpu")), scale=scale, compile=False)
        learner.keep_as_start()
        if failed:
            with monkeypatch.context() as patch:
                patch.setattr(*((training.Table, "batch", fails_third) if private else (training.AdamW, "step", fails)))
                with pytest.raises(RuntimeError, match="no memory"):
                    run(learner)
        run(learner)
        weights.append(learner.model.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-6)


def test_a_round_here_is_a_round_of_private_training(module: Modules, tiny: Any, certain: tuple[Any, Any]) -> None:
    """Both must reach the same weights."""
    training, (table, plan) = module("training"), certain
    weights: list[dict[str, torch.Tensor]] = []
    for own in (True, False):
        learner = training.Learner(model=training.make_model(tiny, torch.device("cpu")), scale=tiny, compile=False)
        if own:
            learner.private(table, plan, module("scales").Setting(trained="all", learning_rate=1e-2))
        else:
            optimizer, schedule = learner._optimizer(1e-2, plan.rounds)
            private = PrivateTraining(
                learner.model, optimizer, plan, loss=causal_lm_loss, micro_batch=4, scheduler=schedule
            )
            for round in private.rounds():
                for part in round.micro_batches():
                    private.accumulate(table.batch(part.examples), part.real)
                private.step()
        weights.append(learner.model.state_dict())
    start = training.make_model(tiny, torch.device("cpu")).state_dict()
    assert any(not torch.allclose(weights[0][name], start[name], atol=1e-4) for name in start)
    for name in start:
        torch.testing.assert_close(weights[0][name], weights[1][name], rtol=0, atol=1e-4)
