"""The rehearsal as a whole: search settings for hush, then train all three ways several times and say what to expect.

Why it costs no promise (docs/proofs.md): everything here is a function of the graph, the slots, the promises, public
text and seeds. The class :class:`~hush.rehearse.content.PublicContent` is all that it is given of the data. Who plays
a secret is chosen by the graph, a rule and a seed, and the final figures are measured on documents that the search
neither trains nor judges on.

A folder of the owner keeps everything needed to resume: the study of the search, the ordinary trainings while they are
needed, and each finished repeat. Different inputs get a folder of their own below it.
"""

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np

from hush import __version__
from hush.errors import InfeasiblePlan, InvalidInput
from hush.plan import Plan
from hush.plan.make import held_out_examples
from hush.plan.plan import fingerprint
from hush.rehearse.cast import Cast, Split, choose_cast, split_documents
from hush.rehearse.content import PublicContent
from hush.rehearse.outcome import (
    ARMS,
    ORDINARY_MARGIN,
    OUTCOME,
    Arm,
    ArmForecast,
    Difference,
    Outcome,
    Reached,
    decide,
    difference,
    forecast_interval,
)
from hush.rehearse.scaled import Scale, described, replanned, scale_for, stage_plan
from hush.rehearse.search import Choice, Losses, Search, stated_choice
from hush.rehearse.settings import RehearsalSettings
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
Repeat = Mapping[Arm, "ArmLosses"]


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
    progress: OnWork | None = None,
) -> Outcome:
    """Rehearse a training on public content: which settings, and what to expect of dropping, redacting and hush.

    keep: the share kept that the plan's noise was computed for, if the search may change it; only for plans whose
    noise was computed. progress gets a label, what is done and the total. folder
    stays with the owner; a rehearsal that was killed resumes there, and a finished one is read.

    Guarantee: no promise is spent. The result depends on the plan's graph, slots and promises, on content and seed; the
    same inputs give the same result on the same machine, unless the budget is in minutes.
    """
    settings = settings or RehearsalSettings()
    if keep is not None and plan.capacity != "accounted":
        raise InvalidInput("the share kept is for plans with accounted capacities; leave it out", setting="keep")
    identity = _identity(plan, content, recipe, settings, keep, seed)
    place = Path(folder) / identity
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.chmod(0o700)
    if (place / OUTCOME).is_file():
        return Outcome.load(place / OUTCOME)
    clear_leftovers(place, recursive=True)
    rehearsal = _Rehearsal(
        plan,
        content,
        recipe,
        place,
        settings,
        keep,
        runtime or Runtime(),
        seed,
        progress or _silent,
    )
    outcome = rehearsal.run()
    outcome.store(place / OUTCOME)
    return outcome


def _identity(
    plan: Plan,
    content: PublicContent,
    recipe: Recipe,
    settings: RehearsalSettings,
    keep: float | None,
    seed: int,
) -> str:
    """What a rehearsal depends on, as a name."""
    numbers = [plan.rounds, plan.batch_size, plan.clip_norm, plan.noise_multiplier, plan.bound, plan.capacity]
    slots = None if plan.slots is None else plan.slots.fingerprint
    graph = [plan.incidence.fingerprint, slots, plan.promises_fingerprint, fingerprint(b"weights", plan.weights)]
    data = [plan.data_fingerprint, plan.skeleton_fingerprint, content.digest]
    parts = [__version__, numbers, graph, data, recipe.model_dump(), settings.model_dump(), keep, seed]
    return blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


@final
class _Rehearsal:
    """One rehearsal in progress."""

    def __init__(
        self,
        plan: Plan,
        content: PublicContent,
        recipe: Recipe,
        folder: Path,
        settings: RehearsalSettings,
        keep: float | None,
        runtime: Runtime,
        seed: int,
        progress: OnWork,
    ) -> None:
        self._plan, self._content, self._recipe, self._folder = plan, content, recipe, folder
        self._settings, self._runtime, self._seed, self._progress = settings, runtime, seed, progress
        self._split: Split = split_documents(content, seed=seed)
        self._slotted = plan.slots is not None
        self._stated = stated_choice(plan, recipe, keep=keep)
        self._plans: dict[tuple[float, int, float | None], Plan | None] = {}
        self._begin = time.monotonic()

    def run(self) -> Outcome:
        """Search, repeat, conclude."""
        from hush.rehearse.arms import Workbench

        bench = Workbench(self._recipe, self._runtime, self._plan.slots.rules if self._plan.slots else ())
        choice, scale, tried = self._searched(bench)
        repeats = list[Repeat]()
        shares = list[float]()
        for number in range(1, self._settings.seeds + 1):
            repeat, share = self._repeat(bench, choice, scale, number)
            repeats.append(repeat)
            shares.append(share)
        before = self._before(bench)
        discard(self._folder / "ordinary")
        return self._concluded(repeats, float(np.mean(shares)), choice, scale, tried, before)

    # ---- the search ----

    def _searched(self, bench: "Workbench") -> tuple[Choice, Scale, Any]:
        """The settings that won, and the scale at which they were compared."""
        cast = self._cast(ON_SEARCH)
        stage = self._stage(bench, cast, ON_SEARCH)
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
                search.step(lambda choice: self._try(stage, cast, choice, scale))
            return search.best, scale, search.tried
        finally:
            search.close()

    def _search_is_over(self, search: Search, done: int) -> bool:
        minutes = self._settings.minutes
        return minutes is not None and done >= MIN_TRIES and search.seconds > SEARCH_SHARE * 60 * minutes

    def _try(self, stage: "Stage", cast: Cast, choice: Choice, scale: Scale) -> Losses | None:
        losses = self._hush(stage, cast, choice, scale, ON_SEARCH, None)
        return None if losses is None else (losses.ordinary.mean, losses.like.mean)

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

    def _repeat(self, bench: "Workbench", choice: Choice, scale: Scale, number: int) -> tuple[Repeat, float]:
        """All three ways with players, examples and noise of their own, read from the folder if they are finished."""
        from hush.rehearse.arms import DROPPING, REDACTING, ArmLosses

        path = self._folder / f"repeat-{number}.json"
        if path.is_file():
            record = read_json(path)
            return {
                arm: ArmLosses(ordinary=Reached(**losses["ordinary"]), like=Reached(**losses["like"]))
                for arm, losses in record["arms"].items()
            }, float(record["like_share"])
        cast_of_roles = self._cast(number)
        stage = self._stage(bench, cast_of_roles, number)
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
        with whole_file(path, owner_only=True) as file:
            stored = {"arms": {arm: asdict(losses) for arm, losses in arms.items()}, "like_share": like_share}
            file.write(json.dumps(stored).encode())
        shutil.rmtree(self._ordinary(number), ignore_errors=True)
        return arms, like_share

    def _before(self, bench: "Workbench") -> dict[str, float]:
        """The losses of the model to begin with, on the documents of the search."""
        losses = self._stage(bench, self._cast(ON_SEARCH), ON_SEARCH).before()
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

    def _stage(self, bench: "Workbench", cast_of_roles: Cast, number: int) -> "Stage":
        from hush.rehearse.arms import Stage

        scale = scale_for(self._plan, 1.0)
        redacting = stage_plan(self._plan, cast_of_roles, scale).redacting
        return Stage(
            bench,
            self._content,
            cast_of_roles,
            redacting,
            slotted=self._slotted,
            learns_first=learns_first(self._recipe.public_first, self._content.available),
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

    # ---- conclusions ----

    def _concluded(
        self,
        repeats: Sequence[Repeat],
        like_share: float,
        choice: Choice,
        scale: Scale,
        tried: Any,
        before: Mapping[str, float],
    ) -> Outcome:
        held_out = int(held_out_examples(self._plan).size)
        series = {
            (arm, kind): [cast("Reached", getattr(repeat[arm], kind)) for repeat in repeats]
            for arm in ARMS
            for kind in ("ordinary", "like")
        }
        pooled = {
            kind: float(np.mean([np.var([r.mean for r in series[arm, kind]], ddof=1) for arm in ARMS]))
            for kind in ("ordinary", "like")
        }
        arms = tuple(
            ArmForecast(
                arm=arm,
                ordinary=forecast_interval(
                    series[arm, "ordinary"], pooled_variance=pooled["ordinary"], held_out=held_out
                ),
                like=forecast_interval(series[arm, "like"], pooled_variance=pooled["like"], held_out=None),
            )
            for arm in ARMS
        )
        pairs: tuple[tuple[Arm, Arm], ...] = (("hush", "dropping"), ("hush", "redacting"), ("redacting", "dropping"))
        differences = tuple(
            Difference(
                arm=arm, other=other, content=kind, difference=difference(series[arm, kind], series[other, kind])
            )
            for arm, other in pairs
            for kind in ("ordinary", "like")
        )
        by_name: dict[Arm, ArmForecast] = {arm.arm: arm for arm in arms}
        taken, gains = decide(by_name, differences, like_share=like_share, slotted=self._slotted)
        return Outcome(
            choice=taken,
            gains=gains,
            arms=arms,
            differences=differences,
            before=dict(before),
            patch=choice.patch(self._stated),
            tried=tried,
            repeats=len(repeats),
            like_share=like_share,
            scale=described(scale),
            slotted=self._slotted,
            documents=len(self._content),
            available=self._content.available,
            notes=(*self._notes(scale), *_unfinished(differences, self._slotted)),
        )

    def _notes(self, scale: Scale) -> list[str]:
        notes = [
            "Public examples play the secrets. How much there is to learn from real ones cannot be known without "
            "spending a promise; if they differ more from what is public than the players do, hush gains more."
        ]
        if len(self._content) < self._content.available:
            notes.append(
                f"It saw {len(self._content):,} of {self._content.available:,} public examples: the losses of the real "
                "training will be lower, for all three ways."
            )
        if not self._slotted:
            notes.append(
                "Whole examples are secret under this plan. Redacting would show all of an example but its hidden "
                "words, and no promise would cover what a finder misses."
            )
        if scale.rounds < 1:
            notes.append("The private rounds were fewer than planned; a larger budget makes the forecast better.")
        return notes


def _unfinished(differences: Sequence[Difference], slotted: bool) -> list[str]:
    """A note where hush gains on ordinary content: the stream beside its rounds continues ordinary training."""
    start = "redacting" if slotted else "dropping"
    rows = [row for row in differences if (row.arm, row.other, row.content) == ("hush", start, "ordinary")]
    if not any(row.difference.high < 0 for row in rows):
        return []
    return [
        "hush lowers the loss on ordinary content, too: ordinary training ended before it had learnt what is public. "
        "Raise the epochs or the patience of public_first, and rehearse again; until then only what hush gains beyond "
        "that counts for it."
    ]
