"""The trainings in the folder of a run, and the rule that the same data are trained on once.

A certificate accounts for one training: a reader of two models of the same data can combine them. So a second training
is started only where the owner asks for it. In a chain of releases the ledger accounts for all of them.
"""

from pathlib import Path
from typing import Any

from hush.errors import InvalidInput, Setting
from hush.run.folder import RunPaths, RunRecord
from hush.storage import read_json

__all__ = ["check_further", "earlier_trainings", "removed_training"]


def earlier_trainings(paths: RunPaths, record: RunRecord | None) -> list[Path]:
    """Trainings of which somebody may have a model: those whose ledger names a release, and one that was removed."""
    ledgers = sorted(paths.trainings.glob("*/owner/run.json"))
    removed = None if record is None else removed_training(paths, record)
    return [path.parents[1] for path in ledgers if _has_released(path)] + ([] if removed is None else [removed])


def removed_training(paths: RunPaths, record: RunRecord) -> Path | None:
    """The last finished training, if its folder is gone: somebody may have its model all the same."""
    finished = record.stages.get("train")
    folder = None if finished is None else paths.trainings / str(finished.outputs["training"])
    return None if folder is None or (folder / "owner" / "run.json").is_file() else folder


def _has_released(path: Path) -> bool:
    try:
        ledger: dict[str, Any] = read_json(path)
        return bool(ledger["finished"] or ledger["released"])
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{path} is not the ledger of a training; restore it, or name a new folder") from None


def check_further(others: list[Path], asked: bool, *, chained: bool = False) -> None:
    """Refuse another training of the same data, unless the owner asked for it. chained: whether a ledger accounts."""
    if others and not asked and chained:
        raise InvalidInput(
            f"this would be another release ({len(others)} trained already, in {others[0].parent}): data, rules, plan, "
            "model or training changed, or it was asked for again. Undo the change to keep what is there; or, for "
            "another release, which is planned after all that are in the ledger, pass ",
            Setting("new_release"),
        )
    if others and not asked:
        raise InvalidInput(
            f"this would train on the same data once more ({len(others)} finished already, in {others[0].parent}): "
            "data, rules, plan, model or training changed, the folder of a training was removed, or it was asked for "
            "again. A certificate accounts for one training, and a reader of both models can combine them. Undo the "
            "change to keep what is there; or, if the earlier model never left your hands and never will, pass ",
            Setting("new_release"),
        )
