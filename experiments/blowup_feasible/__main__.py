"""Is the blow-up function infeasible? dp_accounting and hush on the paper's cases, one command.

    python -m experiments.blowup_feasible [--scale small|full] [--output FOLDER] [--minutes M]

Writes runs.jsonl (one line a run; a second call goes on where the first stopped), table.csv, noise.csv, summary.json
and three figures. Small takes seconds; full took half an hour on a busy machine. No GPU, no data.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from experiments.blowup_feasible import accountant, peer
from experiments.blowup_feasible.cases import FULL, SMALL, PeerCase, Point, Promise, Scale
from experiments.blowup_feasible.drawing import draw
from experiments.blowup_feasible.report import Asked, write_report
from experiments.runs import RunLog

ROOT = Path(__file__).parents[2]
FOLDERS = {"small": ROOT / "build" / "blowup_feasible", "full": ROOT / "experiments" / "results" / "blowup_feasible"}
ANATOMY = PeerCase(point=Point(examples=100, noise_multiplier=1.2), interval=1e-2)  # where the failure is plain


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.blowup_feasible",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scale", choices=("small", "full"), default="small")
    parser.add_argument("--output", type=Path, default=None, help="where results go; by default build/ at small scale")
    parser.add_argument("--minutes", type=float, default=None, help="begin no new run after so many minutes")
    chosen = parser.parse_args(arguments)
    scale = FULL if chosen.scale == "full" else SMALL
    folder = chosen.output or FOLDERS[chosen.scale]
    log = RunLog(folder / "runs.jsonl", minutes=chosen.minutes)
    for promise in (*scale.promises, *scale.deep, *scale.by_examples, *scale.by_prior, *scale.by_ceiling):
        log.run(promise.key(), lambda promise=promise: accountant.least_noise(promise))
    log.run({**ANATOMY.key(), "part": "anatomy"}, lambda: peer.anatomy(ANATOMY))
    asked = list(questions(scale, log))
    for one in asked:
        point = one.case.point
        log.run(one.case.key(), lambda case=one.case: peer.ask(case))
        log.run(point.key("hush"), lambda point=point: accountant.ask(point))
        if one.case.interval == scale.finest and one.noise_from == "blowup":
            log.run(
                point.key("simulation"),
                lambda point=point: accountant.simulate(point, runs=scale.simulated_runs, seed=0),
            )
    write_report(log, asked, scale, folder)
    draw(log, asked, scale, folder, anatomy=ANATOMY)


def questions(scale: Scale, log: RunLog) -> Iterator[Asked]:
    """Every case for the peer, the quick ones first, with why it is asked; those whose noise is known."""
    by_interval: dict[float, list[Asked]] = {}
    for promise in (*scale.promises, *scale.deep):
        deep = promise in scale.deep
        for noise_from in ("blowup",) if deep else ("kl", "blowup"):
            point = _point(promise, noise_from, log)
            if point is None:
                continue
            for case in _deep_cases(point, scale) if deep else _cases(point, promise, scale):
                asked = Asked(case=case, promise=promise, noise_from=noise_from)
                by_interval.setdefault(case.interval, []).append(asked)
    for sigma in scale.scan:
        for examples in (1, 100):
            case = PeerCase(point=Point(examples=examples, noise_multiplier=sigma), interval=scale.scan_interval)
            by_interval.setdefault(case.interval, []).append(Asked(case=case, promise=None, noise_from="scan"))
    for interval in sorted(by_interval, reverse=True):
        yield from by_interval[interval]


def _point(promise: Promise, noise_from: str, log: RunLog) -> Point | None:
    found = log.outcome(promise.key())
    if found is None:
        return None
    sigma = float(f"{found[noise_from]:.6g}")  # short enough to read in a key
    return Point(examples=promise.examples, noise_multiplier=sigma, prior=promise.prior)


def _cases(point: Point, promise: Promise, scale: Scale) -> Iterator[PeerCase]:
    for interval in scale.intervals:
        yield PeerCase(point=point, interval=interval)
    if promise.ceiling == 1e-3:
        yield PeerCase(point=point, interval=scale.bucket_interval, table="privacy buckets")
        yield PeerCase(point=point, interval=scale.finest)


def _deep_cases(point: Point, scale: Scale) -> Iterator[PeerCase]:
    yield PeerCase(point=point, interval=scale.scan_interval)


if __name__ == "__main__":
    main()
