"""share/: what may leave the owner's hands, put together from finished stages, and replaced whole.

plan/             the plan, for hush verify; a signature that was added stays while the plan is the same
model/            the trained model; beside it certificate.json and certificate.md
evaluations.jsonl loss on examples without secrets that were held out, if there are any
report.html       without the audit, whose numbers come from data with secrets
README.md         what is what

Times of files are those of the plan: when they were written says how long training took, and so how large its secret
draws were.
"""

import os
import shutil
from datetime import datetime
from pathlib import Path

from hush.pipeline.folder import RunPaths
from hush.plan.files import SIGNATURE, read_record
from hush.storage import whole_folder

__all__ = ["SHARED_REPORT", "is_published", "publish"]

SHARED_REPORT = "report-to-share.html"
README = """\
# What may leave its owner's hands

- `plan/`: what each secret was promised and what is proven of it; check it with `hush verify plan`
- `model/`: the model that was trained under it
- `certificate.md`, `certificate.json`: what holds of this very model, and what does not
- `evaluations.jsonl`, if it is there: how good the model was on the way, on examples without secrets
- `report.html`: the same as a page to open in a browser

A certificate is about one training. Further models from the same data, and numbers computed from the data itself, are
releases of their own.
"""


def publish(paths: RunPaths, release: Path, report: Path) -> None:
    """Replace share/ by what a finished training released, with the report."""
    with whole_folder(paths.share) as work:
        shutil.copytree(release, work, dirs_exist_ok=True)
        before, now = paths.share / "plan", work / "plan"
        if (before / SIGNATURE).is_file() and _same(before / "plan.json", now / "plan.json"):
            shutil.copyfile(before / SIGNATURE, now / SIGNATURE)
        shutil.copyfile(report, work / "report.html")
        (work / "README.md").write_text(README, encoding="utf-8")
        time = datetime.fromisoformat(read_record(now)["created"]).timestamp()
        for path in (*work.rglob("*"), work):
            os.utime(path, (time, time))


def is_published(paths: RunPaths, release: Path, report: Path) -> bool:
    """Whether share/ holds just that."""
    pairs = [(path, paths.share / path.relative_to(release)) for path in release.rglob("*") if path.is_file()]
    return all(_alike(one, other) for one, other in (*pairs, (report, paths.share / "report.html")))


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()


def _alike(one: Path, other: Path) -> bool:
    """By size, and by content where that is quickly read."""
    if not other.is_file() or one.stat().st_size != other.stat().st_size:
        return False
    return one.suffix not in (".json", ".jsonl", ".md", ".html") or _same(one, other)
