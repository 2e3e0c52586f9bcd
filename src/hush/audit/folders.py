"""The run under audit: what ``hush train`` released, and what it certifies of each secret.

Where secrets stand in the examples: from a scan, from planted canaries, or from a table of the owner's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.accounting import posterior
from hush.audit.canaries import Planting
from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.plan import Plan
from hush.plan.verify import model_problem, run_differences
from hush.scan.result import Scan
from hush.storage import parquet_table, read_json

__all__ = ["CANARIES", "AuditedRun", "Places"]


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditedRun:
    """A released model with its plan and certificate. max_length: tokens to which training cut texts, if it is known.

    why_not: why nothing is certified; empty for a real certificate.
    """

    model: Path
    plan: Plan
    certificate: Certificate
    max_length: int | None
    why_not: str

    @classmethod
    def load(cls, folder: str | Path, *, plan: str | Path | None = None) -> Self:
        """The folder of a run, or its release/ alone. plan: for runs that are marked, and release none."""
        root = Path(folder)
        release = root / "release" if (root / "release").is_dir() else root
        model, stated = release / "model", release / "certificate.json"
        if not model.is_dir() or not stated.is_file():
            raise InvalidInput(f"{root} holds no finished run; pass the folder that hush train wrote (--output)")
        where = release / "plan" if plan is None else Path(plan)
        if not where.is_dir():
            raise InvalidInput(f"{where} is not there: a run that certifies nothing releases no plan; pass --plan PLAN")
        try:
            certificate = Certificate.from_dict(read_json(stated))
        except ValueError:
            raise InvalidInput(f"{stated} is not a certificate; restore it") from None
        if not isinstance(certificate.fingerprints, Mapping):
            raise InvalidInput(f"{stated} is not a certificate; restore it")
        loaded = Plan.load(where)
        _check_same(certificate, loaded, model, where)
        return cls(
            model=model,
            plan=loaded,
            certificate=certificate,
            max_length=_max_length(root / "owner" / "recipe.json"),
            why_not=_why_not(certificate, loaded),
        )

    @property
    def digest(self) -> str:
        """The model's digest, as certified."""
        return str(self.certificate.fingerprints["model"])

    def point(self, secret: int, place: int) -> tuple[float, float | None, float]:
        """Prior, certified posterior (None where nothing is certified) and ceiling of a promised point."""
        plan = self.plan
        certified = None if self.why_not else float(plan.posterior[secret, place])
        return float(plan.prior[secret, place]), certified, float(plan.ceiling[secret, place])

    def certified(self, secret: int, prior: float) -> float | None:
        """Upper bound on naming this secret from any prior; None where nothing is certified."""
        if self.why_not:
            return None
        if prior >= 1:
            return 1.0
        plan = self.plan
        rates = plan.rates[plan.incidence.examples_of(secret)]
        noise = plan.noise_multiplier
        return float(posterior(rates, noise_multiplier=noise, rounds=plan.rounds, prior=prior, bound=plan.bound))

    def secret(self, name: str) -> int:
        """The number of the secret with this id."""
        if name not in self.plan.secret_ids:  # it may be a text by mistake, so it is not repeated
            raise InvalidInput("the plan knows no secret of that id; pass what it was made from")
        return self.plan.secret_ids.index(name)

    def __repr__(self) -> str:
        return f"AuditedRun({len(self.plan.secret_ids)} secrets, {self.plan.rounds} rounds)"


def _check_same(certificate: Certificate, plan: Plan, model: Path, where: Path) -> None:
    """Refuse a model that the certificate does not name, and a plan that promises something else."""
    problem = model_problem(model, certificate.fingerprints.get("model"))
    if problem is not None:
        raise InvalidInput(f"{model} is not the model of its certificate: {problem}")
    different = run_differences(plan.certificate, certificate, same_place=False)
    if different:
        raise InvalidInput(
            f"{where} is not the plan that the run's certificate is about: they differ in {', '.join(different)}; pass "
            "that plan, or restore what was released"
        )


def _why_not(certificate: Certificate, plan: Plan) -> str:
    if certificate.marks:
        return f"the run certifies nothing: {'; '.join(certificate.marks)}"
    if plan.training_noise_multiplier != plan.noise_multiplier:
        return "a simulation: training added other noise than planned"
    return "" if plan.noise_multiplier > 0 else "training added no noise"


def _max_length(recipe: Path) -> int | None:
    """What the owner asked for; None where it was left to the model, or where the owner's side is not here."""
    if not recipe.is_file():
        return None
    try:
        kept: Any = read_json(recipe)
        length = kept.get("max_length")
    except (ValueError, AttributeError):
        raise InvalidInput(f"{recipe} is not the recipe of a run; restore it") from None
    if length is not None and (type(length) is not int or length < 1):
        raise InvalidInput(f"{recipe} states no number of tokens as max_length; restore it")
    return length


Integers = NDArray[np.int64]
CANARIES = "canaries"  # the class of all of them
COLUMNS = ("example", "secret", "begin", "end")


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Places:
    """Characters of examples at which secrets of a plan stand; -1 where nobody can say. classes: secrets by kind."""

    example: Integers
    secret: Integers
    begin: Integers
    end: Integers
    classes: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of_scan(cls, scan: Scan, ids: Sequence[str]) -> Self:
        """All that a scan can point at; ids are the plan's, in its order. Secrets of one rule make a class."""
        if scan.owner is None:
            raise InvalidInput("the scan has no owner's side, which says where secrets stand; load the whole folder")
        number_S = _numbers(scan.secrets.ids, ids)
        parts = [
            [batch.column(name).to_numpy(zero_copy_only=False) for name in COLUMNS] for batch in scan.owner.reasons()
        ]
        rules = [name for name, count in scan.rules for _ in range(count)]
        columns = [np.concatenate([part[place] for part in parts] or [np.empty(0, np.int64)]) for place in range(4)]
        columns[1] = number_S[columns[1]]
        return cls._of(columns, dict(zip(number_S.tolist(), rules, strict=True)))

    @classmethod
    def of_canaries(cls, planting: Planting, ids: Sequence[str]) -> Self:
        """Every example of every canary."""
        canaries, candidates = planting.canaries, planting.candidates
        number_S = _numbers([canary.id for canary in canaries], ids).tolist()
        rows = [
            (example, number, len(canary.template.before), len(candidates.text(canary.truth)))
            for number, canary in zip(number_S, canaries, strict=True)
            for example in canary.examples
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        table[:, 3] += table[:, 2]
        return cls._of(list(table.T), dict.fromkeys(number_S, CANARIES))

    @classmethod
    def read(cls, path: str | Path, ids: Sequence[str]) -> Self:
        """A Parquet table of the owner's: example, secret (its id), begin, end."""
        table = parquet_table(path, columns=COLUMNS)
        if not set(COLUMNS) <= set(table.column_names):
            raise InvalidInput(f"{path} lacks some of the columns {', '.join(COLUMNS)}; add them")
        columns: list[Integers] = []
        for name in COLUMNS:
            column = table.column(name)
            if column.null_count or (name != "secret" and not pa.types.is_integer(column.type)):
                raise InvalidInput(f"{path}: the column {name} must hold whole numbers, none missing")
            columns.append(_numbers(column.to_pylist(), ids) if name == "secret" else column.to_numpy())
        return cls._of(columns, {})

    @classmethod
    def _of(cls, columns: Sequence[NDArray[np.integer]], classes: Mapping[int, str]) -> Self:
        example, secret, begin, end = (np.asarray(column, dtype=np.int64) for column in columns)
        return cls(example=example, secret=secret, begin=begin, end=end, classes=classes)

    def with_(self, other: "Places") -> "Places":
        """These and others."""
        columns = [np.concatenate([getattr(self, name), getattr(other, name)]) for name in COLUMNS]
        return Places._of(columns, {**self.classes, **other.classes})

    def __len__(self) -> int:
        return len(self.example)

    def __repr__(self) -> str:
        return f"Places({len(self)} places)"


def _numbers(names: Sequence[str], ids: Sequence[str]) -> Integers:
    """The plan's numbers of these secrets."""
    number_of = {name: number for number, name in enumerate(ids)}
    missing = sum(name not in number_of for name in names)
    if missing:  # not repeated: a name that is unknown may be a text by mistake
        raise InvalidInput(
            f"{missing} of {len(names)} secrets are not in the plan; audit with what the plan was made from"
        )
    return np.array([number_of[name] for name in names], dtype=np.int64)
