"""The earlier releases of a chain: their plans by digest, and what each secret was and spent in them.

Secrets are matched by id. What an earlier plan states is what was released under it: its rates, its noise and its
rounds count, whatever became of the model. A secret that is in a later plan under another id, or merged from several,
names its earlier ids as ancestors.

Legend: S secrets of this release, Q promised points of a secret, R releases.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self, final

import numpy as np
from numpy.typing import NDArray

from hush.accounting.moments import log_moments
from hush.accounting.sampling_error import reserve, room_left
from hush.arrays import Array
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.numbers import counted
from hush.plan.chain import Chain, Filter, Series
from hush.plan.files import RELEASES, changed_files, is_release, read_fields, read_record
from hush.plan.plan import Plan
from hush.storage import whole_folder

__all__ = ["EARLIER", "Earlier", "History", "copy_earlier", "earlier_beside", "plan_folder"]

EARLIER = "earlier"  # folder of a release, or beside a plan, that holds the plans of the releases before: 0001, 0002, …
MAX_NAMED = 3  # secrets that an error message names

Indices = NDArray[np.int64]


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Earlier:
    """The plan of an earlier release, and the digest of its plan.json."""

    plan: Plan
    digest: str

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """From the folder of a plan, of a release, or of a run. Guarantee: every file has the digest in plan.json."""
        place = plan_folder(Path(folder))
        record = read_record(place)
        changed = changed_files(place, record)
        if changed:
            raise InvalidInput(f"{place}: {', '.join(changed)} changed after the plan was written; restore it")
        return cls(plan=Plan(**read_fields(place, record)), digest=record["digest"])

    @classmethod
    def all_of(cls, releases: Iterable["Earlier | str | Path"]) -> "tuple[Earlier, ...]":
        """Each of them, loaded where it is a folder."""
        return tuple(one if isinstance(one, Earlier) else cls.load(one) for one in releases)


def plan_folder(folder: Path) -> Path:
    """The folder of the plan that this folder is, or of the release or run that it is."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is not a folder; pass one that hush plan, hush train or hush run wrote")
    for place in (folder, *(folder / name for name in RELEASES)):
        if is_release(place):
            return place / "plan"
    return folder if (folder / "plan.json").exists() or not (folder / "plan").is_dir() else folder / "plan"


def earlier_beside(folder: Path) -> list[Path]:
    """The plans of earlier releases that lie in ``earlier/`` of a release or beside a plan, in order."""
    place = (folder if is_release(folder) else folder.absolute().parent) / EARLIER
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


def copy_earlier(releases: Sequence[str | Path], folder: str | Path) -> None:
    """Copy the plans of these releases, in order, to ``earlier/0001`` and so on in a folder: nothing else of them."""
    for number, release in enumerate(releases, start=1):
        place = plan_folder(Path(release))
        with whole_folder(Path(folder) / EARLIER / f"{number:04d}") as work:
            for name in ("plan.json", *read_record(place)["digests"]):
                shutil.copyfile(place / name, work / name)


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class History:
    """The secrets of a release and the releases before it. Build with ``of``.

    last_S: the last earlier release that lists each secret, -1 for none; row_S: its row there. ancestors: closed.
    uncovered: the secrets that an earlier release did not protect in some of its examples, as stated now or before.
    """

    earlier: tuple[Earlier, ...]
    ids: tuple[str, ...]
    ancestors: Mapping[str, tuple[str, ...]]
    last_S: Indices
    row_S: Indices
    uncovered: tuple[str, ...]

    @classmethod
    def of(
        cls,
        earlier: tuple[Earlier, ...],
        ids: tuple[str, ...],
        ancestors: Mapping[str, Sequence[str]] | None,
        uncovered: Sequence[str] = (),
    ) -> Self:
        """The history of these secrets. Guarantee: the earlier releases are one chain, in order, none missing."""
        _check_is_chain(earlier)
        last_S, row_S = np.full(len(ids), -1), np.full(len(ids), -1)
        for number, one in enumerate(earlier):
            rows = _rows(one.plan, ids)
            last_S[rows >= 0], row_S[rows >= 0] = number, rows[rows >= 0]
        closed = _closed(earlier, ids, {} if ancestors is None else ancestors)
        unknown = set(uncovered) - set(ids)
        if unknown:
            raise InvalidInput(f"{counted(len(unknown), 'id')} of uncovered secrets are not secrets of this plan")
        stated = {*uncovered, *(name for one in earlier if one.plan.chain for name in one.plan.chain.uncovered)}
        return cls(
            earlier=earlier,
            ids=ids,
            ancestors=closed,
            last_S=last_S,
            row_S=row_S,
            uncovered=tuple(name for name in ids if not stated.isdisjoint((name, *closed.get(name, ())))),
        )

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Of the earlier plans."""
        return tuple(one.digest for one in self.earlier)

    @cached_property
    def chain(self) -> Chain | None:
        """That of the last release."""
        return self.earlier[-1].plan.chain if self.earlier else None

    @cached_property
    def joins_S(self) -> NDArray[np.bool_]:
        """The secrets that have other ancestors than in their last release: what is behind them is added up again."""
        joins_S = np.array([bool(self.ancestors.get(name)) for name in self.ids], dtype=bool)
        for secret in np.flatnonzero((self.last_S >= 0) & joins_S).tolist():
            chain = self.earlier[int(self.last_S[secret])].plan.chain
            before = () if chain is None else chain.ancestors.get(self.ids[secret], ())
            joins_S[secret] = before != self.ancestors[self.ids[secret]]
        return joins_S

    def carried(self, wanted: type[Series] | type[Filter]) -> NDArray[np.bool_]:
        """The secrets whose numbers in their last release go on as they are: listed under a chain of this kind."""
        of_kind = [one.plan.chain is not None and isinstance(one.plan.chain.kind, wanted) for one in self.earlier]
        return (self.last_S >= 0) & ~self.joins_S & np.array([*of_kind, False])[self.last_S]

    def has_other_share(self, share: float) -> NDArray[np.bool_]:
        """The secrets for which a filter's share was another one in their last release, or in any after it.

        Such a share may have been chosen by looking at models that saw the secret, also if the secret was not in the
        release that changed it. For a new secret only the last release counts.
        """
        kinds = [None if one.plan.chain is None else one.plan.chain.kind for one in self.earlier]
        other_R = [isinstance(kind, Filter) and kind.share != share for kind in kinds]
        since_R = np.logical_or.accumulate(np.array([*other_R, False], dtype=bool)[::-1])[::-1]
        newest = max(len(other_R) - 1, 0)
        return np.asarray(since_R[np.where(self.last_S >= 0, self.last_S, newest)])

    def gather(self, carried_S: NDArray[np.bool_], name: str, into: Array) -> Array:
        """An array of the chain of each carried secret's last release, row by row; the others keep their row."""
        for number, one in enumerate(self.earlier):
            here = np.flatnonzero(carried_S & (self.last_S == number))
            if here.size and one.plan.chain is not None:
                into[here] = getattr(one.plan.chain.kind, name)[self.row_S[here]]
        return into

    def raised(self, prior_SQ: Array, ceiling_SQ: Array) -> tuple[str, ...]:
        """The ids whose ceiling is higher than before; an error if any prior is another one.

        Guarantee: every secret that was there before is promised from the same priors.
        """
        raised_S = np.zeros(len(self.ids), dtype=bool)
        for number, one in enumerate(self.earlier):
            here = np.flatnonzero(self.last_S == number)
            if not here.size:
                continue
            rows, plan = self.row_S[here], one.plan
            same = plan.prior.shape[1] == prior_SQ.shape[1] and np.array_equal(plan.prior[rows], prior_SQ[here])
            if not same:
                changed = here
                if plan.prior.shape[1] == prior_SQ.shape[1]:
                    changed = here[(plan.prior[rows] != prior_SQ[here]).any(axis=1)]
                raise InvalidInput(
                    f"the priors of {self.named(changed)} are not those of release {number + 1}; in a chain a secret "
                    "keeps its priors: state them as before (its ceiling may be raised), or, if it is another secret, "
                    "give it a new id"
                )
            raised_S[here] = (ceiling_SQ[here] > plan.ceiling[rows]).any(axis=1)
            before = set(() if plan.chain is None else plan.chain.raised)
            if before:
                raised_S[here] |= [self.ids[secret] in before for secret in here.tolist()]
        return tuple(self.ids[secret] for secret in np.flatnonzero(raised_S).tolist())

    def named(self, secrets: Indices) -> str:
        """How many secrets, and the first of them by their ids."""
        first = ", ".join(self.ids[secret] for secret in secrets[:MAX_NAMED].tolist())
        more = " …" if secrets.size > MAX_NAMED else ""
        return f"{counted(int(secrets.size), 'secret')} ({first}{more})"

    def names_in_past(self, secret: int) -> tuple[str, ...]:
        """The ids under which a secret's examples were listed earlier."""
        return (self.ids[secret], *self.ancestors.get(self.ids[secret], ()))

    def past_limits(self, secrets: Indices) -> Array:
        """The limits of these secrets in the earlier releases, those of ancestors added: a column for each release."""
        limit_SR = np.zeros((secrets.size, len(self.earlier)))
        for number, one in enumerate(self.earlier):
            kind = _series_of(one)
            row_of = dict(zip(one.plan.secret_ids, range(len(one.plan.secret_ids)), strict=True))
            for place, secret in enumerate(secrets.tolist()):
                rows = [row_of[name] for name in self.names_in_past(secret) if name in row_of]
                total = float(kind.limit_SR[rows, number].sum()) if rows else 0.0
                # Terms of one sign: each addition costs at most EPS of the sum (E5).
                limit_SR[place, number] = total * (1 + 2.0**-52 * len(rows)) if len(rows) > 1 else total
        return limit_SR

    def past_moments(
        self, secrets: Indices, order_SQ: Array, conceded_SQ: Array, *, below_SQ: Array | None = None
    ) -> Array:
        """The log-moments that the earlier releases spent on these secrets at these orders, rounded up.

        conceded_SQ: what each release may concede beside them. below_SQ: where their sum is not below this, secrets
        that are drawn about equally often share no bound.
        """
        total_SQ = self._past_moments(secrets, order_SQ, conceded_SQ, alone=False)
        over = np.empty(0, np.int64) if below_SQ is None else np.flatnonzero((total_SQ > below_SQ).any(axis=1))
        if over.size:
            alone_SQ = self._past_moments(secrets[over], order_SQ[over], conceded_SQ[over], alone=True)
            total_SQ[over] = np.minimum(total_SQ[over], alone_SQ)
        return total_SQ

    def _past_moments(self, secrets: Indices, order_SQ: Array, conceded_SQ: Array, *, alone: bool) -> Array:
        total_SQ = np.zeros(order_SQ.shape)
        for one in self.earlier:
            moment_SQ = log_moments(
                joined_graph(one.plan, [self.names_in_past(secret) for secret in secrets.tolist()]),
                rates=one.plan.rates,
                noise_multiplier=one.plan.noise_multiplier,
                rounds=one.plan.rounds,
                order=order_SQ,
                conceded=conceded_SQ,
                below=0.0 if alone else None,
            )
            total_SQ = np.where(moment_SQ > 0, np.nextafter(total_SQ + moment_SQ, np.inf), total_SQ)
        return total_SQ


def joined_graph(plan: Plan, names_S: Sequence[tuple[str, ...]]) -> Incidence:
    """The graph of a plan with a secret for each of these lists of ids: its examples are those of all of them."""
    row_of = dict(zip(plan.secret_ids, range(len(plan.secret_ids)), strict=True))
    graph = plan.incidence
    rows_S = [[row_of[name] for name in names if name in row_of] for names in names_S]
    single = np.array([secret for secret, rows in enumerate(rows_S) if len(rows) == 1], dtype=np.int64)
    row = np.array([rows[0] for rows in rows_S if len(rows) == 1], dtype=np.int64)
    size = graph.examples_per_secret[row]
    first = np.cumsum(size) - size
    place = np.repeat(graph.offset_S[row] - first, size) + np.arange(int(size.sum()))
    examples: list[NDArray[np.integer]] = [graph.example_of_entry[place]]
    secrets: list[NDArray[np.int64]] = [np.repeat(single, size)]
    for secret, rows in enumerate(rows_S):
        if len(rows) > 1:
            listed = np.unique(np.concatenate([graph.examples_of(one) for one in rows]))
            examples.append(listed)
            secrets.append(np.full(listed.size, secret))
    return Incidence.from_pairs(
        np.concatenate(examples),
        np.concatenate(secrets),
        num_examples=graph.num_examples,
        num_secrets=len(names_S),
    )


def room_of_release(plan: Plan) -> float:
    """What computed draws and noise of a release without a chain are taken to have added at most.

    Its run was refused if they could lift a posterior above its ceiling; a plan that comes close to no ceiling is taken
    to have stayed within what every plan leaves to them, which the certificate states as an assumption.
    """
    drawn_S = plan.drawn_secrets
    return min(room_left(plan.posterior[drawn_S], plan.ceiling[drawn_S]), reserve(plan.prior, plan.ceiling))


def _series_of(one: Earlier) -> Series:
    if one.plan.chain is None or not isinstance(one.plan.chain.kind, Series):
        raise InvalidInput("an earlier plan is not one of a series; a series is announced before its first release")
    return one.plan.chain.kind


def _rows(plan: Plan, ids: tuple[str, ...]) -> Indices:
    """The row of each id in a plan, -1 where it is not listed."""
    if plan.secret_ids == ids:
        return np.arange(len(ids))
    row_of = dict(zip(plan.secret_ids, range(len(plan.secret_ids)), strict=True))
    return np.array([row_of.get(name, -1) for name in ids], dtype=np.int64)


def _check_is_chain(earlier: tuple[Earlier, ...]) -> None:
    digests = tuple(one.digest for one in earlier)
    for number, one in enumerate(earlier, start=1):
        chain = one.plan.chain
        if one.plan.noise_scale != 1:
            raise InvalidInput(
                f"release {number} is a simulation: its noise was scaled, so nothing can be promised after it; start "
                "with a release that certifies something"
            )
        if chain is None and number == 1:
            continue
        stated = () if chain is None else chain.predecessors
        if chain is None or stated != digests[: number - 1]:
            missing = [digest for digest in stated if digest not in digests]
            wrong = f"it names {missing[0]}, which is not given" if missing else "it names other releases before it"
            raise InvalidInput(
                f"release {number} ({digests[number - 1][:16]}…) does not follow the {number - 1} before it: {wrong}; "
                "pass all releases of the chain, in order"
            )
    kinds = {type(one.plan.chain.kind) for one in earlier if one.plan.chain is not None}
    if len(kinds) > 1 or (Series in kinds and earlier[0].plan.chain is None):
        raise InvalidInput("the earlier releases are of a series and of a filter; a chain is one or the other")


def _closed(
    earlier: tuple[Earlier, ...], ids: tuple[str, ...], stated: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """The ancestors of each id, with those of ancestors, and those of earlier plans."""
    unknown = stated.keys() - set(ids)
    if unknown:
        raise InvalidInput(
            f"ancestors are stated for {len(unknown)} ids that are no secrets of this release; drop them"
        )
    before: dict[str, set[str]] = {}
    known: set[str] = set()
    for one in earlier:
        known.update(one.plan.secret_ids)
        for name, names in (one.plan.chain.ancestors if one.plan.chain is not None else {}).items():
            before.setdefault(name, set()).update(names)
    strangers = {name for names in stated.values() for name in names} - known
    if strangers:
        raise InvalidInput(
            f"{len(strangers)} ancestors are in no earlier plan ({', '.join(sorted(strangers)[:MAX_NAMED])}); "
            "name ids of secrets of earlier releases"
        )
    closed: dict[str, tuple[str, ...]] = {}
    for name in (stated.keys() | before.keys()) & set(ids):
        waiting, found = [name], {name}
        while waiting:
            one = waiting.pop()
            parents = before.get(one, set()) | set(stated.get(one, ()))
            waiting += parents - found
            found |= parents
        closed[name] = tuple(sorted(found - {name}))
    return {name: names for name, names in closed.items() if names}
