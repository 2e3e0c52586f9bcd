"""A run as one release of a chain: its ledger, which releases were before it, and what they saw of its data.

Without the section ``releases`` of the config there is no ledger, and a run is a release by itself. With it the scan
takes its ids from the ledger, the plan is made after all releases that are entered there, the training is entered
before its first round, and what is released holds the plans before it, so that anybody can verify the chain.

The plan of a training that was entered stays: a run that is started again resumes it. For another training, which the
owner asks for, a plan is made after all entries, including that one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hush.errors import InvalidInput, Setting
from hush.incidence import Incidence
from hush.keys import FINGERPRINT_BYTES
from hush.ledger import Entry, Ledger
from hush.ledger.history import History, compared
from hush.ledger.ledger import plan_digest
from hush.ledger.spending import shares_left, spending_of
from hush.numbers import counted
from hush.plan import Plan
from hush.run.config import Config
from hush.run.folder import RunPaths
from hush.run.job import RunJob
from hush.run.trainings import check_further, earlier_trainings, removed_training
from hush.scan.identities import Identities
from hush.secret_table import Secrets

if TYPE_CHECKING:
    from hush.audit.canaries import CanarySet
    from hush.report.page import Section

__all__ = [
    "begin_training",
    "canaries_are_known",
    "check_apart",
    "check_asked",
    "check_begins",
    "check_history",
    "enter_finished",
    "enter_release",
    "enter_rounds",
    "has_releases",
    "is_further",
    "is_planned_for",
    "keep_canaries",
    "known_canaries",
    "ledger_folder",
    "ledger_of",
    "left_in_ledger",
    "own_entry",
    "plans_before",
    "register_scan",
    "rows_of_scan",
    "scan_is_registered",
    "sections_of_chain",
    "trainings_before",
]


def ledger_folder(config: Config) -> Path | None:
    """The folder of the ledger that a config names; None without the section releases."""
    asked = config.releases
    return None if asked is None else config.folder / Path(asked.ledger).expanduser()


def check_apart(config: Config, paths: RunPaths) -> None:
    """Refuse a ledger inside the data or inside the folder of the run, which a new release may replace or outlive."""
    folder = ledger_folder(config)
    if folder is None:
        return
    source = Path(config.source)
    for place, what in ((source, "the data"), (paths.root, "the folder of the run")):
        if place.is_dir() and folder.resolve().is_relative_to(place.resolve()):
            raise InvalidInput(f"{folder} lies inside {what}, {place}; name a folder elsewhere", setting="ledger")


def ledger_of(job: RunJob, *, create: bool = True) -> Ledger | None:
    """The ledger as it is now; None if the config names none, or without ``create`` if there is none yet."""
    folder = ledger_folder(job.config)
    if folder is None or not (create or Ledger.is_at(folder)):
        return None
    return Ledger.load_or_create(folder, job.key.id) if create else Ledger.load(folder, key=job.key.id)


def has_releases(config: Config) -> bool:
    """Whether trainings are entered in the ledger of a config."""
    folder = ledger_folder(config)
    return folder is not None and Ledger.is_at(folder) and bool(Ledger.load(folder).entries)


def check_begins(config: Config, paths: RunPaths, asked: bool) -> None:
    """Refuse to begin a run of a chain that has releases already in a folder without a plan, unless it is asked for."""
    folder = ledger_folder(config)
    if folder is not None and not asked and not (paths.plan / "plan.json").is_file() and has_releases(config):
        _refuse_another(Ledger.load(folder))


def _refuse_another(ledger: Ledger) -> NoReturn:
    raise InvalidInput(
        f"the ledger {ledger.folder} has {counted(len(ledger.entries), 'release')}, and this would be another one; if "
        "that is what you want, pass ",
        Setting("new_release"),
        ": it is planned after all of them",
    )


def left_in_ledger(config: Config) -> dict[str, Any] | None:
    """What the ledger of a config says before a run: releases begun and announced, and what secrets have left."""
    folder, asked = ledger_folder(config), config.releases
    if folder is None or asked is None:
        return None
    count = None if asked.series is None else asked.series.count
    share = None if asked.filter is None else asked.filter.share
    empty = {"begun": 0, "count": count, "share": share, "least_left": 1.0, "open": list[int](), "secrets": 0}
    if not Ledger.is_at(folder):
        return empty
    ledger = Ledger.load(folder)
    if not ledger.entries:
        return empty
    last = ledger.plan(ledger.entries[-1])
    return {
        **empty,
        "begun": len(ledger.entries),
        "count": None if last.chain is None else last.chain.count,
        "least_left": float(shares_left(last).min(initial=1.0)),
        "open": [entry.number for entry in ledger.entries if entry.is_open],
        "secrets": len(last.secret_ids),
    }


# --- the scan


def register_scan(job: RunJob, identities: Identities | None) -> None:
    """Enter the secrets of a scan into the ledger, if there is one."""
    ledger = ledger_of(job)
    if ledger is not None and identities is not None:
        ledger.register(identities)


def scan_is_registered(job: RunJob) -> bool:
    """Whether the saved scan gives every secret the id that the ledger has for it; True without a ledger."""
    from hush.scan.result import Scan

    ledger = ledger_of(job, create=False)
    if ledger is None:
        return ledger_folder(job.config) is None
    identities = Scan.load(job.paths.scan).identities
    return (
        identities is not None
        and ledger.identities.agrees(identities)
        and not (identities.by_identity.keys() - ledger.identities.by_identity.keys())
    )


def rows_of_scan(job: RunJob) -> NDArray[np.uint8]:
    """The keyed fingerprint of each example of the scan, (N, 32) bytes."""
    from hush.scan.result import Scan

    scan = Scan.load(job.paths.scan)
    parts: list[bytes] = []
    for batch in () if scan.owner is None else scan.owner.examples("fingerprint"):
        parts += batch.column("fingerprint").to_pylist()
    return np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(-1, FINGERPRINT_BYTES)


# --- canaries, which are the same in every release of a chain


def known_canaries(job: RunJob) -> "CanarySet | None":
    """The canaries of the earlier releases; None before the first, or without a ledger."""
    from hush.audit.canaries import read_canaries

    ledger = ledger_of(job)
    return None if ledger is None or not ledger.canaries.is_file() else read_canaries(ledger.canaries)


def trainings_before(job: RunJob) -> list[Path]:
    """The folders of earlier releases of the chain that hold a model, oldest first."""
    ledger = ledger_of(job, create=False)
    entry = None if ledger is None else own_entry(ledger, job)
    if ledger is None or entry is None:
        return []
    folders = [Path(other.training) for other in ledger.entries if other.number < entry.number]
    return [folder for folder in folders if (folder / "release" / "model").is_dir()]


def keep_canaries(job: RunJob) -> None:
    """Keep the canaries that were planted first in the ledger."""
    ledger = ledger_of(job)
    if ledger is not None:
        ledger.keep_canaries(job.paths.canaries / "owner" / "canaries.json")


def canaries_are_known(job: RunJob) -> bool:
    """Whether the planted canaries are those of the ledger; True without a ledger."""
    from hush.audit.canaries import read_canaries

    ledger = ledger_of(job, create=False)
    if ledger is None:
        return ledger_folder(job.config) is None
    planted = read_canaries(job.paths.canaries)
    return ledger.canaries.is_file() and read_canaries(ledger.canaries).id == planted.id


# --- the plan


def own_entry(ledger: Ledger, job: RunJob) -> Entry | None:
    """The entry of the plan that lies in the folder of the run."""
    if not (job.paths.plan / "plan.json").is_file():
        return None
    return ledger.entry_of(plan_digest(job.paths.plan))


def is_planned_for(ledger: Ledger, job: RunJob, training: Path) -> bool:
    """Whether the plan in the folder of the run is that of this training, or is still the next of the chain."""
    entry = own_entry(ledger, job)
    if entry is not None:
        return entry.is_training(training)
    plan = Plan.load(job.paths.plan)
    if plan.chain is None or plan.chain.predecessors != tuple(entry.plan for entry in ledger.entries):
        return False
    stated = {name: set(each) for name, each in plan.chain.ancestors.items() if each}
    return stated == {name: set(each) for name, each in ledger.ancestors_of(plan.secret_ids).items()}


def chain_arguments(
    config: Config, ledger: Ledger, before: Sequence[Path], ids: Sequence[str], history: History
) -> dict[str, Any]:
    """Arguments of ``make_plan`` for the release of a chain after these plans."""
    asked = config.releases
    if asked is None:
        return {}
    uncovered = tuple({each.secret: None for each in history.uncovered})
    return {
        "series": asked.series,
        "filter": asked.filter,
        "after": before,
        "ancestors": ledger.ancestors_of(ids),
        "uncovered": uncovered,
    }


def entered_plan(ledger: Ledger, job: RunJob, made: Plan) -> Plan:
    """The plan of the run's own entry, if the one that was made now is the same; otherwise the one made now.

    Refuses another plan for a training that was entered, unless the owner asked for another release.
    """
    entry = own_entry(ledger, job)
    if entry is None or job.new_release:
        return made
    known = Plan.load(job.paths.plan)
    if plan_identity(known) != plan_identity(made):
        raise InvalidInput(
            f"data, rules or settings changed since release {entry.number} began, whose plan and training are in "
            f"{job.paths.root}. Undo the change to keep them; or, for another release with what is there now, pass ",
            Setting("new_release"),
        )
    return known


def plan_identity(plan: Plan) -> list[Any]:
    """What makes two plans the same training: everything but the time they were made."""
    numbers = [plan.noise_multiplier, plan.noise_scale, plan.rounds, plan.batch_size, plan.clip_norm, plan.bound]
    return [numbers, sorted(plan.certificate.fingerprints.items())]


def plans_before(ledger: Ledger, job: RunJob) -> tuple[Path, ...]:
    """The plans after which the next plan of this run is made.

    All that are entered, if the owner asked for another release; otherwise those before the run's own, so that a stage
    that is done again arrives at the same plan.
    """
    entry = own_entry(ledger, job)
    _check_all_entered(ledger, job)
    if job.new_release:
        ledger.check_no_other_open()
        return ledger.predecessors()
    if entry is not None:
        return ledger.predecessors(before=entry)
    if ledger.entries:
        _refuse_another(ledger)
    return ()


def _check_all_entered(ledger: Ledger, job: RunJob) -> None:
    """Refuse a folder with a training that released something and is not in the ledger: nothing accounts for it."""
    entered = {Path(entry.training).name for entry in ledger.entries}
    unknown = [folder for folder in earlier_trainings(job.paths, job.record) if folder.name not in entered]
    if unknown:
        raise InvalidInput(
            f"{unknown[0]} holds a training that the ledger {ledger.folder} never saw, so that no plan would account "
            "for it; name a new folder for this run. A chain promises nothing about releases outside of its ledger: if "
            "that model is in use, begin the chain with its plan instead (hush plan)"
        )


# --- the training


def is_further(job: RunJob, folder: Path) -> bool:
    """Whether a training would be another release that the owner has not asked for yet."""
    ledger = ledger_of(job, create=False)
    if ledger is not None:
        entry = own_entry(ledger, job)
        return bool(ledger.entries) and (entry is None or not entry.is_training(folder))
    if folder == removed_training(job.paths, job.record):
        return True
    others = earlier_trainings(job.paths, job.record)
    return bool(others) and folder not in others and folder.name not in job.record.allowed


def check_asked(job: RunJob) -> None:
    """Refuse another release, unless the owner asked for it."""
    ledger = ledger_of(job, create=False)
    others = earlier_trainings(job.paths, job.record)
    if ledger is not None and not job.new_release:
        others = others or [Path(ledger.entries[-1].training)]
    check_further(others, job.new_release, chained=ledger is not None)


def begin_training(job: RunJob, training: Path) -> str | None:
    """Enter the training of the run's plan before its first round; returns the plan's digest. None without a ledger."""
    ledger = ledger_of(job)
    if ledger is None:
        return None
    ledger.begin(job.paths.plan, training, rows_of_scan(job))
    return plan_digest(job.paths.plan)


def enter_rounds(job: RunJob, digest: str) -> None:
    """Note that a round of the training is done."""
    ledger = ledger_of(job)
    if ledger is not None:
        ledger.advance(digest, rounds=True)


def enter_finished(job: RunJob, training: Path) -> None:
    """Note that the training is finished, and lay the earlier plans beside its model."""
    ledger = ledger_of(job)
    entry = None if ledger is None else own_entry(ledger, job)
    if ledger is None or entry is None:
        return
    ledger.lay_beside(entry, training / "release")
    if entry.state == "started":
        ledger.advance(entry.plan, state="finished", rounds=True)


def enter_release(job: RunJob) -> None:
    """Note that what the run released lies where it may leave the owner's hands."""
    ledger = ledger_of(job)
    entry = None if ledger is None else own_entry(ledger, job)
    if ledger is not None and entry is not None and entry.state != "released":
        ledger.advance(entry.plan, state="released")


def sections_of_chain(job: RunJob) -> "tuple[Section, ...]":
    """What the owner's report says of the releases up to this one; nothing without a ledger."""
    from hush.report.releases import ledger_section

    ledger = ledger_of(job)
    entry = None if ledger is None else own_entry(ledger, job)
    if ledger is None or entry is None:
        return ()
    return (ledger_section(spending_of(ledger, until=entry), job.outputs("plan").get("history", [])),)


# --- the data


def check_history(job: RunJob, ledger: Ledger, entries: int) -> History:
    """Compare the scan with the first ``entries`` releases; refuse secrets that stood unprotected in one of them."""
    secrets = Secrets.from_parquet(job.paths.scan / "public" / "secrets.parquet")
    incidence = Incidence.from_parquet(job.paths.scan / "public" / "incidence.parquet")
    history = compared(ledger, incidence, secrets.ids, rows_of_scan(job), entries=entries)
    asked = job.config.releases
    if history.uncovered and asked is not None and asked.uncovered == "refuse":
        raise InvalidInput(
            f"{history.uncovered_sentence}. Those trainings did not protect them there, and no later plan can. If a "
            "secret is an earlier one under a new id, say so by ",
            Setting("merge"),
            " (hush ledger); take the rows out of the data if nobody may learn more of them; or accept that the "
            "promise does not hold for what the earlier releases show of these secrets, by ",
            Setting("uncovered"),
            ": state",
            setting="uncovered",
        )
    return history
