"""Twelve monthly releases of a growing corpus as one series: planned, trained, killed, resumed, reported and verified.

    python benchmarks/monthly.py --abstracts abstracts.parquet --authors authors.parquet [--output FILE]

Two Parquet files with the same ids in the same order: the texts (columns abstract, categories, created) and the authors
as a list of names (column authors). The corpus of a month is every abstract of one category that was there by then;
every author is a secret. Each month is one ``hush run --new-release`` with the same ledger, in a folder of its own.
Some months are killed (SIGKILL) at random moments, several times, and then go on. The model is tiny: what is measured
is the chain, not the learning. Without the files a corpus is made up on the spot.

The price in noise is computed, not trained: the series against twelve separate promises (each release by itself, whose
models together keep none of them) and against a filter with a twelfth of the budget for each release.
"""

import argparse
import json
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import hush
from hush.ledger import Ledger
from hush.ledger.spending import spending_of
from hush.plan.make import make_plan
from hush.plan.plan import kept_weight
from hush.plan.settings import FilterSettings, SeriesSettings
from hush.run.config import Config
from hush.run.pipeline import run_pipeline

MONTHS = 12
FIRST_YEAR = "2019"  # the releases are its months
CATEGORY = "cs.MA"
KILLED_MONTHS, KILLS = (2, 5, 8, 11), 3  # months that are killed, and how often each
SIZES: dict[str, Any] = {"batch_size": 128, "rounds": 50, "keep": 0.9}
SMALL_SIZES: dict[str, Any] = {"batch_size": 8, "rounds": 4, "keep": 0.5}
PROMISE = {"prior": 1e-6, "ceiling": 1e-2}
GROWTH = 1.2


# --- the corpus


def arxiv_months(abstracts: Path, authors: Path, category: str) -> list[pa.Table]:
    """For each month everything of a category that was there by its end, as id, text and authors."""
    texts = pq.read_table(abstracts, columns=["id", "abstract", "categories", "created"])
    names = pq.read_table(authors, columns=["id", "authors"])
    if not texts["id"].equals(names["id"]):
        sys.exit("the two files have different ids, or another order")
    table = pa.table({"id": texts["id"], "text": texts["abstract"], "authors": names["authors"]})
    listed, created = texts["categories"].to_pylist(), texts["created"].to_pylist()
    dates = [
        str(date)[:7] if category in kinds.split() and people else ""
        for kinds, date, people in zip(listed, created, names["authors"].to_pylist(), strict=True)
    ]
    ends = [f"{FIRST_YEAR}-{month:02d}" for month in range(1, MONTHS + 1)]
    return [table.filter(pa.array([bool(date) and date <= end for date in dates])) for end in ends]


def made_up_months(count: int = MONTHS, *, rows: int = 40, more: int = 6) -> list[pa.Table]:
    """A corpus that grows by a few notes a month, by people who write often or once."""
    rng = random.Random(0)
    people = [f"writer {number}" for number in range(20 + (rows + more * count) // 4)]
    notes = [
        {
            "id": str(number),
            "text": f"note {number}: " + " ".join(rng.choices(["rain", "sun", "wind", "snow", "fog"], k=5)),
            "authors": [people[min(int(rng.expovariate(0.15)), 19 + number // 4)]],
        }
        for number in range(rows + more * count)
    ]
    return [pa.Table.from_pylist(notes[: rows + more * month]) for month in range(1, count + 1)]


def config_of(folder: Path, sizes: dict[str, Any], count: int) -> Config:
    """The config of every month: the data change, the settings do not."""
    return Config.of(
        {
            "data": {"source": "data.parquet", "column": "text"},
            "promises": PROMISE,
            "rules": [{"name": "author", "find": "fields", "column": "authors"}],
            "plan": {**sizes, "hold_out": 0.0},
            "releases": {"ledger": "ledger", "series": {"count": count, "growth": GROWTH}},
            "model": {"small": {"layers": 1, "width": 16, "heads": 1, "length": 64}},
            "training": {"save_every": 5, "device": "cpu", "micro_batch": 64},
            "report": {"frontier": False, "methods": False},
        },
        folder=folder,
    )


# --- one month, and all of them


def release(folder: Path, month: int, sizes: dict[str, Any], count: int) -> None:
    """Make the release of a month, or go on with it."""
    run_pipeline(config_of(folder, sizes, count), output=folder / f"month-{month:02d}", new_release=True)


def forked(work: Callable[[], object]) -> int:
    """A child that does the work; forking spares it the imports."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # taking down a forked interpreter that holds torch takes seconds


def killed_and_resumed(work: Callable[[], object], *, kills: int, longest: float, rng: random.Random) -> int:
    """Kill the work at random moments, as often as that happens before its end; then let it end. How often it was."""
    for killed in range(kills + 1):
        child = forked(work)
        if killed < kills:
            time.sleep(rng.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if not os.WIFSIGNALED(status):
            if status:
                sys.exit(f"it failed after {killed} kills")
            return killed
    raise AssertionError("the last one is not killed")


def all_months(
    months: list[pa.Table], folder: Path, *, sizes: dict[str, Any], killed: Mapping[int, int]
) -> Iterator[dict[str, Any]]:
    """Every release in turn, with what was measured of it; the first in this process, which then has all imports."""
    longest, rng = 0.0, random.Random(int.from_bytes(os.urandom(8)))
    for month, table in enumerate(months, 1):
        temporary = folder / "next.parquet"
        pq.write_table(table, temporary)
        temporary.replace(folder / "data.parquet")
        begin, kills = time.perf_counter(), 0
        work = partial(release, folder, month, sizes, len(months))
        if month == 1:
            work()
        else:
            kills = killed_and_resumed(work, kills=killed.get(month, 0), longest=longest, rng=rng)
        seconds = time.perf_counter() - begin
        longest = longest if kills or month == 1 else seconds
        yield measured(folder, month, seconds=seconds, kills=kills)


def measured(folder: Path, month: int, *, seconds: float, kills: int) -> dict[str, Any]:
    run = folder / f"month-{month:02d}"
    plan = hush.Plan.load(run / "release" / "plan")
    begin = time.perf_counter()
    verified = hush.verify(run / "release")
    verify_seconds = time.perf_counter() - begin
    trainings = [path for path in (run / "owner" / "training").iterdir() if (path / "owner" / "run.json").is_file()]
    chain = plan.chain
    assert chain is not None
    return {
        "month": month,
        "examples": plan.incidence.num_examples,
        "secrets": plan.incidence.num_secrets,
        "noise_multiplier": plan.noise_multiplier,
        "kept_weight": round(kept_weight(plan), 4),
        "largest_share_of_ceiling": float((plan.posterior / plan.ceiling).max()),
        "number": chain.number,
        "of": chain.count,
        "earlier_plans": len(list((run / "release" / "earlier").glob("*"))),
        "kills": kills,
        "trainings": len(trainings),
        "seconds": round(seconds, 1),
        "verify_seconds": round(verify_seconds, 2),
        "verified": verified.passed,
        "report": (run / "release" / "report.html").is_file() and (run / "owner" / "report.html").is_file(),
    }


def price(folder: Path, months: int, sizes: dict[str, Any]) -> list[dict[str, Any]]:
    """The noise of each month in the series, and what it keeps; the same by other ways to plan. None if refused.

    separate: by itself. filter: with an equal share of the budget for each release. no_growth: a series that announces
    no more than its first release draws.
    """
    asked: dict[str, Any] = {**PROMISE, **{name: sizes[name] for name in ("batch_size", "rounds", "keep")}}
    plans = [hush.Plan.load(folder / f"month-{month:02d}" / "release" / "plan") for month in range(1, months + 1)]
    rows: list[dict[str, Any]] = [{"month": month, "series": _told(plan)} for month, plan in enumerate(plans, 1)]
    ways: dict[str, dict[str, Any]] = {
        "separate": {},
        "filter": {"filter": FilterSettings(share=1 / months)},
        "no_growth": {"series": SeriesSettings(count=months)},
    }
    for name, kind in ways.items():
        earlier: list[Path] = []
        for row, plan in zip(rows, plans, strict=True):
            after: dict[str, Any] = {"after": earlier} if kind else {}
            try:
                other = make_plan(plan.incidence, secret_ids=plan.secret_ids, **asked, **kind, **after)
            except hush.HushError as error:
                row[name] = {"refused": str(error)[:300]}
                break
            row[name] = _told(other)
            earlier.append(folder / f"{name}-{row['month']:02d}")
            other.save(earlier[-1])
    return rows


def _told(plan: hush.Plan) -> dict[str, Any]:
    return {"noise_multiplier": plan.noise_multiplier, "kept_weight": round(kept_weight(plan), 4)}


def demonstration(
    months: list[pa.Table],
    folder: Path,
    *,
    sizes: dict[str, Any],
    killed: Mapping[int, int],
    computes_price: bool = True,
) -> dict[str, Any]:
    """The whole series in a folder, as the record of its result."""
    rows = []
    for row in all_months(months, folder, sizes=sizes, killed=killed):
        rows.append(row)
        sys.stderr.write(json.dumps(row) + "\n")
    ledger = Ledger.load(folder / "ledger")
    spending = spending_of(ledger)
    return {
        "months": rows,
        "entries": [entry.state for entry in ledger.entries],
        "series": {**sizes, **PROMISE, "count": len(months), "growth": GROWTH},
        "used_after_each": [round(release.used_most, 5) for release in spending.releases],
        "price": price(folder, len(months), sizes) if computes_price else [],
    }


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--abstracts", type=Path)
    asked.add_argument("--authors", type=Path)
    asked.add_argument("--category", default=CATEGORY)
    asked.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "monthly.json")
    asked.add_argument("--folder", type=Path)
    asked.add_argument("--months", type=int, default=MONTHS)
    options = asked.parse_args()
    import torch

    torch.set_num_threads(1)  # the model is tiny
    is_real = options.abstracts is not None
    months = (
        arxiv_months(options.abstracts, options.authors, options.category)[: options.months]
        if is_real
        else made_up_months(options.months)
    )
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hush-monthly-"))
    folder.mkdir(parents=True, exist_ok=True)
    killed = {month: KILLS for month in KILLED_MONTHS if month <= options.months}
    result = demonstration(months, folder, sizes=SIZES if is_real else SMALL_SIZES, killed=killed)
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "load": os.getloadavg()[0],
        "corpus": f"arXiv abstracts in {options.category}" if is_real else "made up",
        **result,
    }
    options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if options.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
