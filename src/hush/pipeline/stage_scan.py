"""Who contains which secret, by the rules; then, if the audit asks for canaries, those planted after the examples."""

from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, final

import numpy as np

from hush.console import counted
from hush.incidence import Incidence
from hush.keyed import DataKey
from hush.pipeline.folder import discard
from hush.pipeline.job import Job
from hush.pipeline.record import StageName
from hush.pipeline.stage_data import file_rows, unread_files
from hush.plan.invariants import promises_fingerprint
from hush.protection import promise_arrays
from hush.scan.rule_kinds import LiteralsRule
from hush.secret_table import Secrets

if TYPE_CHECKING:
    from hush.scan.result import Scan

__all__ = ["CanariesStage", "ScanStage"]

PLACE = ("example", "secret", "begin", "end")


@final
class ScanStage:
    """``hush scan``, with its review page."""

    name: StageName = "scan"
    needs: tuple[StageName, ...] = ("data",)

    def settings(self, job: Job) -> Any:
        config = job.config
        files = [rule.file for rule in config.rules.rules if isinstance(rule, LiteralsRule) and rule.file is not None]
        literals = job.key.fingerprint_rows(file_rows([(name, config.rules.path(name)) for name in files]))
        data = config.data
        return [config.stated_rules, literals, data.column, data.unit, data.id_column, data.skip_bad]

    def run(self, job: Job) -> dict[str, Any]:
        from hush.scan.review import write_review
        from hush.scan.run import scan

        config, notices = job.config, []
        found = scan(
            config.source,
            config.rules,
            column=config.data.column,
            unit=config.data.unit,
            id_column=config.data.id_column,
            key=job.key,
            skip_bad=config.data.skip_bad,
            workers=config.data.workers,
            progress=lambda done, total: job.watch.work("Scanning", done, total),
            notice=notices.append,
        )
        notices += _odd(found)
        notices += [] if config.rules.about_code else unread_files(config.source)
        for notice in notices:
            job.watch.notice(notice)

        def review(owner: Path) -> None:
            write_review(found, owner / "review.html", source=config.source, notices=notices)

        if job.paths.scan.exists():
            discard(job.paths.scan)  # whatever it is, the record knows nothing good of it
        found.save(job.paths.scan, also=review)
        return {
            "fingerprint": job.fingerprint(*_identity(found.incidence, found.secrets), found.data_fingerprint),
            "data_fingerprint": found.data_fingerprint,
            "places": _places(found, job.key),
            "examples": found.incidence.num_examples,
            "secrets": found.incidence.num_secrets,
            "pairs": found.incidence.num_entries,
            "skipped": found.skipped,
            "notices": notices,  # for the end of every later run, too: it may not scan again
        }

    def is_there(self, job: Job) -> bool:
        return (job.paths.scan / "public" / "summary.json").is_file()


@final
class CanariesStage:
    """``hush canaries``: the true ones are drawn once, by the system, and never again for the same scan."""

    name: StageName = "canaries"
    needs: tuple[StageName, ...] = ("scan",)

    def settings(self, job: Job) -> Any:
        return job.canaries.model_dump()

    def run(self, job: Job) -> dict[str, Any]:
        from hush.audit.canaries import Template, plant, templates_from
        from hush.audit.canary_files import save_planted
        from hush.audit.candidates import Candidates

        wanted, corpus, public = job.canaries, job.scanned(), job.paths.scan / "public"
        incidence = Incidence.from_parquet(public / "incidence.parquet")
        secrets = Secrets.from_parquet(public / "secrets.parquet")
        if wanted.templates is None:
            holds_N = np.asarray(incidence.secrets_per_example > 0)
            templates = templates_from(corpus.texts(), holds_N, wanted.count, SystemRandom())
        else:
            templates = [Template.parse(text) for text in wanted.templates]
        planted = plant(
            incidence,
            secrets,
            templates,
            Candidates.of_format(wanted.alphabet, wanted.length),
            count=wanted.count,
            repeats=wanted.repeats,
            ceiling=wanted.ceiling,
        )
        discard(job.paths.canaries)
        save_planted(planted, corpus, job.paths.canaries)
        fingerprint = job.key.fingerprint_rows(job.corpus().texts())
        return {
            "fingerprint": job.fingerprint(*_identity(planted.incidence, planted.secrets), fingerprint),
            "data_fingerprint": fingerprint,
            "canaries": wanted.count,
            "examples": planted.incidence.num_examples,
            "secrets": planted.incidence.num_secrets,
        }

    def is_there(self, job: Job) -> bool:
        return (job.paths.canaries / "owner" / "canaries.json").is_file()


def _odd(found: "Scan") -> list[str]:
    """What a scan says in its tables, and a run would pass over: rules that found nothing, rows that were left out."""
    said = [
        f"rule {rule['rule']}: no example holds a secret of it; if you know one that does, mend the rule"
        for rule in found.summary()["rules"]
        if not rule["secrets_found"]
    ]
    if found.skipped:
        said.append(f"left out, since they cannot be read: {counted(found.skipped, 'row')}")
    return said


def _places(found: "Scan", key: DataKey) -> str:
    """The fingerprint of where secrets stand: no plan depends on it, but the audit attacks there."""
    batches = () if found.owner is None else found.owner.reasons()
    return key.fingerprint_rows(batch.column(name).to_numpy().tobytes() for batch in batches for name in PLACE)


def _identity(incidence: Incidence, secrets: Secrets) -> tuple[str, str]:
    prior_SQ, ceiling_SQ = promise_arrays(secrets.prior, secrets.ceiling, len(secrets))
    return incidence.fingerprint, promises_fingerprint(secrets.ids, prior_SQ, ceiling_SQ)
