"""What a model's files say of the owner's machine: taken out between their export and their release.

Libraries write down where things came from. PEFT names the folder of the base model, in its configuration and in an
empty model card; transformers and its tokenizers named theirs in earlier versions; the Trainer pickles its arguments,
with folders and, if there is one, the token for the hub, and its state says where the best checkpoint lies. None of it
is needed to use a release.
"""

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["LOCAL_BASE", "without_owner_paths"]

LOCAL_BASE = "a local base model; load your copy and pass it to PeftModel.from_pretrained"
"""Stands in a release for the path of a base model that has no public name."""

BASE, CARD_BASE = "base_model_name_or_path", "local-base-model"
PATHS = ("special_tokens_map_file", "tokenizer_file", "vocab_file", "merges_file")  # and what ends in name_or_path
ARGUMENTS = "training_args.bin"
STATE, BEST = "trainer_state.json", "best_model_checkpoint"  # its round stands there, too
EMPTY_CARD = ("# Model Card for Model ID", "[More Information Needed]")
_HUB = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)  # a name, or an owner's name and a name


def without_owner_paths(folder: Path) -> str | None:
    """Take paths of this machine out of an exported model, in place; returns the base model's, if it had one.

    Names of the hub stay. A base model by its path is only called local: what its own configuration says of where it
    came from may be true of weights before the last ones.
    """
    base: str | None = None
    for path in sorted(folder.rglob("*config.json")):
        said = _mapping(path)
        kept = _without_paths(said)
        if _is_path(said.get(BASE)):
            base, kept[BASE] = said[BASE], LOCAL_BASE
        _replace(path, said, kept)
    for path in sorted(folder.rglob(STATE)):
        said = _mapping(path)
        _replace(path, said, {**said, BEST: None} if said.get(BEST) else said)
    for path in [*folder.rglob(ARGUMENTS), *filter(_is_empty_card, folder.rglob("README.md"))]:
        path.unlink()
    if base is not None:
        for path in folder.rglob("*.md"):  # a card that somebody wrote more into
            text = path.read_text(encoding="utf-8", errors="replace")
            path.write_text(
                text.replace(str(Path(base).resolve()), CARD_BASE).replace(base, CARD_BASE), encoding="utf-8"
            )
    return base


def _without_paths(said: Any) -> Any:
    """A configuration at any depth, since models that are made of several hold those of their parts."""
    if isinstance(said, list):
        return [_without_paths(part) for part in said]
    if not isinstance(said, dict):
        return said
    named = {key for key, value in said.items() if (key in PATHS or key.endswith("name_or_path")) and _is_path(value)}
    return {key: _without_paths(value) for key, value in said.items() if key not in named}


def _replace(path: Path, said: dict[str, Any], kept: dict[str, Any]) -> None:
    if kept != said:
        path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def _mapping(path: Path) -> dict[str, Any]:
    """What a configuration says; nothing if it is no JSON, since an export may write files of any kind."""
    try:
        said: Any = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _is_path(value: object) -> bool:
    """Whether this names something on this machine: a folder that is here counts before a name of the hub."""
    if not isinstance(value, str) or value in ("", LOCAL_BASE):
        return False
    return _HUB.fullmatch(value) is None or Path(value).exists()


def _is_empty_card(path: Path) -> bool:
    """Whether PEFT wrote this page, and nobody anything into it."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return all(mark in text for mark in EMPTY_CARD)
