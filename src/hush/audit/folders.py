"""What an audit reads from folders: the run under audit with its certificate, and the spans of secrets in its data.

:class:`AuditedRun` is what ``hush train`` released, checked against its certificate, and what it certifies of each
secret. If its plan is one of a chain of releases, what is certified is about all of them, and the plans of the earlier
ones belong to it. :class:`SecretSpans` says at which characters of which examples secrets stand: from a scan, from
planted canaries, or from a table of the owner's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hush.accounting import posterior
from hush.accounting.sampling_error import with_sampling_error
from hush.arrays import Array
from hush.audit.canaries import CanarySet
from hush.certificate import Certificate
from hush.errors import InvalidInput, Setting
from hush.plan import Plan
from hush.plan.earlier import Earlier, earlier_beside
from hush.plan.files import read_record
from hush.plan.verify import model_problem, run_differences
from hush.scan.result import Scan
from hush.storage import parquet_table, read_json

__all__ = ["CANARY_CLASS", "AuditedRun", "SecretSpans", "UsedRelease"]


CANARY_CLASS = "canaries"  # the class that all canaries are judged in
SPAN_COLUMNS = ("example", "secret", "begin", "end")


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class UsedRelease:
    """What one release used on one secret: the rates of the secret's examples, the noise that was added, the rounds."""

    rates: Array
    noise_multiplier: float
    rounds: int


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditedRun:
    """A released model with its plan and certificate.

    plan_digest: identifies the plan in a chain. max_length: tokens to which training truncated texts, if known.
    uncertified_reason: why nothing is certified; empty for a real certificate. earlier: the earlier releases of its
    chain, all of them, in order; none without a chain.
    """

    model: Path
    plan: Plan
    plan_digest: str
    certificate: Certificate
    max_length: int | None
    uncertified_reason: str
    earlier: tuple[Earlier, ...] = ()
    _rows: tuple[Mapping[str, int], ...] = field(init=False)  # of each earlier plan: the row of an id

    def __post_init__(self) -> None:
        rows = tuple({name: row for row, name in enumerate(one.plan.secret_ids)} for one in self.earlier)
        object.__setattr__(self, "_rows", rows)

    @classmethod
    def load(cls, folder: str | Path, *, plan: str | Path | None = None, after: Sequence[str | Path] = ()) -> Self:
        """Load the folder of a run, or its release/ alone.

        plan: the plan's folder, needed only for a run that certifies nothing and therefore releases no plan. after:
        folders of earlier releases of its chain, or of their plans, where the release holds no copies of them.
        """
        root = Path(folder)
        release = root / "release" if (root / "release").is_dir() else root
        model, certificate_path = release / "model", release / "certificate.json"
        if not model.is_dir() or not certificate_path.is_file():
            raise InvalidInput(f"{root} holds no finished run; pass the folder that hush train wrote")
        plan_folder = release / "plan" if plan is None else Path(plan)
        if not plan_folder.is_dir():
            raise InvalidInput(
                f"{plan_folder} does not exist, and a run that certifies nothing releases no plan; pass the folder of "
                "its plan as ",
                Setting("plan"),
            )
        try:
            certificate = Certificate.from_dict(read_json(certificate_path))
        except ValueError:
            raise InvalidInput(f"{certificate_path} is not a certificate; restore it") from None
        if not isinstance(certificate.fingerprints, Mapping):
            raise InvalidInput(f"{certificate_path} is not a certificate; restore it")
        loaded = Plan.load(plan_folder)
        _check_certificate(certificate, loaded, model, plan_folder)
        return cls(
            model=model,
            plan=loaded,
            plan_digest=str(read_record(plan_folder)["digest"]),
            certificate=certificate,
            max_length=_recipe_max_length(root / "owner" / "recipe.json"),
            uncertified_reason=_uncertified_reason(certificate, loaded),
            earlier=_earlier_releases(loaded, [*earlier_beside(release), *earlier_beside(plan_folder), *after]),
        )

    @property
    def digest(self) -> str:
        """The model's digest, as certified."""
        return str(self.certificate.fingerprints["model"])

    def promised_point(self, secret: int, point: int) -> tuple[float, float | None, float]:
        """Prior, certified posterior (None where nothing is certified) and ceiling of a promised point."""
        plan = self.plan
        certified = None if self.uncertified_reason else self._of_run(float(plan.posterior[secret, point]))
        return float(plan.prior[secret, point]), certified, float(plan.ceiling[secret, point])

    def certified_posterior(self, secret: int, prior: float) -> float | None:
        """Upper bound on the chance of naming this secret from any prior; None where nothing is certified."""
        if self.uncertified_reason:
            return None
        if prior >= 1:
            return 1.0
        plan = self.plan
        if plan.chain is not None:  # about all releases of the chain
            priors = np.array([[prior]])
            return self._of_run(float(plan.chain.posterior(np.array([secret]), priors, bound=plan.bound)[0, 0]))
        rates = plan.rates[plan.incidence.examples_of(secret)]
        noise = plan.noise_multiplier
        after = posterior(rates, noise_multiplier=noise, rounds=plan.rounds, prior=prior, bound=plan.bound)
        return self._of_run(float(after))

    def used_on(self, secret: int) -> list[UsedRelease]:
        """What the releases of its chain used on a secret: earlier ones that draw it, oldest first, and this one.

        In earlier releases the examples of the secret's ancestors count as its own.
        """
        name, chain = self.plan.secret_ids[secret], self.plan.chain
        names = (name, *(() if chain is None else chain.ancestors.get(name, ())))
        used = [
            _used(one.plan, [row_of[known] for known in names if known in row_of])
            for one, row_of in zip(self.earlier, self._rows, strict=True)
        ]
        return [*(release for release in used if release.rates.any()), _used(self.plan, [secret])]

    def with_models(self, releases: Sequence["AuditedRun"]) -> "tuple[AuditedRun, ...]":
        """These releases in the order of the chain, oldest first; an error if one is no earlier release of it."""
        if self.plan.chain is None and releases:
            raise InvalidInput(
                "the plan is about one release alone, so nothing is certified of its model together with others; make "
                "the plan of the next release after those before it (hush.plan), or drop ",
                Setting("earlier"),
            )
        place_of = {one.digest: place for place, one in enumerate(self.earlier)}
        places = [place_of.get(release.plan_digest, -1) for release in releases]
        if -1 in places or len(set(places)) < len(places):
            raise InvalidInput(
                f"of the {len(places)} models of earlier releases, {places.count(-1)} are of no earlier release of "
                "this chain, or one is given twice; pass each earlier release once as ",
                Setting("earlier"),
            )
        return tuple(releases[at] for at in np.argsort(places).tolist())

    def _of_run(self, planned: float) -> float:
        """A posterior of the plan plus what computed draws and noise add; a run of 0.1.0 does not state that."""
        error = self.certificate.sampling_error
        return float(planned) if error is None else float(with_sampling_error(planned, error))

    def secret_index(self, secret_id: str) -> int:
        """The index in the plan of the secret with this id."""
        if secret_id not in self.plan.secret_ids:  # the message omits the id, which may be a secret's text by mistake
            raise InvalidInput("the plan has no secret with that id; pass what the plan was made from")
        return self.plan.secret_ids.index(secret_id)

    def __repr__(self) -> str:
        return f"AuditedRun({len(self.plan.secret_ids)} secrets, {self.plan.rounds} rounds)"


def _used(plan: Plan, secrets: Sequence[int]) -> UsedRelease:
    """What a release used on these secrets, taken as one."""
    listed = [plan.incidence.examples_of(secret) for secret in secrets]
    examples = listed[0] if len(listed) == 1 else np.unique(np.concatenate([np.empty(0, np.int64), *listed]))
    return UsedRelease(rates=plan.rates[examples], noise_multiplier=plan.training_noise_multiplier, rounds=plan.rounds)


def _earlier_releases(plan: Plan, folders: Sequence[str | Path]) -> tuple[Earlier, ...]:
    """The earlier releases that a plan names, in its order, from folders in any order."""
    if plan.chain is None:
        return ()
    found = {release.digest: release for release in Earlier.all_of(folders)}
    digests = plan.chain.predecessors
    missing = [number for number, digest in enumerate(digests, start=1) if digest not in found]
    if missing:
        raise InvalidInput(
            f"the plan is release {plan.chain.number} of a chain, and release {missing[0]} is not given "
            f"({digests[missing[0] - 1][:16]}…); pass the folders of all earlier releases as ",
            Setting("earlier"),
        )
    return tuple(found[digest] for digest in digests)


def _check_certificate(certificate: Certificate, plan: Plan, model: Path, plan_folder: Path) -> None:
    """Refuse a model that the certificate does not name, and a plan that promises something else."""
    problem = model_problem(model, certificate.fingerprints.get("model"))
    if problem is not None:
        raise InvalidInput(f"{model} is not the model of its certificate: {problem}")
    different = run_differences(plan, plan.certificate, certificate, same_place=False)
    if different:
        raise InvalidInput(
            f"{plan_folder} is not the plan that the run's certificate is about: they differ in "
            f"{', '.join(different)}; pass that plan, or restore what was released"
        )


def _uncertified_reason(certificate: Certificate, plan: Plan) -> str:
    if certificate.marks:
        return f"the run certifies nothing: {'; '.join(certificate.marks)}"
    if plan.training_noise_multiplier != plan.noise_multiplier:
        return "a simulation: training added a different noise than planned"
    return "" if plan.noise_multiplier > 0 else "training added no noise"


def _recipe_max_length(recipe: Path) -> int | None:
    """The max_length that the owner asked for; None where it was left to the model, or where there is no recipe."""
    if not recipe.is_file():
        return None
    try:
        record: Any = read_json(recipe)
        length = record.get("max_length")
    except (ValueError, AttributeError):
        raise InvalidInput(f"{recipe} is not the recipe of a run; restore it") from None
    if length is not None and (type(length) is not int or length < 1):
        raise InvalidInput(f"{recipe}: max_length is not a number of tokens; restore the file")
    return length


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class SecretSpans:
    """Spans of characters of examples at which the plan's secrets stand, one entry a span.

    begin, end: characters, end exclusive; -1 where unknown. classes: the class of each secret, by its index in the
    plan.
    """

    example: NDArray[np.int64]
    secret: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    classes: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of_scan(cls, scan: Scan, ids: Sequence[str]) -> Self:
        """All spans that a scan found; ids are the plan's, in its order. The secrets of one rule form a class."""
        if scan.owner is None:
            raise InvalidInput(
                "the scan lacks its owner's side, which holds the spans; load the whole folder of the scan"
            )
        index_S = _secret_indices(scan.secrets.ids, ids)
        batches = [
            [batch.column(name).to_numpy(zero_copy_only=False) for name in SPAN_COLUMNS]
            for batch in scan.owner.reasons()
        ]
        rules = [name for name, count in scan.rules for _ in range(count)]
        columns = [
            np.concatenate([batch[column] for batch in batches] or [np.empty(0, np.int64)])
            for column in range(len(SPAN_COLUMNS))
        ]
        columns[1] = index_S[columns[1]]
        return cls._of_columns(columns, dict(zip(index_S.tolist(), rules, strict=True)))

    @classmethod
    def of_canaries(cls, planting: CanarySet, ids: Sequence[str]) -> Self:
        """The span of every canary in each of its examples."""
        canaries, candidates = planting.canaries, planting.candidates
        indices = _secret_indices([canary.id for canary in canaries], ids).tolist()
        rows = [
            (example, index, len(canary.template.before), len(candidates.text(canary.truth)))
            for index, canary in zip(indices, canaries, strict=True)
            for example in canary.examples
        ]
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        table[:, 3] += table[:, 2]
        return cls._of_columns(list(table.T), dict.fromkeys(indices, CANARY_CLASS))

    @classmethod
    def read(cls, path: str | Path, ids: Sequence[str]) -> Self:
        """Read the owner's Parquet table with the columns example, secret (its id), begin and end."""
        table = parquet_table(path, columns=SPAN_COLUMNS)
        if not set(SPAN_COLUMNS) <= set(table.column_names):
            raise InvalidInput(f"{path} lacks some of the columns {', '.join(SPAN_COLUMNS)}; add them")
        columns: list[NDArray[np.int64]] = []
        for name in SPAN_COLUMNS:
            column = table.column(name)
            if column.null_count or (name != "secret" and not pa.types.is_integer(column.type)):
                raise InvalidInput(f"{path}: the column {name} must hold whole numbers, none missing")
            columns.append(_secret_indices(column.to_pylist(), ids) if name == "secret" else column.to_numpy())
        return cls._of_columns(columns, {})

    @classmethod
    def _of_columns(cls, columns: Sequence[NDArray[np.integer]], classes: Mapping[int, str]) -> Self:
        example, secret, begin, end = (np.asarray(column, dtype=np.int64) for column in columns)
        return cls(example=example, secret=secret, begin=begin, end=end, classes=classes)

    def with_(self, other: "SecretSpans") -> "SecretSpans":
        """These spans and the other ones."""
        columns = [np.concatenate([getattr(self, name), getattr(other, name)]) for name in SPAN_COLUMNS]
        return SecretSpans._of_columns(columns, {**self.classes, **other.classes})

    def __len__(self) -> int:
        return len(self.example)

    def __repr__(self) -> str:
        return f"SecretSpans({len(self)} spans)"


def _secret_indices(names: Sequence[str], ids: Sequence[str]) -> NDArray[np.int64]:
    """The plan's indices of the secrets with these ids."""
    index_of = {secret_id: index for index, secret_id in enumerate(ids)}
    missing = sum(name not in index_of for name in names)
    if missing:  # the message omits the names: an unknown one may be a secret's text by mistake
        raise InvalidInput(
            f"{missing} of {len(names)} secrets are not in the plan; audit with what the plan was made from"
        )
    return np.array([index_of[name] for name in names], dtype=np.int64)
