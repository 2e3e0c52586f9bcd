"""From data to a released model by the command line: what leaves holds no secret, what does not fit is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
import transformers as hf
from training_desk import EXAMPLES, LENGTH, ROUNDS, SECRETS, Desk, weights

import hush
from command_line import message, run
from hush.keys import DataKey
from hush.train.run_folder import RunLog


def refused(*arguments: object, code: int = 2) -> str:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    assert not [secret for secret in SECRETS if secret in result.output]
    return message(result)


KINDS = {
    "gpt2": ("gpt2", []),
    "bert": ("bert", ["--optimizer", "sgd", "--schedule", "cosine", "--warmup", 2]),
    "gpt2-lora": ("gpt2", ["--lora", "--lora-rank", 2, "--bf16", "--gradient-checkpointing"]),
    "bert-lora": (
        "bert",
        ["--lora", "--lora-target", "query", "--lora-target", "value", "--lora-dropout", 0.1, "--max-length", 20],
    ),
    "gpt2-public": (
        "gpt2",
        ["--public-weight", 0.5, "--public-batch", 7, "--micro-batch", 3, "--schedule", "constant"],
    ),
    "bert-metric": ("bert", ["--metric", "public", "--metric-count", 20, "--metric-floor", 0.5]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_plan_and_train_lead_to_a_model_a_certificate_and_no_secret(desk: Desk, tmp_path: Path, kind: str) -> None:
    model, options = KINDS[kind]
    result = run(*desk.train(tmp_path / "run", *options, model=model))
    assert result.exit_code == 0, result.output
    assert "May be passed on:" in result.stdout
    assert "Must stay private:" in result.stdout
    assert result.stdout.endswith(
        "\nTrain this plan only once: each training is a release, and no certificate covers two together.\n"
    )
    release, owner = tmp_path / "run" / "release", tmp_path / "run" / "owner"
    assert {path.name for path in release.iterdir()} == {
        "model",
        "plan",
        "README.md",
        "certificate.md",
        "certificate.json",
    }
    certificate = json.loads((release / "certificate.json").read_text())
    plan = hush.Plan.load(desk.root / "plan")
    assert certificate["marks"] == []
    assert certificate["fingerprints"]["data (keyed)"] == plan.data_fingerprint
    assert hush.Plan.load(release / "plan") == plan
    assert hush.verify(release, incidence=plan.incidence).passed
    assert len({path.stat().st_mode & 0o777 for path in release.rglob("*") if path.is_file()}) == 1
    assert [record.round for record in RunLog.read(owner / "rounds.jsonl")] == list(range(1, ROUNDS + 1))
    began, now = weights(desk.root / model), weights(release / "model")
    if "--lora" in options:
        assert all("lora" in name for name in now)
    else:
        assert now.keys() == began.keys()
        assert not all(torch.equal(now[name], began[name]) for name in now)
    hidden = [secret.encode() for secret in SECRETS] + [(desk.root / "my.key").read_bytes().split()[-1]]
    for path in release.rglob("*"):
        if path.is_file() and path.suffix != ".safetensors":
            assert not [secret for secret in hidden if secret in path.read_bytes()], path
    assert not [secret for secret in hidden if secret.decode() in result.output]
    assert owner.stat().st_mode & 0o077 == 0


def test_the_released_model_loads_as_any_other(desk: Desk, tmp_path: Path) -> None:
    assert run(*desk.train(tmp_path / "full")).exit_code == 0
    model = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "full" / "release" / "model")
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "full" / "release" / "model")
    ids = tokenizer("the weather", return_tensors="pt")
    assert torch.isfinite(model(**ids).logits).all()
    assert run(*desk.train(tmp_path / "lora", "--lora")).exit_code == 0
    from peft import PeftModel

    base = hf.AutoModelForCausalLM.from_pretrained(desk.root / "gpt2")
    adapted: Any = PeftModel.from_pretrained(base, tmp_path / "lora" / "release" / "model")
    assert torch.isfinite(adapted(**ids).logits).all()


def test_the_record_holds_nothing_of_the_draw_and_says_where_everything_is(desk: Desk, tmp_path: Path) -> None:
    result = run(*desk.train(tmp_path / "run", "--json"))
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record.keys() == {
        "rounds", "task", "trained_parameters", "max_length", "noise_multiplier", "certifies", "marks", "fingerprints",
        "cautions", "losses", "model", "certificate", "release", "owner",
    }  # fmt: skip
    assert (record["rounds"], record["task"], record["certifies"]) == (ROUNDS, "causal", True)
    assert Path(record["model"]).is_dir()
    assert Path(record["certificate"]).is_file()
    again = run(*desk.train(tmp_path / "run", "--json"))  # a finished run is only reported
    assert json.loads(again.stdout) == record


def test_noise_that_drowns_all_signal_is_said_before_and_divergence_after(desk: Desk, tmp_path: Path) -> None:
    result = run(*desk.train(tmp_path / "run", "--learning-rate", 500, "--optimizer", "sgd"))
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "WARNING: The signal of all rounds is at most 0.2" in said
    assert "WARNING: The loss of the examples drawn rose from" in said
    record = run(*desk.train(tmp_path / "run", "--learning-rate", 500, "--optimizer", "sgd", "--json"))
    assert json.loads(record.stdout)["cautions"] == []  # what clipping and losses of the draw show is for the owner


def test_a_fixed_seed_repeats_the_run_and_is_marked(desk: Desk, tmp_path: Path) -> None:
    for name in ("one", "other"):
        result = run(*desk.train(tmp_path / name, "--insecure-seed", 5, "--lora"))
        assert result.exit_code == 0, result.output
        assert "NOT A CERTIFICATE: insecure_seed" in result.stdout
        assert f"Must stay private: {tmp_path / name / 'release'} (nothing is certified of this model)" in result.stdout
        assert "May be passed on" not in result.stdout
        assert "Train this plan only once" not in result.stdout
        assert "certifies nothing (insecure_seed" in message(run("verify", tmp_path / name))
        assert "NOT A CERTIFICATE" in (tmp_path / name / "release" / "certificate.md").read_text()
    one, other = (weights(tmp_path / name / "release" / "model") for name in ("one", "other"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_without_a_fixed_seed_no_two_runs_are_the_same(desk: Desk, tmp_path: Path) -> None:
    for name in ("one", "other"):
        assert run(*desk.train(tmp_path / name)).exit_code == 0
    one, other = (weights(tmp_path / name / "release" / "model") for name in ("one", "other"))
    assert not any(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("data", ["swapped.jsonl", "edited.jsonl"])
def test_data_other_than_the_plans_is_refused_before_a_round_is_done(desk: Desk, tmp_path: Path, data: str) -> None:
    message = refused(*desk.train(tmp_path / "run", "--data", desk.root / data))
    assert "is not the data that the plan was made for" in message
    assert not (tmp_path / "run").exists()


def test_data_of_another_length_is_refused(desk: Desk, tmp_path: Path) -> None:
    message = refused(*desk.train(tmp_path / "run", "--data", desk.root / "shorter.jsonl"))
    assert "has 59 rows but the plan has 60 examples" in message


def test_another_key_is_told_from_other_data(desk: Desk, tmp_path: Path) -> None:
    ids = [DataKey.load(desk.root / name).id for name in ("other.key", "my.key")]
    message = refused(*desk.train(tmp_path / "run", "--key", desk.root / "other.key"))
    assert f"this key is {ids[0]}, but the plan's fingerprint was made with {ids[1]}" in message
    command = ["train", desk.root / "plan", "--model", desk.root / "gpt2", "--data", desk.root / "data.jsonl"]
    assert "pass the key that it was made with: --key" in refused(*command, "--output", tmp_path / "run")
    missing = refused(*desk.train(tmp_path / "run", "--key", tmp_path / "missing.key"))
    assert "No such file or directory" in missing
    assert not (tmp_path / "missing.key").exists()  # training never makes a key


def test_unchecked_data_must_be_asked_for_and_is_marked(desk: Desk, tmp_path: Path) -> None:
    command = desk.train(tmp_path / "run", plan="plan-without-data")
    assert "does not say which data it was made for" in refused(*command)
    result = run(*command, "--unchecked-data")
    assert result.exit_code == 0, result.output
    assert "NOT A CERTIFICATE: the data was not checked" in result.stdout
    pages = list((tmp_path / "run" / "release").rglob("certificate.md"))
    assert pages
    assert all("NOT A CERTIFICATE: the data was not checked" in page.read_text() for page in pages)
    assert "the data are checked; drop --unchecked-data" in refused(*desk.train(tmp_path / "new", "--unchecked-data"))


def test_a_run_goes_on_as_it_began_or_not_at_all(desk: Desk, tmp_path: Path) -> None:
    assert run(*desk.train(tmp_path / "run")).exit_code == 0
    assert "holds a run already; train in a new folder" in refused(*desk.train(tmp_path / "run", "--no-resume"))
    message = refused(*desk.train(tmp_path / "run", "--learning-rate", 0.1))
    assert "was begun with learning_rate=its default, now it is 0.1" in message
    assert "begun under another plan" in refused(*desk.train(tmp_path / "run", plan="long-plan"))
    assert "was begun with" in refused(*desk.train(tmp_path / "run", "--insecure-seed", 1))
    (tmp_path / "run" / "owner" / "recipe.json").write_text("{")
    assert "is not the recipe of a run" in refused(*desk.train(tmp_path / "run"))


def test_a_plan_without_secrets_trains_without_noise(desk: Desk, tmp_path: Path) -> None:
    empty = hush.Incidence.from_pairs([], [], num_examples=EXAMPLES, num_secrets=0)
    fingerprint = hush.Plan.load(desk.root / "plan").data_fingerprint
    settings: Any = {"prior": 1e-6, "ceiling": 1e-3, "batch_size": 8, "rounds": 2}
    hush.make_plan(empty, **settings, data_fingerprint=fingerprint).save(tmp_path / "plan")
    result = run(*desk.train(tmp_path / "run", plan=str(tmp_path / "plan")))
    assert result.exit_code == 0, result.output
    assert "noise multiplier 0," in result.stderr


BAD_QUESTIONS = {
    "an unknown name": (["--model", "no-such-model"], "no-such-model: its configuration cannot be loaded"),
    "a folder that holds no model": (["--model", "{root}/plan"], "cannot be loaded"),
    "a misspelt folder of a model": (
        ["--model", "./nosuch"],
        "--model=./nosuch is not a folder; pass the folder of a model",
    ),
    "a model in a folder that is here": (["--model", "{root}/plan/nosuch"], "plan/nosuch is not a folder"),
    "a file as a model": (["--model", "{root}/data.jsonl"], "data.jsonl is not a folder; pass the folder of a model"),
    "no head": (["--model", "{root}/headless"], "pass --task=causal or --task=masked"),
    "nothing to mask with": (["--model", "{root}/unmasked"], "add one, or train it as a causal model: --task=causal"),
    "too long": (["--max-length", LENGTH + 1], f"takes from 2 to {LENGTH} tokens"),
    "half a public stream": (["--public-weight", 1], "--public-batch: pass the number of examples without secrets"),
    "a public stream too large": (["--public-weight", 1, "--public-batch", 56], "there are 55 public examples"),
    "half a metric": (["--metric-corpus", "books.txt"], "--metric-corpus needs --metric public"),
    "no metric": (["--metric", "private"], "Invalid value for '--metric'"),
    "a metric without a floor": (["--metric", "public", "--metric-floor", 0], "--metric-floor=0.0; pass a share above"),
    "targets without LoRA": (["--lora-target", "c_attn"], "add --lora, or drop --lora-target"),
    "unknown targets": (["--lora", "--lora-target", "nothing"], "name the modules to adapt: --lora-target"),
    "no device": (["--device", "cuda:99"], "--device='cuda:99'; it cannot be used here"),
    "a learning rate of nothing": (["--learning-rate", 0], "--learning-rate=0.0; pass a number above 0 and up to 1000"),
    "no learning rate": (["--learning-rate", "nan"], "Invalid value for '--learning-rate'"),
    "an endless learning rate": (["--learning-rate", "inf"], "Invalid value for '--learning-rate'"),
    "an absurd learning rate": (["--learning-rate", "1e308"], "Invalid value for '--learning-rate'"),
    "an unknown column": (["--column", "body"], "has no column 'body'; it has text"),
    "no data": (["--data", "{root}/missing.jsonl"], "missing.jsonl does not exist"),
    "shards of one process": (["--shard"], "start them with torchrun, or drop --shard"),
    "compiled shards": (["--shard", "--compile"], "drop --shard or --compile"),
    "no known schedule": (["--schedule", "random"], "is not one of"),
}


@pytest.mark.parametrize("question", BAD_QUESTIONS)
def test_bad_questions_end_with_2_and_leave_no_folder(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # or it would try for a while
    options, words = BAD_QUESTIONS[question]
    filled = [str(option).replace("{root}", str(desk.root)) for option in options]
    assert words in refused(*desk.train(tmp_path / "run", *filled))
    assert not (tmp_path / "run").exists()


def test_a_plan_that_is_no_folder_is_refused(desk: Desk, tmp_path: Path) -> None:
    assert "pass one that hush plan wrote" in refused(*desk.train(tmp_path / "run", plan="data.jsonl"))


def test_help_shows_how_to_begin_and_groups_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = run("train", "--help").stdout
    for words in ("Example: hush train my-plan", "torchrun --nproc-per-node 4 -m hush train", "Ctrl-C"):
        assert words in text
    for group in ("Options", "Learning", "LoRA", "Public stream", "Speed and memory", "Resuming and checks"):
        assert f"─ {group}" in text


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from hush.cli import app; "
        "done = CliRunner().invoke(app, ['train', '--help']); assert 'owner/' in done.output; print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "pyarrow", "numpy"} & set(done.stdout.split())


def test_a_missing_library_is_named(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hush.train.fit", "hush.train.pretrained", "hush.train.recipe"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert 'training needs the library torch; pip install "hush[hf]"' in refused(*desk.train(tmp_path / "run"))
