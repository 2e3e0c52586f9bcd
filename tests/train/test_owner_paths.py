"""A release says nothing of the owner's machine, and is as useful without."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hush
from hush.audit.models import load_subject
from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.run.sections import SmallModel
from hush.run.stage_train import base_model
from hush.train.fit import fit
from hush.train.pretrained import load_pretrained
from hush.train.run_folder import LOCAL_BASE, local_base_of, without_owner_paths
from hush.train.settings import Lora, Recipe, Runtime

TEXTS = [f"text {number} of a few" for number in range(12)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with adapters on a model that lies in a folder, and the model."""
    root = tmp_path_factory.mktemp("machine-of-the-owner")
    (root / "data.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    base = base_model(root / "models", SmallModel(layers=1, width=16, heads=2, length=32))
    base.rename(root / "base")
    incidence = hush.Incidence.from_pairs([0, 1], [0, 0], num_examples=len(TEXTS), num_secrets=1)
    plan = hush.make_plan(incidence, prior=1e-3, ceiling=0.2, batch_size=4, rounds=3)
    fit(
        plan,
        Recipe(model=str(root / "base"), lora=Lora(rank=2, targets=("c_attn",))),
        read_corpus(root / "data.txt"),
        key=None,
        output=root / "run",
        runtime=Runtime(device="cpu"),
        unchecked_data=True,
        insecure_seed=0,
    )
    return root


def test_no_file_of_a_release_holds_a_path_of_the_owner(folder: Path) -> None:
    files = [path for path in (folder / "run" / "release").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"adapter_config.json", "adapter_model.safetensors", "certificate.json"}
    for path in files:
        assert b"machine-of-the-owner" not in path.read_bytes(), path.name
        assert b"More Information Needed" not in path.read_bytes(), path.name
    said = json.loads((folder / "run/release/model/adapter_config.json").read_text())
    assert said["base_model_name_or_path"] == LOCAL_BASE
    assert (said["r"], said["target_modules"]) == (2, ["c_attn"])


def test_released_adapters_fit_the_base_model_that_their_user_brings(folder: Path, tmp_path: Path) -> None:
    peft: Any = pytest.importorskip("peft")
    token = torch.randint(2, 258, (2, 8), generator=torch.Generator().manual_seed(0))
    release = (folder / "run" / "release" / "model").rename(tmp_path / "received")
    try:
        base = load_pretrained(str(folder / "base")).model.eval()
        plain = base(input_ids=token).logits
        adapted = peft.PeftModel.from_pretrained(base, release).eval()(input_ids=token).logits
        with pytest.raises(InvalidInput, match="pass the run's folder"):
            load_subject(str(release))
    finally:
        release.rename(folder / "run" / "release" / "model")
    assert not torch.equal(adapted, plain)
    # The owner's audit finds the base by what stayed with the run, and sees the same model.
    subject, _ = load_subject(str(folder / "run" / "release" / "model"))
    assert torch.equal(subject.model(input_ids=token).logits, adapted)
    assert local_base_of(folder / "run" / "release" / "model") == str(folder / "base")


NAMES = ["gpt2", "google/gemma-2-2b", "org/model.v1_2", "bert-base"]
PATHS = ["/home/ana/base", "./base", "../base", "~/base", "a/b/c", "C:\\models\\base", "/base", "base/"]
ENTRIES = ["base_model_name_or_path", "_name_or_path", "name_or_path", "vocab_file"]


@given(st.sampled_from(NAMES + PATHS), st.sampled_from(ENTRIES))
def test_names_of_the_hub_stay_and_paths_go(tmp_path_factory, name: str, entry: str) -> None:
    folder = tmp_path_factory.mktemp("exported")
    path = folder / "some_config.json"
    path.write_text(json.dumps({entry: name, "hidden_size": 8, "torch_dtype": None}))
    before = path.read_bytes()
    base = without_owner_paths(folder)
    said = json.loads(path.read_text())
    assert (said.pop("hidden_size"), said.pop("torch_dtype", 0)) == (8, None)
    if name in NAMES:
        assert path.read_bytes() == before
        assert base is None
    elif entry == "base_model_name_or_path":
        assert (said, base) == ({entry: LOCAL_BASE}, name)
    else:
        assert (said, base) == ({}, None)
    assert without_owner_paths(folder) is None


def test_a_folder_with_the_form_of_a_public_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "ours").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "adapter_config.json").write_text('{"base_model_name_or_path": "models/ours"}')
    assert without_owner_paths(tmp_path / "out") == "models/ours"


def test_a_state_keeps_the_round_of_the_best_checkpoint_and_not_its_place(tmp_path: Path) -> None:
    path, said = (
        tmp_path / "trainer_state.json",
        {"best_global_step": 4, "best_metric": 0.5, "log_history": [{"loss": 1.0}]},
    )
    path.write_text(json.dumps(said | {"best_model_checkpoint": "/home/ana/out/checkpoint-4"}))
    assert without_owner_paths(tmp_path) is None
    assert json.loads(path.read_text()) == said | {"best_model_checkpoint": None}


def test_cards_that_somebody_wrote_and_files_of_any_kind_are_left_as_they_are(tmp_path: Path) -> None:
    pages = {
        "README.md": "# Our model\n",
        "odd_config.json": "{no json",
        "list_config.json": "[1]",
        "a.txt": "/x/y",
    }
    for name, content in pages.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "training_args.bin").write_bytes(pickle.dumps({"output_dir": "/home/ana/out", "hub_token": "hf_x"}))
    assert without_owner_paths(tmp_path) is None
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == pages


def test_paths_are_found_at_any_depth_and_in_a_card_that_was_written_on(tmp_path: Path) -> None:
    base, folder = tmp_path / "acme" / "base", tmp_path / "export"
    base.mkdir(parents=True)
    folder.mkdir()
    inner = {"_name_or_path": str(base), "layers": 2}
    config = {
        "encoder": inner,
        "parts": [inner],
        "tokenizer_name_or_path": str(base),
        "base_model_name_or_path": str(base),
    }
    (folder / "adapter_config.json").write_text(json.dumps({**config, "kept_name_or_path": "owner/public"}))
    (folder / "README.md").write_text(f"---\nbase_model: {base}\n---\nTrained on our own texts.\n")
    assert without_owner_paths(folder) == str(base)
    said = json.loads((folder / "adapter_config.json").read_text())
    assert said == {
        "encoder": {"layers": 2},
        "parts": [{"layers": 2}],
        "base_model_name_or_path": LOCAL_BASE,
        "kept_name_or_path": "owner/public",
    }
    assert (folder / "README.md").read_text() == "---\nbase_model: local-base-model\n---\nTrained on our own texts.\n"


def test_a_relative_folder_is_not_taken_for_a_name_of_the_hub(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    adapted = load_pretrained(f"{folder.name}/base").with_lora(Lora(rank=2, targets=("c_attn",)))
    monkeypatch.chdir(tmp_path)  # from here, the relative name would lead nowhere
    adapted.export(tmp_path / "export")
    assert without_owner_paths(tmp_path / "export") == str(folder / "base")
    assert folder.name not in (tmp_path / "export" / "adapter_config.json").read_text()
