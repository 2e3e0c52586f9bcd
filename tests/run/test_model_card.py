"""A release is a repository of the Hugging Face hub as it is: a card, a model that loads, nothing that must stay."""

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, ModelCard
from small_runs import SECRETS

from hush.certificate import Certificate
from hush.plan.attest import attest
from hush.plan.files import create_keys
from hush.train.model_card import model_card
from hush.train.scores import LOSS, LOSS_BEFORE

# All that may leave the owner's hands.
PLAN = r"(plan\.json|certificate\.(json|md)|(examples|secrets|incidence|slots|chain)\.parquet|plan\.sig)"
MAY_LEAVE = re.compile(
    r"README\.md|certificate\.(json|md|sig)|model\.sig|attestations\.intoto\.jsonl|evaluations\.jsonl|report\.html"
    rf"|plan/{PLAN}|earlier/\d{{4}}/{PLAN}"
    r"|model/(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|adapter_config)\.json"
    r"|model/(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors|model/model\.safetensors\.index\.json"
)
PAYLOAD = re.compile(rb'"payload": ?"([^"]+)"')  # of an envelope
SCORES = {"round", LOSS, LOSS_BEFORE}


@pytest.fixture
def certificate(finished: Path) -> Certificate:
    return Certificate.from_dict(json.loads((finished / "release" / "certificate.json").read_text()))


def uploaded(release: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The files that ``upload_folder`` would send to the hub, by their names there."""
    sent: list[Any] = []

    class Sent(Exception):
        pass

    def record(_: HfApi, *, operations: Any, **options: Any) -> None:
        sent.extend(operations)
        raise Sent

    monkeypatch.setattr("huggingface_hub.hf_api.is_xet_available", lambda: False)  # then one commit holds all files
    monkeypatch.setattr(HfApi, "_validate_yaml", lambda *_, **__: None)  # by the hub
    monkeypatch.setattr(HfApi, "create_commit", record)
    with pytest.raises(Sent):
        HfApi().upload_folder(folder_path=release, repo_id="acme/notes")
    files: dict[str, bytes] = {}
    for operation in sent:
        with operation.as_file() as file:
            files[operation.path_in_repo] = file.read()
    return files


def test_what_is_uploaded_is_all_of_the_release_and_nothing_that_must_stay(
    own: Path, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it is attested."""
    create_keys(own / "private.pem", own / "public.pem", kind="p256")
    attest(own / "run" / "release", private_key=own / "private.pem")
    release, owner = own / "run" / "release", own / "run" / "owner"
    files = uploaded(release, monkeypatch)
    assert set(files) == {path.relative_to(release).as_posix() for path in release.rglob("*") if path.is_file()}
    assert not [name for name in files if not MAY_LEAVE.fullmatch(name)]
    kept = [secret.encode() for secret in SECRETS]
    kept += [str(desk).encode(), str(own).encode(), (own / "my.key").read_bytes().split()[-1]]
    kept += [b"draw_seed", b"clipped_share"]
    for name, content in files.items():
        stated = content + b"".join(base64.b64decode(payload) for payload in PAYLOAD.findall(content))
        assert not [word for word in kept if word in stated], name
    owners = {path.read_bytes() for path in owner.rglob("*") if path.is_file() and path.stat().st_size}
    released = {path.read_bytes() for path in owner.glob("training/*/release/**/*") if path.is_file()}
    released |= {path.read_bytes() for path in (owner / "plan").iterdir()}  # which was released with the model
    released.add((owner / "report-to-share.html").read_bytes())
    assert not [name for name, content in files.items() if content in owners - released]
    for line in files["evaluations.jsonl"].splitlines():
        assert json.loads(line).keys() <= SCORES


def test_the_model_loads_as_the_card_says(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModel, AutoModelForCausalLM

    monkeypatch.chdir(finished / "release")
    (code,) = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["model"].lm_head.weight.shape[0] >= len(names["tokenizer"])
    from_repository = AutoModelForCausalLM.from_pretrained(finished / "release", subfolder="model")
    assert from_repository.lm_head.weight.equal(names["model"].lm_head.weight)
    assert AutoModel.from_pretrained(finished / "release" / "model").config.model_type == "gpt2"


def test_the_card_says_what_the_certificate_and_the_released_scores_say(
    finished: Path, certificate: Certificate
) -> None:
    card = ModelCard.load(finished / "release" / "README.md")
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["hush", "secret-protection"],
    }
    assert certificate.promise in certificate.to_markdown()
    assert certificate.promise in card.text
    for line in certificate.not_covered:
        assert f"- {line}" in card.text
    rows = [json.loads(line) for line in (finished / "release" / "evaluations.jsonl").read_text().splitlines()]
    shown = dict(re.findall(r"^\| (before|after [a-z ]*) \| (.*) \|$", card.text, flags=re.MULTILINE))
    before, after = rows[0].get(LOSS_BEFORE, rows[0][LOSS]), rows[-1][LOSS]
    assert float(shown["before"]) == pytest.approx(before, rel=1e-3)
    assert float(shown["after the private part"]) == pytest.approx(after, rel=1e-3)
    assert "NOT A CERTIFICATE" not in card.text
    for name in certificate.binding:  # ids are public, and not what a reader of a card looks for
        assert name not in card.text


def test_a_card_states_every_mark_and_that_nothing_was_scored(finished: Path, certificate: Certificate) -> None:
    marked = replace(certificate, marks=("insecure_seed was set",))
    text = model_card(finished / "release" / "model", marked, ())
    assert text is not None
    assert "> **NOT A CERTIFICATE: insecure_seed was set**" in text
    assert "No scores were released." in text
    assert "evaluations.jsonl` has the scores" in str(
        model_card(finished / "release" / "model", certificate, [{"round": 1, "eval_loss": 2.0}])
    )


def test_the_card_of_adapters_names_a_public_base_and_no_path(tmp_path: Path, certificate: Certificate) -> None:
    def card(base: str | None, task: str = "CAUSAL_LM") -> ModelCard:
        config = {"task_type": task, "base_model_name_or_path": base}
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
        return ModelCard(str(model_card(tmp_path, certificate, ())))

    public = card("openai-community/gpt2")
    assert public.data.to_dict() | {"tags": None} == {
        "base_model": "openai-community/gpt2",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": None,
    }
    assert "AutoModelForCausalLM.from_pretrained('openai-community/gpt2')" in public.text
    for local in ("/home/ada/base", "a local base model; load your copy", None):
        private = card(local)
        assert "base_model" not in private.data.to_dict()
        assert "ada/" not in private.content
        assert 'from_pretrained("your copy of the base model")' in private.text
    assert "AutoModel.from_pretrained" in card("gpt2", "FEATURE_EXTRACTION").text


@pytest.mark.parametrize(
    ("architecture", "task"),
    [("BertForMaskedLM", "fill-mask"), ("LlamaForCausalLM", "text-generation"), ("SomeNet", None),
     ("BertForSequenceClassification", "text-classification")],
)  # fmt: skip
def test_the_card_says_what_the_model_does(
    tmp_path: Path, certificate: Certificate, architecture: str, task: str | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    assert ModelCard(str(model_card(tmp_path, certificate, ()))).data.to_dict().get("pipeline_tag") == task


def test_weights_that_no_library_of_hugging_face_loads_have_no_card(tmp_path: Path, certificate: Certificate) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert model_card(tmp_path, certificate, ()) is None
