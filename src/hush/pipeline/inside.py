"""Where a training, a release and a plan lie in the folder of a run, for commands that are given the whole of it."""

from pathlib import Path

from hush.console import plain
from hush.errors import InvalidInput
from hush.pipeline.folder import RunPaths
from hush.pipeline.record import Record
from hush.plan.files import FILES, read_json
from hush.signature import is_release

__all__ = ["plan_inside", "training_inside", "verifiable_inside"]

RELEASES = ("release", "share")  # of hush train, and of hush run
# Of a release, of hush train, and of hush run: what it shares, and before it shares anything what the owner has.
PLANS = ("plan", "release/plan", "share/plan", "owner/plan")


def training_inside(folder: Path) -> Path:
    """The last training that ``hush run`` finished in its folder; any other folder is given back as it is."""
    paths = RunPaths(folder)
    if not paths.stages.is_file():
        return folder
    done = Record.read(paths.stages).stages.get("train")
    if done is None:
        raise InvalidInput(f"{folder} holds no finished training yet; let hush run go on to its end")
    return paths.trainings / str(done.outputs.get("training"))


def plan_inside(folder: Path) -> Path:
    """The plan that a folder is, or the one that a run has in it; also a plan that has lost plan.json is one."""
    for place in (folder, *(folder / place for place in PLANS)):
        if (place / "plan.json").is_file():
            return place
    if any((folder / name).is_file() for name in FILES):
        return folder
    _refuse_marked(folder)
    raise InvalidInput(
        f"{folder} is no plan (it has no plan.json) and no run with a plan in it; pass a folder that hush plan wrote, "
        "or that of a run which has got that far"
    )


def verifiable_inside(folder: Path) -> Path:
    """What can be verified and signed of a folder: the release that it is or holds, before a plan alone."""
    for place in (folder, *(folder / place for place in RELEASES)):
        if is_release(place):
            if not (place / "plan").exists():
                _refuse_marked(place)
            return place
    return plan_inside(folder)


def _refuse_marked(folder: Path) -> None:
    """Say that a release certifies nothing, where that is why it holds no plan.

    Whoever sent the release wrote the marks: they are quoted on one line, with nothing that a terminal would obey.
    """
    for place in (folder, *(folder / place for place in RELEASES)):
        try:
            marks = read_json(place / "certificate.json")["marks"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if isinstance(marks, list) and marks:
            said = "; ".join(plain(str(mark)).plain for mark in marks)
            raise InvalidInput(
                f"{place} certifies nothing ({said}), so it holds no plan; verify the plan that it was trained under, "
                "and do not pass this model on"
            )
