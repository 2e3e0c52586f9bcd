"""The rehearsal as a whole: search settings for hush, then train all three ways several times and say what to expect.

Why it costs no promise (docs/proofs.md): everything here is a function of the graph, the slots, the promises, public
text and seeds. The class :class:`~hush.rehearse.content.PublicContent` is all that it is given of the data. Who plays
a secret is chosen by the graph, a rule and a seed, and the final figures are measured on documents that the search
neither trains nor judges on.

A folder of the owner keeps everything needed to resume: the study of the search, the ordinary trainings while they are
needed, and each finished repeat. Different inputs get a folder of their own below it.

Tries and repeats are independent of each other, so an engine of a scan can spread them (:mod:`hush.scan.engines`): each
is then one task, made elsewhere from the same inputs.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from hush import __version__
from hush.errors import InfeasiblePlan, InvalidInput
from hush.numbers import checked_size
from hush.plan import Plan
from hush.plan.plan import fingerprint
from hush.rehearse.cast import Cast, Split, choose_cast, split_documents
from hush.rehearse.conclusion import concluded
from hush.rehearse.content import PublicContent
from hush.rehearse.outcome import ORDINARY_MARGIN, OUTCOME, Arm, Outcome, Reached
from hush.rehearse.scaled import Scale, replanned, scale_for, stage_plan
from hush.rehearse.search import Choice, Evaluated, Search, stated_choice
from hush.rehearse.settings import RehearsalSettings
from hush.scan.engines import Engine
from hush.storage import clear_leftovers, discard, read_json, whole_file
from hush.train.settings import Recipe, Runtime, learns_first

if TYPE_CHECKING:
    from hush.rehearse.arms import ArmLosses, Stage, Workbench

__all__ = ["rehearse"]


SEARCH_SHARE = 0.6  # of the minutes, after which no further settings are tried
MIN_TRIES = 2  # the stated settings and others
SPARE = 0.8  # of the minutes: what the scale is chosen for; evaluations and planning take the rest
ON_SEARCH = 0  # which repeat is that of the search, in seeds

OnWork = Callable[[str, int, int], None]


def _silent(label: str, done: int, total: int) -> None:
    pass


def rehearse(
    plan: Plan,
    content: PublicContent,
    recipe: Recipe,
    *,
    folder: str | Path,
    settings: RehearsalSettings | None = None,
    keep: float | None = None,
    runtime: Runtime | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    at_once: int = 1,
    progress: OnWork | None = None,
) -> Outcome:
    """Rehearse a training on public content: which settings, and what to expect of dropping, redacting and hush.

    keep: the share kept that the plan's noise was computed for, if the search may change it; only for plans whose
    noise was computed. progress gets a label, what is done and the total. folder
    stays with the owner; a rehearsal that was killed resumes there, and a finished one is read. engine: where tries and
    repeats are made, by default in this process; at_once: how many settings the search chooses together.

    Guarantee: no promise is spent. The result depends on the plan's graph, slots and promises, on content, seed and
    at_once; the same inputs give the same result on the same machine, unless the budget is in minutes.
    """
    settings = settings or RehearsalSettings()
    if keep is not None and plan.capacity != "accounted":
        raise InvalidInput("the share kept is for plans with accounted capacities; leave it out", setting="keep")
    if checked_size("at_once", at_once) < 1:
        raise InvalidInput("pass a whole number of at least 1", setting="at_once", value=at_once)
    inputs = _Inputs(
        plan=plan,
        content=content,
        recipe=recipe,
        settings=settings,
        keep=keep,
        runtime=runtime or Runtime(),
        seed=seed,
        at_once=at_once,
    )
    place = Path(folder) / inputs.identity
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.chmod(0o700)
    if (place / OUTCOME).is_file():
        return Outcome.load(place / OUTCOME)
    clear_leftovers(place, recursive=True)
    rehearsal = _Rehearsal(inputs, place, engine, progress or _silent)
    outcome = rehearsal.run()
    outcome.store(place / OUTCOME)
    return outcome


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class _Inputs:
    """What a rehearsal depends on. It can be pickled, for tasks of an engine."""

    plan: Plan
    content: PublicContent
    recipe: Recipe
    settings: RehearsalSettings
    keep: float | None
    runtime: Runtime
    seed: int
    at_once: int

    @property
    def identity(self) -> str:
        """All of it as a name; the runtime does not count."""
        plan, content = self.plan, self.content
        numbers = [plan.rounds, plan.batch_size, plan.clip_norm, plan.noise_multiplier, plan.bound, plan.capacity]
        slots = None if plan.slots is None else plan.slots.fingerprint
        graph = [plan.incidence.fingerprint, slots, plan.promises_fingerprint, fingerprint(b"weights", plan.weights)]
        data = [plan.data_fingerprint, plan.skeleton_fingerprint, content.digest]
        settings = [self.recipe.model_dump(), self.settings.model_dump(), self.keep, self.seed, self.at_once]
        parts = [__version__, numbers, graph, data, *settings]
        return blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


@final
class _Rehearsal:
    """One rehearsal in progress."""

    def __init__(self, inputs: _Inputs, folder: Path, engine: Engine | None, progress: OnWork) -> None:
        self._inputs, self._folder, self._engine, self._progress = inputs, folder, engine, progress
        self._plan, self._content, self._recipe = inputs.plan, inputs.content, inputs.recipe
        self._settings, self._seed = inputs.settings, inputs.seed
        self._split: Split = split_documents(inputs.content, seed=inputs.seed)
        self._slotted = inputs.plan.slots is not None
        self._stated = stated_choice(inputs.plan, inputs.recipe, keep=inputs.keep)
        self._plans: dict[tuple[float, int, float | None], Plan | None] = {}
        self._begin = time.monotonic()

    @cached_property
    def bench(self) -> "Workbench":
        """The model, loaded when it is needed."""
        from hush.rehearse.arms import Workbench

        slots = self._plan.slots
        return Workbench(self._recipe, self._inputs.runtime, () if slots is None else slots.rules)

    def run(self) -> Outcome:
        """Search, repeat, conclude."""
        choice, scale, tried = self._searched()
        records = list(self._repeats(choice, scale))
        before = self._before()
        discard(self._folder / "ordinary")
        return concluded(
            self._plan,
            self._content,
            [_losses_of(record) for record in records],
            like_share=float(np.mean([record["like_share"] for record in records])),
            before=before,
            patch=choice.patch(self._stated),
            tried=tried,
            scale=scale,
        )

    # ---- the search ----

    def _searched(self) -> tuple[Choice, Scale, Any]:
        """The settings that won, and the scale at which they were compared."""
        cast = self._cast(ON_SEARCH)
        stage = self._stage(cast, ON_SEARCH)
        start = stage.ordinary(stage.start, self._recipe, self._steps("Learning what is public"))
        scale = self._scale(stage, cast)
        search = Search(
            self._folder / "search.sqlite",
            self._stated,
            allowed=(1 + ORDINARY_MARGIN) * start.ordinary.mean,
            seed=self._seed,
            most_batch=self._most_batch,
        )
        try:
            while (done := len(search.finished)) < self._settings.tries and not self._search_is_over(search, done):
                label = "Trying settings"
                self._progress(label, done, self._settings.tries)
                at_once = min(self._inputs.at_once, self._settings.tries - done)
                search.step(lambda choices: self._evaluated(stage, cast, choices, scale), at_once=at_once)
            return search.best, scale, search.tried
        finally:
            search.close()

    def _search_is_over(self, search: Search, done: int) -> bool:
        minutes = self._settings.minutes
        return (
            minutes is not None
            and done >= MIN_TRIES
            and search.seconds > SEARCH_SHARE * 60 * minutes * self._inputs.at_once
        )

    def _evaluated(self, stage: "Stage", cast: Cast, choices: Sequence[Choice], scale: Scale) -> Iterable[Evaluated]:
        if self._engine is None:
            return (self._try(stage, cast, choice, scale) for choice in choices)
        return self._engine.map(_Try(self._inputs, self._folder, scale), choices)

    def try_anew(self, choice: Choice, scale: Scale) -> Evaluated:
        """One try of the search, in a process that has done nothing else."""
        cast = self._cast(ON_SEARCH)
        return self._try(self._stage(cast, ON_SEARCH), cast, choice, scale)

    def _try(self, stage: "Stage", cast: Cast, choice: Choice, scale: Scale) -> Evaluated:
        begin = time.monotonic()
        losses = self._hush(stage, cast, choice, scale, ON_SEARCH, None)
        means = None if losses is None else (losses.ordinary.mean, losses.like.mean)
        return means, time.monotonic() - begin

    def _hush(
        self,
        stage: "Stage",
        cast: Cast,
        choice: Choice,
        scale: Scale,
        number: int,
        on_step: Callable[[int, int], None] | None,
    ) -> "ArmLosses | None":
        """hush with these settings; None if there is no plan for them."""
        real = self._planned(choice)
        if real is None:
            return None
        plan = stage_plan(real, cast, scale, clip_norm=choice.clip_norm).plan
        optimizer = self._recipe.optimizer
        recipe = choice.recipe(
            self._recipe,
            rate_factor=scale.learning_rate_factor(optimizer),
            rounds_factor=plan.rounds / self._stated.rounds,
        )
        return stage.private(recipe, plan, seed=self._seed_of(number), on_step=on_step)

    def _planned(self, choice: Choice) -> Plan | None:
        """The real plan with these settings, made once; None where no plan keeps the promises."""
        keep = None if choice.keep == self._stated.keep else choice.keep
        same = (choice.batch_size, choice.rounds) == (self._stated.batch_size, self._stated.rounds)
        key = (choice.batch_size, choice.rounds, keep if same else choice.keep)
        if key not in self._plans:
            try:
                self._plans[key] = replanned(self._plan, batch_size=key[0], rounds=key[1], keep=key[2])
            except InfeasiblePlan:
                self._plans[key] = None
        return self._plans[key]

    @property
    def _most_batch(self) -> float:
        """The largest batch that rates of at most 1 allow; 0 where other batches would need settings not known here."""
        if self._stated.keep is None and self._plan.capacity != "none":
            return 0.0
        drawn = self._plan.weights[self._plan.weights > 0]
        return float(drawn.sum() / drawn.max())

    def _scale(self, stage: "Stage", cast: Cast) -> Scale:
        """The scale of private rounds that the budget allows; kept, so that a resumed rehearsal uses the same."""
        path = self._folder / "scale.json"
        if path.is_file():
            return Scale(**read_json(path))
        trainings = self._settings.tries + self._settings.seeds
        scale = scale_for(self._plan, self._settings.share / trainings)
        if self._settings.minutes is not None:
            least, begin = scale_for(self._plan, 0.0), time.monotonic()
            spent = begin - self._begin  # on what is public; every repeat spends as much, for two ways
            self._hush(stage, cast, self._stated, least, ON_SEARCH, None)
            speed = least.batch * least.rounds / (time.monotonic() - begin)
            left = 60 * self._settings.minutes * SPARE - spent * (1 + 2 * self._settings.seeds)
            scale = scale_for(self._plan, max(0.0, left * speed / trainings))
        with whole_file(path, owner_only=True) as file:
            file.write(json.dumps(asdict(scale)).encode())
        return scale

    # ---- repeats ----

    def _repeats(self, choice: Choice, scale: Scale) -> Iterator[dict[str, Any]]:
        """What ``repeated`` gives for every repeat; those that are finished are read from the folder."""
        total = self._settings.seeds
        numbers = [n for n in range(1, total + 1) if not self._path(n).is_file()]
        made: Iterable[Mapping[str, Any]]
        if self._engine is None or not numbers:
            made = (self.repeated(choice, scale, number) for number in numbers)
        else:
            made = self._engine.map(_Repeat(self._inputs, self._folder, scale, choice), numbers)
        for number, record in zip(numbers, made, strict=True):
            if self._engine is not None:
                self._progress("Repeating with other players", number, total)
            with whole_file(self._path(number), owner_only=True) as file:
                file.write(json.dumps(record).encode())
            shutil.rmtree(self._ordinary(number), ignore_errors=True)
        for number in range(1, total + 1):
            yield read_json(self._path(number))

    def repeated(self, choice: Choice, scale: Scale, number: int) -> dict[str, Any]:
        """All three ways with players, examples and noise of their own, as plain data."""
        from hush.rehearse.arms import DROPPING, REDACTING, ArmLosses

        cast_of_roles = self._cast(number)
        stage = self._stage(cast_of_roles, number)
        recipe = choice.recipe(self._recipe, rate_factor=1.0, rounds_factor=1.0)
        total = self._settings.seeds
        arms: dict[Arm, ArmLosses] = {
            "dropping": stage.ordinary(DROPPING, recipe, self._steps(f"Dropping, {number} of {total}")),
            "redacting": stage.ordinary(REDACTING, recipe, self._steps(f"Redacting, {number} of {total}")),
        }
        hush = self._hush(stage, cast_of_roles, choice, scale, number, self._steps(f"hush, {number} of {total}"))
        if hush is None:
            raise InfeasiblePlan("no plan keeps the promises with the settings of the config; lower batch_size")
        arms["hush"] = hush
        like_share = stage.slot_share if self._slotted else self._bearing_share
        return {"arms": {arm: asdict(losses) for arm, losses in arms.items()}, "like_share": like_share}

    def _path(self, number: int) -> Path:
        return self._folder / f"repeat-{number}.json"

    def _before(self) -> dict[str, float]:
        """The losses of the model to begin with, on the documents of the search."""
        losses = self._stage(self._cast(ON_SEARCH), ON_SEARCH).before()
        return {"ordinary": losses.ordinary.mean, "like": losses.like.mean}

    def _cast(self, number: int) -> Cast:
        """Who plays what: the search never sees the documents of the final figures."""
        split = self._split
        if number == ON_SEARCH:
            train, judged = split.train, split.search
        else:
            train, judged = np.sort(np.concatenate([split.train, split.search])), split.final
        seed = (self._seed, number)
        return choose_cast(self._plan, self._content, train, judged, roles=self._settings.roles, seed=seed)

    def _stage(self, cast_of_roles: Cast, number: int) -> "Stage":
        from hush.rehearse.arms import Stage

        scale = scale_for(self._plan, 1.0)
        redacting = stage_plan(self._plan, cast_of_roles, scale).redacting
        return Stage(
            self.bench,
            self._content,
            cast_of_roles,
            redacting,
            slotted=self._slotted,
            learns_first=learns_first(self._recipe.public_first, self._content.available),
            free_share=1 - self._bearing_share,
            folder=self._ordinary(number),
            seed=self._seed_of(number),
        )

    def _ordinary(self, number: int) -> Path:
        return self._folder / "ordinary" / str(number)

    def _seed_of(self, number: int) -> int:
        return int(np.random.default_rng([self._seed, number, 3]).integers(2**31))

    @property
    def _bearing_share(self) -> float:
        return float(np.mean(self._plan.incidence.secrets_per_example > 0))

    def _steps(self, label: str) -> Callable[[int, int], None]:
        return lambda done, total: self._progress(label, done, total)


# ---- tasks of an engine ----


@contextmanager
def _elsewhere(inputs: _Inputs, folder: Path) -> Iterator[_Rehearsal]:
    """The rehearsal in another process. It uses finished ordinary trainings where it can see the folder."""
    with tempfile.TemporaryDirectory(prefix="hush-rehearsal-") as name:
        work = Path(name)
        for outcome in folder.glob("ordinary/*/*/outcome.json"):
            training = outcome.parent
            link = work / training.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(training.resolve(), target_is_directory=True)
        yield _Rehearsal(inputs, work, None, _silent)


@final
@dataclass(frozen=True)
class _Try:
    inputs: _Inputs
    folder: Path
    scale: Scale

    def __call__(self, choice: Choice) -> Evaluated:
        with _elsewhere(self.inputs, self.folder) as rehearsal:
            return rehearsal.try_anew(choice, self.scale)


@final
@dataclass(frozen=True)
class _Repeat:
    inputs: _Inputs
    folder: Path
    scale: Scale
    choice: Choice

    def __call__(self, number: int) -> dict[str, Any]:
        with _elsewhere(self.inputs, self.folder) as rehearsal:
            return rehearsal.repeated(self.choice, self.scale, number)


def _losses_of(record: Mapping[str, Any]) -> "dict[Arm, ArmLosses]":
    from hush.rehearse.arms import ArmLosses

    return {
        arm: ArmLosses(ordinary=Reached(**losses["ordinary"]), like=Reached(**losses["like"]))
        for arm, losses in record["arms"].items()
    }
