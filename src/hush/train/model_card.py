"""The model card of a release, as the Hugging Face hub shows it: the promise, its limits, how good the model is.

It holds what the release holds anyway, in the words of its certificate, and scores that are released with the model: of
examples without a secret. Ids of secrets, losses of the draw and audits do not stand in it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hush.certificate import Certificate
from hush.train.scores import StageLosses

__all__ = ["CARD", "model_card"]


CARD = "README.md"  # the name by which the hub knows it
TAGS = ["hush", "secret-protection"]
# By the end of a class's name: what it does on the hub, and the class of transformers that loads it.
_KINDS = {
    "ForCausalLM": ("text-generation", "AutoModelForCausalLM"),
    "LMHeadModel": ("text-generation", "AutoModelForCausalLM"),
    "ForMaskedLM": ("fill-mask", "AutoModelForMaskedLM"),
    "ForSequenceClassification": ("text-classification", "AutoModelForSequenceClassification"),
}
_ADAPTED = {"CAUSAL_LM": "ForCausalLM", "SEQ_CLS": "ForSequenceClassification"}  # by the task that PEFT states

_TEXT = """
# A model with a promise about the secrets in its training data
{warning}
Some texts that this model learnt from hold secrets. It was trained by hush, which promises for each of them how likely
anybody can get it back out of the model at most. The certificate beside the model states this promise, and anybody can
check it, without the data and without trusting the sender.

## The promise

{promise}

This holds under the assumptions that `certificate.md` lists. For some secrets it also says how far the same model lets
other priors rise: somebody who knows more to begin with may learn much more.

## What is not promised

{not_covered}

## Quality

{quality}

Scores of examples with a secret, losses and batch sizes of the training, and audits are not released: they depend on
the secrets, or on which examples were drawn.

## Use

```python
{use}
```

## Verify

`hush verify .` in this folder proves every promise again, and compares certificate, plan and model. It shows that they
fit together. Who put them together is shown by a signature: with the key of somebody whom you trust,
`hush verify . --public-key KEY.pem` checks who vouches for them. It does not look at this page, `report.html` and
`evaluations.jsonl`. If there is a `model.sig`, the tool of OpenSSF checks it, too:
`model_signing verify key model --signature model.sig --public_key KEY.pem`

## Files

- `certificate.md`, `certificate.json`: what holds of this very model, and what does not
- `model/`: the model, which the certificate names by its fingerprint
- `plan/`: what each secret was promised and what is proven of it
- `earlier/`, if it is there: the plans of earlier releases under the same promise
- `certificate.sig`, if it is there: a signature over the certificate, and through it over model and plan
- `model.sig`, `attestations.intoto.jsonl`, if they are there: the model signed as OpenSSF does, and attestations of its
  certificate and its verification as in-toto writes them
- `evaluations.jsonl`, if it is there: how good the model was on the way, on examples without secrets
- `report.html`, if it is there: a page to open in a browser

A certificate is about one training. Further models from the same data, and numbers computed from the data itself, are
releases of their own.
"""
_LOAD = """\
from transformers import AutoTokenizer, {kind}

# In a copy of this folder; from the hub: from_pretrained("OWNER/NAME", subfolder="model")
model = {kind}.from_pretrained("./model")
tokenizer = AutoTokenizer.from_pretrained("./model")"""
_LOAD_ADAPTER = """\
from peft import PeftModel
from transformers import {kind}

base = {kind}.from_pretrained({base})
# In a copy of this folder; from the hub: from_pretrained(base, "OWNER/NAME", subfolder="model")
model = PeftModel.from_pretrained(base, "./model")"""


def model_card(model: Path, certificate: Certificate, scores: Sequence[Mapping[str, Any]]) -> str | None:
    """The card of a released model; None for one that neither transformers nor PEFT wrote.

    model: the folder that is released, cleaned of the owner's paths. scores: those that are released with it.
    """
    config, adapter = (_read(model / name) for name in ("config.json", "adapter_config.json"))
    if not (config or adapter):
        return None
    try:
        from huggingface_hub import ModelCard, ModelCardData
    except ImportError:  # a model of transformers without transformers: then nothing here puts it on a hub
        return None
    ending = _ADAPTED.get(str(adapter.get("task_type")), "") if adapter else _architecture(config)
    task, kind = next((_KINDS[end] for end in _KINDS if ending.endswith(end)), (None, "AutoModel"))
    base = _base_on_hub(adapter)
    data = ModelCardData(
        library_name="peft" if adapter else "transformers", pipeline_tag=task, base_model=base, tags=TAGS
    )
    use = _LOAD.format(kind=kind)
    if adapter:
        use = _LOAD_ADAPTER.format(kind=kind, base='"your copy of the base model"' if base is None else repr(base))
    text = _TEXT.format(
        warning=certificate.warning,
        promise=certificate.promise,
        not_covered="\n".join(f"- {line}" for line in certificate.not_covered),
        quality=_quality(scores),
        use=use,
    )
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n{text}"))


def _quality(scores: Sequence[Mapping[str, Any]]) -> str:
    losses = StageLosses.of(scores)
    if losses is None:
        return "`evaluations.jsonl` has the scores that were released." if scores else "No scores were released."
    rows = "\n".join(f"| {stage} | {loss:.4g} |" for stage, loss in losses.steps)
    return (
        "The mean loss on examples without a secret that training left out; lower is better.\n\n"
        f"| model | held-out loss |\n|---|---|\n{rows}"
    )


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _base_on_hub(adapter: Mapping[str, Any]) -> str | None:
    """The name of the base model that adapters need, if it has a public one."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    name = adapter.get("base_model_name_or_path")
    try:
        validate_repo_id(name)
    except HFValidationError:  # none, or a local one, whose path does not leave the owner's hands
        return None
    return name


def _read(path: Path) -> dict[str, Any]:
    """A configuration; empty if there is none."""
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
