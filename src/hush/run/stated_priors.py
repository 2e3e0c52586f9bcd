"""Before a run plans: are the priors of rules that hide spans below what can be guessed without the trained model?

The guessers of ``hush prior`` run on the scan of the run, and with them the model that the run starts from, if it is
one with weights: it is what an adversary brings along who knows how the model was made. The figures go to owner/ of
the scan, beside what was measured from; a run that plans again for the same scan and model does not guess again.
"""

import json

from hush.errors import InvalidInput
from hush.run.job import RunJob
from hush.run.stage_train import model_fingerprint, model_path
from hush.slots import spans_in
from hush.storage import read_json, whole_file

__all__ = ["check_stated_priors"]


MODEL_SECONDS = 120.0  # that the base model guesses, loading it not counted


def check_stated_priors(job: RunJob) -> None:
    """Refuse rules that hide spans with a prior below what can be guessed. The message is for the owner."""
    from hush.audit.prior import check_known_priors, measure_priors, stated_priors_of_scan
    from hush.scan.result import PRIOR_FILE, Scan

    if spans_in(job.paths.scan) is None:
        return
    model = _guessing_model(job)
    settings = [job.config.stated_rules, None if model is None else model_fingerprint(job)]
    measured_from = job.fingerprint(job.outputs("scan"), settings)
    path = job.paths.scan / "owner" / PRIOR_FILE
    known = read_json(path) if path.is_file() else {}
    if known.get("measured_from") != measured_from:
        scan = Scan.load(job.paths.scan)
        stated = stated_priors_of_scan(scan, job.config.rules)
        check_known_priors(stated)
        measured = measure_priors(
            scan.spans,
            scan.incidence,
            job.scanned().texts(),
            scan.secrets,
            stated,
            model=model,
            model_seconds=MODEL_SECONDS,
            device=job.config.training.device,
            progress=lambda done, total: job.watch.work("Guessing slots", done, total),
        )
        known = measured.record() | {"measured_from": measured_from}
        with whole_file(path, owner_only=True) as file:
            file.write((json.dumps(known, indent=2) + "\n").encode())
    if known["refused"]:
        raise InvalidInput("\n".join(known["refusals"]))


def _guessing_model(job: RunJob) -> str | None:
    """The model that the run starts from; None if its weights are random, or if it needs several devices."""
    if job.config.model.name is None:
        return None
    if job.config.training.shard:
        job.watch.notice(
            "the base model did not guess the slots, since it is sharded over several processes; measure with "
            "`hush prior` and this model on a machine that holds it"
        )
        return None
    return model_path(job)
