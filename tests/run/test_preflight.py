"""What a stage would refuse in hours is refused before the first one begins, in words of the config."""

import json
import socket
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from small_runs import small_config

from hush.errors import InvalidInput
from hush.plan.files import create_keys
from hush.run import forecast, run_pipeline
from hush.run.config import Config
from hush.run.job import Watch
from hush.run.preflight import check_reachable
from hush.run.sections import SmallModel
from hush.run.stage_train import base_model

LENGTH = 32
FIELDS = [{"name": "team", "find": "fields", "column": "team"}]
LISTED = [{"name": "names", "find": "literals", "file": "names.csv"}]
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "a name that nobody has": ({"model": {"name": "no-such-model"}}, "no-such-model: its configuration cannot be load"),
    "an empty folder": ({"model": {"name": "empty"}}, "empty: its configuration cannot be loaded"),
    "no weights": ({"model": {"name": "weightless"}}, "weightless holds no weights"),
    "another task": ({"training": {"task": "masked"}}, "train it as a causal model: training.task=causal"),
    "too long": ({"training": {"max_length": 4096}}, "training.max_length=4096; "),
    "no such device": ({"training": {"device": "cuda:99"}}, "training.device='cuda:99'; it cannot be used here"),
    "no such column": ({"data": {"source": "table.csv", "column": "body"}}, "table.csv has no column 'body'"),
    "no column that is text for certain": ({"data": {"source": "odd.csv"}}, "holds the text with data.column"),
    "no such ids": ({"data": {"source": "table.csv", "id_column": "ids"}}, "table.csv has no column 'ids'"),
    "no such field": ({"data": {"source": "table.csv"}, "rules": FIELDS}, "table.csv has no column 'team'"),
    "no data at all": ({"data": {"source": "none.jsonl"}}, "none.jsonl holds no row that can be read"),
    "no list": ({"rules": LISTED}, "rule names: "),
    "no such reference": ({"audit": {"reference": "no-such-model"}}, "no-such-model: its configuration cannot be load"),
    "another tokenizer": (
        {"audit": {"reference": "other"}},
        "other'; it has another tokenizer, of 257 tokens and not the 258",
    ),
    "a key of another kind": ({"attest": {"private_key": "signing.pem"}}, "not an elliptic-curve key on P-256"),
    "held-out texts in no column": ({"audit": {"held_out": "odd.csv"}}, "odd.csv has the columns"),
    "no such modules": (
        {"training": {"lora": {"targets": ["nothing"]}}},
        "name the modules to adapt: training.lora.targets",
    ),
}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Models, some of which lack something, and tables."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # or it would try for a while
    for name in ("model", "weightless", "other"):
        made = base_model(tmp_path / "made", SmallModel(layers=1, width=8, heads=1, length=LENGTH))
        made.rename(tmp_path / name)
    (tmp_path / "weightless" / "model.safetensors").unlink()
    tokenizer = tmp_path / "other" / "tokenizer.json"
    content = json.loads(tokenizer.read_text())
    del content["model"]["vocab"]["z"]
    tokenizer.write_text(json.dumps(content))
    (tmp_path / "empty").mkdir()
    (tmp_path / "table.csv").write_text("text,number\none,1\n")
    (tmp_path / "odd.csv").write_text("Ann,Bob\none,two\n")
    (tmp_path / "none.jsonl").write_text("\n")
    (tmp_path / "names.csv").write_text("nothing\n")
    create_keys(tmp_path / "signing.pem", tmp_path / "public.pem")
    return tmp_path


def config_for(desk: Path, model: dict[str, Any] | None = None, **sections: Any) -> Config:
    return small_config(desk, model={"small": None, "name": "model"} | (model or {}), **sections)


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_refused_before_anything_is_read(desk: Path, misfit: str) -> None:
    sections, words = MISFITS[misfit]
    config, begun = config_for(desk, **sections), []
    watch = Watch(stage=lambda name, _: begun.append(name))
    for refusing in (
        lambda: forecast(config, output=desk / "dry"),
        lambda: run_pipeline(config, output=desk / "run", watch=watch),
    ):
        with pytest.raises(InvalidInput) as caught:
            refusing()
        assert words in str(caught.value)
        assert "--" not in str(caught.value)  # an option of a command that was not called
    assert not begun
    assert not (desk / "dry").exists()


def test_no_weights_are_read_to_see_whether_they_fit(desk: Path) -> None:
    (desk / "model" / "model.safetensors").write_bytes(b"no weights at all")
    for training in ({"max_length": LENGTH}, {"lora": {"targets": ["c_attn"]}}):
        assert forecast(config_for(desk, training=training), output=desk / "dry")


def test_a_finished_training_asks_for_no_device(tmp_path: Path) -> None:
    run_pipeline(small_config(tmp_path), output=tmp_path / "run")
    elsewhere = small_config(tmp_path, training={"device": "cuda:99"})
    assert all(stage.state == "done" for stage in forecast(elsewhere, output=tmp_path / "run"))
    assert run_pipeline(elsewhere, output=tmp_path / "run").ran == ()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """No network: names whose addresses were asked for. And no proxy, nor any model in the cache."""
    asked: list[str] = []

    def unknown(host: str, *_: object) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return asked


def test_without_a_network_a_name_of_the_hub_is_refused_at_once(nowhere: list[str]) -> None:
    with pytest.raises(InvalidInput, match="gtp2 is no folder here and not in the cache, and the hub cannot be asked"):
        check_reachable("gtp2")
    assert len(nowhere) == 1


def test_a_misspelt_folder_that_no_name_of_the_hub_could_be_is_refused_as_one(nowhere: list[str]) -> None:
    for name in ("my modl", "Modell für März"):
        with pytest.raises(InvalidInput, match=f"{name} is no folder here, and the hub has no such names"):
            check_reachable(name)
    assert not nowhere


def test_what_is_here_or_may_be_reached_another_way_is_not_looked_up(
    nowhere: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_reachable(str(tmp_path))
    commit = "0" * 40
    cached = tmp_path / "cache" / "models--gpt2"
    for name, content in (("refs/main", commit), (f"snapshots/{commit}/config.json", "{}")):
        (cached / name).parent.mkdir(parents=True)
        (cached / name).write_text(content)
    check_reachable("gpt2")
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    check_reachable("gtp2")
    monkeypatch.delenv("https_proxy")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    check_reachable("gtp2")
    assert not nowhere
