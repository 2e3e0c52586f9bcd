"""Stage 6, the audit: attacks on a trained model, compared with what was certified. Exceeding it means a bug.

statistics         exact confidence limits, multiple comparisons, excess over a baseline
mechanism          the optimal attack on the simulated worst case of a secret, in one release or several;
                   mechanism_kernels: its compiled loop
reconstruction     attacks on the iterates of many small trainings, to test the trainer itself
game               scan, skeletons, plan and training attacked as a whole, on many small models, to test slots
models, sequences  language models under audit; the token sequences and prompts that are tried on them
extraction         greedy and (n, p)-discoverable extraction from causal models; fill_in: the same for masked models
canaries           planted secrets with known candidates; exposure: their ranks among them, by one or several models;
                   scores: of canaries and of others, for attacks of other tools
prior/             how well slots can be guessed without the model: a lower limit on the prior
verdict            attempts judged against the certified bounds; headline: the verdict in a few sentences
folders, session   the run under audit and the spans of its secrets; one audit in progress, and its folder
attacks            the table of attacks: mechanism, extraction (extraction_audit), exposure
auditor            a complete audit of a run; record: its report

Names load on first use, so that importing this package is light.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hush.audit.auditor import audit
    from hush.audit.canaries import Template, plant, plant_again, read_canaries
    from hush.audit.extraction import discover, extract
    from hush.audit.fill_in import fill_in
    from hush.audit.mechanism import MechanismAttack, attack_joint_mechanism, attack_mechanism
    from hush.audit.models import load_subject
    from hush.audit.prior import check_priors, measure_priors
    from hush.audit.reconstruction import attack_runs
    from hush.audit.scores import export_scores
    from hush.audit.statistics import Success, exceeded, excess_over_held_out, excess_over_reference, holm_adjusted
    from hush.audit.verdict import Verdict, judge

__all__ = [
    "MechanismAttack",
    "Success",
    "Template",
    "Verdict",
    "attack_joint_mechanism",
    "attack_mechanism",
    "attack_runs",
    "audit",
    "check_priors",
    "discover",
    "exceeded",
    "excess_over_held_out",
    "excess_over_reference",
    "export_scores",
    "extract",
    "fill_in",
    "holm_adjusted",
    "judge",
    "load_subject",
    "measure_priors",
    "plant",
    "plant_again",
    "read_canaries",
]

_HOME = {
    "MechanismAttack": "hush.audit.mechanism",
    "Success": "hush.audit.statistics",
    "Template": "hush.audit.canaries",
    "Verdict": "hush.audit.verdict",
    "attack_joint_mechanism": "hush.audit.mechanism",
    "attack_mechanism": "hush.audit.mechanism",
    "attack_runs": "hush.audit.reconstruction",
    "audit": "hush.audit.auditor",
    "check_priors": "hush.audit.prior",
    "discover": "hush.audit.extraction",
    "exceeded": "hush.audit.statistics",
    "excess_over_held_out": "hush.audit.statistics",
    "excess_over_reference": "hush.audit.statistics",
    "export_scores": "hush.audit.scores",
    "extract": "hush.audit.extraction",
    "fill_in": "hush.audit.fill_in",
    "holm_adjusted": "hush.audit.statistics",
    "judge": "hush.audit.verdict",
    "load_subject": "hush.audit.models",
    "measure_priors": "hush.audit.prior",
    "plant": "hush.audit.canaries",
    "plant_again": "hush.audit.canaries",
    "read_canaries": "hush.audit.canaries",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'hush.audit' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
