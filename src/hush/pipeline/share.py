"""share/: what may leave the owner's hands, put together from finished stages, and replaced whole.

plan/             the plan that it was trained under
model/            the trained model; beside it certificate.json and certificate.md
certificate.sig   a signature that was added; it stays while the certificate is the same (and so plan/plan.sig)
evaluations.jsonl loss on examples without secrets that were held out, if there are any
report.html       without the audit, whose numbers come from data with secrets
README.md         what is what

Times of files are those of the plan: when they were written says how long training took, and so how large its secret
draws were. All of it is readable by whoever may read the folder, whatever modes libraries gave their files.
"""

import os
import shutil
from datetime import datetime
from pathlib import Path

from hush.pipeline.folder import RunPaths
from hush.plan.files import SIGNATURE, read_record
from hush.signature import RELEASE_SIGNATURE
from hush.storage import readable_like_folder, whole_folder

__all__ = ["SHARED_REPORT", "is_published", "publish"]

SHARED_REPORT = "report-to-share.html"
README = """\
# What may leave its owner's hands

- `certificate.md`, `certificate.json`: what holds of this very model, and what does not
- `model/`: the model, which the certificate names by its fingerprint
- `plan/`: what each secret was promised and what is proven of it
- `certificate.sig`, if it is there: a signature over the certificate, and through it over model and plan
- `evaluations.jsonl`, if it is there: how good the model was on the way, on examples without secrets
- `report.html`: a page to open in a browser

Check all of it with `hush verify .` in this folder, or `hush verify . --public-key KEY.pem` with the key of somebody
you trust: it proves every promise again, and compares certificate, plan and model. Without a signature it shows that
they fit together, not who put them together. It does not look at `report.html`, `evaluations.jsonl` and this page.

A certificate is about one training. Further models from the same data, and numbers computed from the data itself, are
releases of their own.
"""


def publish(paths: RunPaths, release: Path, report: Path) -> None:
    """Replace share/ by what a finished training released, with the report."""
    with whole_folder(paths.share) as work:
        shutil.copytree(release, work, dirs_exist_ok=True)
        for signed, signature in (("certificate.json", RELEASE_SIGNATURE), ("plan/plan.json", f"plan/{SIGNATURE}")):
            if (paths.share / signature).is_file() and _same(paths.share / signed, work / signed):
                shutil.copyfile(paths.share / signature, work / signature)
        shutil.copyfile(report, work / "report.html")
        (work / "README.md").write_text(README, encoding="utf-8")
        readable_like_folder(work)
        time = datetime.fromisoformat(read_record(work / "plan")["created"]).timestamp()
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
