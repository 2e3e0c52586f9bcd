"""The certificate of a plan: what it promises, under which assumptions, and what it does not cover.

It is written for people (Markdown) and for programs (JSON). It holds numbers, ids, fingerprints of public content and
keyed fingerprints of the data and of skeletons; never the text of a secret, the draw or the noise. Its sentences are
part of the format of a plan: changing one needs a new minor version (``hush.plan.files.MINOR``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, final

from hush.errors import InvalidInput
from hush.numbers import counted, is_number, rounded_down, rounded_up

__all__ = [
    "ASSUMPTIONS",
    "CHAIN_ASSUMPTIONS",
    "CHAIN_NOT_COVERED",
    "DATA_FINGERPRINT",
    "NOT_COVERED",
    "OTHER_RELEASES",
    "PUBLIC_ASSUMPTIONS",
    "PUBLIC_NOT_COVERED",
    "SKELETON_FINGERPRINT",
    "SLOTS_NOT_COVERED",
    "SLOT_ASSUMPTIONS",
    "Certificate",
]


# The fingerprints of private content: they reveal nothing without the owner's key.
DATA_FINGERPRINT = "data (keyed)"
SKELETON_FINGERPRINT = "skeletons (keyed)"

# What the certificate of a plan does not state.
OF_A_RUN = ("trained_parameters", "sampling_error", "public_part", "private_rounds", "rehearsed")
WITH_SLOTS = ("scope",)  # what the certificate of a plan without slots does not state
IN_A_CHAIN = ("releases",)  # what only a plan states that is one of several releases
SECRETS_ONLY = ("drawn",)  # what only a plan without slots states that draws no example without a secret
PUBLIC_PART = ("examples", "skeletons")  # numbers of what a run learnt first, by ordinary training

SCOPE = (
    "slots",
    "examples_with_slots",
    "whole_examples",
    "secrets_in_slots",
    "secrets_in_whole_examples",
    "secrets_in_both",
)
EXTREMES = ("largest_prior", "smallest_ceiling", "largest_ceiling", "largest_share_of_ceiling")

REHEARSED = (
    "chosen by a rehearsal on public content, with public examples in the place of the secrets; no promise was spent "
    "on the choice"
)

ASSUMPTIONS = (
    "Every round draws every example independently with its own rate, as planned; a draw is never truncated, repeated "
    "or chosen, and an empty round counts.",
    "Each example's gradient depends on the model, that example and its own randomness alone, is clipped to the clip "
    "norm, and is summed; normal noise of noise multiplier times clip norm is added once to the sum of each round, and "
    "the sum is divided by the constant batch size. A metric in which gradients are clipped and receive noise, if "
    "there is one, was measured from public text alone: what no promise covers, or a corpus that the owner states to "
    "be public.",
    "Draws and noise come from the operating system's entropy through a generator that an adversary cannot tell from "
    "randomness, and stay secret: batch sizes, losses on private examples and random states are not released, and what "
    "several processes of the training send each other is read by nobody else.",
    "The incidence is complete: every example that contains a secret, or a copy of it, is listed for it.",
    "Nobody gives any single candidate for a secret more than the stated prior, given everything else they know; "
    "near-misses that would satisfy them count towards it.",
    "Floating-point sums and normal samples behave as their real counterparts up to the margins that training adds.",
)

OTHER_RELEASES = (
    "Other releases about the same secrets: further runs, hyperparameter sweeps scored on secret-bearing data, early "
    "stopping or checkpoint selection by such a score."
)

NOT_COVERED = (
    "That a secret exists, which examples contain it, and with that the weights, rates and noise: the graph is public.",
    "Anything in examples that contain no secret, and copies of a secret outside the listed examples.",
    "Other priors than those promised: see the curve. Few bits about a secret are not protected.",
    "Joint guesses: each ceiling is for one secret, on average over runs; several secrets may fall together.",
    OTHER_RELEASES,
    "A tokenizer, vocabulary or preprocessing fitted on text that contains the secrets.",
)

# What a plan without slots adds to both lists if it draws only examples with a secret.

PUBLIC_ASSUMPTIONS = (
    "Only examples with a secret are drawn. The others may be learnt without clipping or noise, before the rounds and "
    "beside them, with randomness that is independent of the draw, and by steps that do not depend on any example with "
    "a secret.",
)

PUBLIC_NOT_COVERED = (
    "Examples without a secret: they may be learnt without clipping or noise, and may be extracted from the model. A "
    "secret in one of them that the finders missed is trained on like any other text.",
)

# What a plan with slots adds to both lists.

SLOT_ASSUMPTIONS = (
    "In an example with slots the promise about a secret is about the text inside its slots, given that everything "
    "outside them stays the same, and so do the slots: how many there are, where they stand, which rule found them and "
    "which secrets they belong to. The promise is conditional on the slots.",
    "The prior of a secret holds given the graph, the slots, the rules and all skeletons together: the skeleton of an "
    "example is its text with a placeholder in each slot, and the graph links the slots of a secret across examples.",
    "In an example with slots every occurrence of its secrets lies in a slot; the finders are trusted for that.",
    "A drawn example with slots may contribute a part of its gradient: that of the loss at its slots, or the "
    "difference from the gradient of its skeleton. This part is clipped as a whole.",
    "What is public, that is skeletons and examples without a secret, is learnt with randomness that is independent of "
    "the private draw, and by steps that do not depend on the text inside any slot.",
)

SLOTS_NOT_COVERED = (
    "The text outside the slots: skeletons are learnt without clipping or noise and may be extracted from the model.",
    "Texts that an adversary has elsewhere: blanking a word in such a text reveals the word.",
    "What the slots tell, as the graph does: which texts hold a secret and where, and that a string which a skeleton "
    "still shows is not one of the secrets.",
)

# What a plan that is one of several releases says instead of OTHER_RELEASES, and adds to the assumptions.

CHAIN_NOT_COVERED = (
    "Releases that this chain does not name: a training on these secrets that no plan of it accounts for, also one "
    "whose model was only looked at, hyperparameter sweeps scored on secret-bearing data, early stopping or checkpoint "
    "selection by such a score."
)

CHAIN_ASSUMPTIONS = (
    "A secret has the same id in every release of the chain, and no other secret ever has it; where secrets were "
    "merged or split, the plan names the earlier ids.",
    "Every training that read an example with one of these secrets is a release of the chain, whether its model was "
    "passed on, only looked at, or not chosen.",
    "Which examples there are, which contain which secret and what is promised does not depend on earlier models.",
    "In every release computed draws and noise stayed within what its plan leaves to them.",
)
SERIES_KEYS = ("kind", "number", "announced", "merged", "raised", "uncovered")
FILTER_KEYS = ("kind", "number", "share", "merged", "raised", "uncovered")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The promise of one plan. `marks` is empty for a valid one; a simulation or a fixed seed is marked there.

    num_found counts the secrets in some example, num_secrets all that are listed. binding names the first of
    num_binding secrets; curve holds, for a few of them, posteriors from other priors. The certificate of a run states
    how many parameters were trained and what computed draws and noise add to any posterior; its numbers include that.
    That of a plan states neither. scope, only with slots, counts the secrets whose promise is about the text in slots,
    about whole examples, or about both, and the slots and examples that this is about. drawn, in a plan without slots
    that draws only examples with a secret, is how many these are. public_part, of a run that began with ordinary
    training on what is public, counts the examples without a secret and the skeletons that it learnt. private_rounds is
    0 for a run that trained none of the rounds, otherwise not stated. rehearsed is True if the settings of a run were
    chosen by a rehearsal on public content. releases, of a plan that is one of several releases, says which of them it
    is, whether they were announced or are added, and how many secrets were merged from earlier ones, had their
    ceilings raised, or were not protected in some examples of an earlier release.
    """

    noise_multiplier: float
    rounds: int
    batch_size: float
    clip_norm: float
    bound: str
    capacity: str
    weights_gap: float
    num_examples: int
    num_secrets: int
    num_found: int
    kept_fraction: float
    strictest: Mapping[str, float]
    num_binding: int
    binding: tuple[str, ...]
    curve: Mapping[str, tuple[tuple[float, float], ...]]
    fingerprints: Mapping[str, str]
    versions: Mapping[str, str]
    created: str
    marks: tuple[str, ...] = ()
    trained_parameters: int | None = None
    sampling_error: float | None = None
    scope: Mapping[str, int] | None = None
    drawn: int | None = None
    public_part: Mapping[str, int] | None = None
    private_rounds: int | None = None
    rehearsed: bool | None = None
    releases: Mapping[str, Any] | None = None
    assumptions: tuple[str, ...] = field(default=ASSUMPTIONS)
    not_covered: tuple[str, ...] = field(default=NOT_COVERED)

    @property
    def is_real(self) -> bool:
        """Whether it certifies anything: not for simulations and fixed seeds."""
        return not self.marks

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what only a run states is left out for a plan, and the scope without slots."""
        stated = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: _plain(value) for name, value in stated.items() if value is not None}

    @classmethod
    def from_dict(cls, data: object) -> Self:
        """From the result of ``to_dict``; fields of a newer minor version are ignored, missing ones are an error."""
        known = cls.__dataclass_fields__
        if not isinstance(data, Mapping):
            raise InvalidInput("the certificate is not a JSON object; pass one that hush wrote")
        data = {"num_found": data.get("num_secrets"), **data}  # hush 0.1.0 did not tell the two apart
        missing = [
            name
            for name in known
            if name not in data and name not in (*OF_A_RUN, *WITH_SLOTS, *SECRETS_ONLY, *IN_A_CHAIN)
        ]
        if missing:
            raise InvalidInput(f"the certificate lacks {missing}; pass one that hush wrote")
        values: dict[str, Any] = {name: data[name] for name in known if name in data}
        wrong = [name for name, value in values.items() if not _CHECKS[name](value)]
        if wrong:
            raise InvalidInput(f"the certificate has values of the wrong type for {wrong}; pass one that hush wrote")
        for name in ("binding", "marks", "assumptions", "not_covered"):
            values[name] = tuple(values[name])
        values["curve"] = {name: tuple(map(tuple, points)) for name, points in values["curve"].items()}
        return cls(**values)

    def to_markdown(self) -> str:
        """For people to read and sign; every bound is rounded to the safe side."""
        parts = [
            f"# Certificate of secret protection\n{self.warning}",
            self._promise(),
            *self._chain(),
            *self._scope(),
            *self._public_part(),
            *self._no_rounds(),
            self._curves(),
        ]
        parts += ["## Under these assumptions\n", *(f"- {line}" for line in self.assumptions), ""]
        parts += ["## What is not covered\n", *(f"- {line}" for line in self.not_covered), ""]
        parts += ["## Provenance\n", f"- created {self.created}"]
        parts += [f"- settings: {REHEARSED}"] if self.rehearsed else []
        parts += [f"- {name}: {value}" for name, value in self.versions.items()]
        parts += [f"- fingerprint of the {name}: `{value}`" for name, value in self.fingerprints.items()]
        parts += ["", "Check it with `hush verify FOLDER`, which recomputes every posterior.", ""]
        return "\n".join(parts)

    @property
    def warning(self) -> str:
        """A line of Markdown for each mark; empty for a valid certificate."""
        return "".join(f"\n> **NOT A CERTIFICATE: {_printable(mark)}**\n" for mark in self.marks)

    @property
    def promise(self) -> str:
        """The promise in sentences; every bound is rounded to the safe side."""
        if not self.num_secrets:
            return "There are no secrets, so nothing is promised."
        each = "the one secret" if self.num_found == 1 else f"each of {self.num_found:,} secrets"
        if self.num_found < self.num_secrets:
            each += f" found in the data, and trivially for the other {self.num_secrets - self.num_found:,} listed"
        strict = {name: float(value) for name, value in self.strictest.items()}
        return (
            f"For {each}: nobody who gives no candidate for it more than its prior, "
            f"and who then sees {self._seen()}, names the right one with probability "
            f"above its ceiling. Priors are at most {rounded_up(strict['largest_prior'], 3)}, ceilings from "
            f"{rounded_down(strict['smallest_ceiling'], 3)} to {rounded_up(strict['largest_ceiling'], 3)}; the "
            f"closest posterior comes to {rounded_up(100 * strict['largest_share_of_ceiling'])} % of its ceiling. "
            "The plan lists every one."
        )

    def _promise(self) -> str:
        more = self.num_binding - len(self.binding)
        names = [_escaped(name) for name in self.binding] + ([f"and {more:,} more"] if more > 0 else [])
        examples = counted(self.num_examples, "example")
        if self.scope is not None or self.drawn is not None:
            scope = self.scope or {}
            drawn = sum(scope[name] for name in ("examples_with_slots", "whole_examples")) if scope else self.drawn
            examples = "the one example with a secret" if drawn == 1 else f"the {drawn:,} examples with a secret"
        return (
            f"## The promise\n\n{self.promise}\n\n"
            f"- noise multiplier {self.noise_multiplier!r}, {counted(self.rounds, 'round')}, "
            f"expected batch {self.batch_size!r}, clip norm {self.clip_norm!r}\n"
            f"- bound: {self.bound}; weights: {self.capacity}, {100 * self.kept_fraction:.1f} % of "
            f"{examples} kept, stated to be within {float(rounded_up(self.weights_gap, 2)):.1e} of the largest sum\n"
            f"- binding, {self._binds()}: {', '.join(names) or 'none'}\n"
            f"{self._sampling()}"
        )

    def _seen(self) -> str:
        """The models that the promise is about."""
        if self.releases is None:
            return "the trained model, indeed every iterate"
        number = int(self.releases["number"])
        if self.releases["kind"] == "series":
            return (
                f"the models of all {int(self.releases['announced'])} announced releases, indeed every iterate of each"
            )
        if number == 1:
            return "the model of this first release, indeed every iterate"
        return f"the models of all {number} releases so far, indeed every iterate of each"

    def _binds(self) -> str:
        if self.releases is None:
            return "those that about 1 % less noise would break"
        return "those of which this release uses more than 99 % of what it may"

    def _chain(self) -> list[str]:
        """Which of several releases this is, and what was fixed before the first of them."""
        if self.releases is None:
            return []
        number, changes = int(self.releases["number"]), self._changes()
        if self.releases["kind"] == "series":
            announced = int(self.releases["announced"])
            return [
                "## Several releases\n",
                f"This is release {number} of a series of {announced} that was announced before its first release: the "
                "least noise and the most rounds of each, and for each secret how often a round may draw it at most. "
                f"The posteriors stated here are those after all {announced}, and no later plan of the series raises "
                "them. They hold whatever is done inside the limits, also if it is chosen by looking at earlier "
                f"models.{changes}\n",
            ]
        share = float(rounded_up(100 * float(self.releases["share"]), 3))
        return [
            "## Several releases\n",
            f"This is release {number} of releases that are added one after the other. For each secret the Renyi order "
            f"that accounts for it was fixed at its first release, and this release may spend {share:g} % of the "
            "budget of its promise. The posteriors stated here are those after the releases so far, each of which "
            "spends all that it may; the settings of a release may have been chosen by looking at earlier models. "
            f"Later releases raise the posteriors, and never above the ceilings.{changes}\n",
        ]

    def _changes(self) -> str:
        releases = {} if self.releases is None else self.releases
        parts = [
            (int(releases["merged"]), "takes over what earlier ids spent", "take over what earlier ids spent"),
            (int(releases["raised"]), "has a higher ceiling than before", "have a higher ceiling than before"),
            (
                int(releases["uncovered"]),
                "was not protected in some examples of an earlier release, and the promise does not cover what that "
                "release shows of it",
                "were not protected in some examples of an earlier release, and the promise does not cover what that "
                "release shows of them",
            ),
        ]
        said = [f"{counted(many, 'secret')} {one if many == 1 else more}" for many, one, more in parts if many]
        return f" {'; '.join(said)}." if said else ""

    def _scope(self) -> list[str]:
        """What each promise covers, in a plan with slots."""
        if self.scope is None:
            return []
        count = {name: int(value) for name, value in self.scope.items()}
        free = self.num_examples - count["examples_with_slots"] - count["whole_examples"]
        return [
            "## What is secret\n",
            f"Secret is the text inside {counted(count['slots'], 'slot')} in "
            f"{counted(count['examples_with_slots'], 'example')}, and the whole text of "
            f"{counted(count['whole_examples'], 'other example')}. Public are the text around the slots and "
            f"{counted(free, 'example')} without a secret. The promise covers\n",
            f"- the text in slots only: {counted(count['secrets_in_slots'], 'secret')}",
            f"- whole examples only: {counted(count['secrets_in_whole_examples'], 'secret')}",
            f"- both, in different examples: {counted(count['secrets_in_both'], 'secret')}\n",
        ]

    def _public_part(self) -> list[str]:
        """What a run learnt before its private rounds, and what follows from that."""
        if self.public_part is None:
            return []
        examples, skeletons = (self.public_part[name] for name in PUBLIC_PART)
        kinds = [f"{counted(examples, 'example')} without a secret"] if examples else []
        kinds += [f"{counted(skeletons, 'skeleton')}"] if skeletons else []
        rounds = (
            f"{counted(self.rounds, 'round')} with the draws, clipping and noise stated above, which start from the "
            "model of the first part."
        )
        if self.private_rounds == 0:
            rounds = "none of the rounds was trained."
        return [
            "## Two parts\n",
            f"1. Public: {' and '.join(kinds)} were learnt first, by ordinary training, without clipping or noise.",
            f"2. Private: {rounds}\n",
            "The promise is about the model after both parts: the first one reads no text that the promise is about. "
            "What it reads may be extracted from the model; a secret in it that the finders missed was trained on like "
            "any other text.\n",
        ]

    def _no_rounds(self) -> list[str]:
        """What holds for a run that trained no private round."""
        if self.private_rounds != 0:
            return []
        model = "the model to begin with" if self.public_part is None else "the model of the public part"
        return [
            "## No private round\n",
            f"Of the {counted(self.rounds, 'planned round')} none was trained. What is released is {model}: it depends "
            "on no text that the promise is about, so nobody can name a secret from it with a higher probability than "
            "before. The posteriors of the plan hold all the more.\n",
        ]

    def _sampling(self) -> str:
        if self.sampling_error is None or self.trained_parameters is None:
            return ""
        if self.releases is not None:
            return (
                f"- computed draws and noise, for {counted(self.trained_parameters, 'trained parameter')} here and at "
                f"what is left to the other releases, add at most {rounded_up(self.sampling_error, 3)} to any "
                "posterior; the posteriors stated here include it\n"
            )
        return (
            f"- computed draws and noise, for {counted(self.trained_parameters, 'trained parameter')}, add at most "
            f"{rounded_up(self.sampling_error, 3)} to any posterior; the posteriors stated here include it\n"
        )

    def _curves(self) -> str:
        if not self.curve:
            return ""
        models = "What the same model allows" if self.releases is None else "What the same releases allow"
        lines = ["## From other priors\n", f"{models} for the secrets closest to their ceilings:\n"]
        names = [_escaped(name) for name in self.curve]
        lines += ["| prior | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
        for row in zip(*self.curve.values(), strict=True):
            lines.append(f"| {row[0][0]:g} | " + " | ".join(rounded_up(after) for _, after in row) + " |")
        return "\n".join([*lines, ""])


def _is_whole(value: object) -> bool:
    return type(value) is int


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _are_named_texts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _are_extremes(value: object) -> bool:
    return isinstance(value, dict) and set(value) == set(EXTREMES) and all(map(is_number, value.values()))


def _is_scope(value: object) -> bool:
    return isinstance(value, dict) and set(value) == set(SCOPE) and all(_is_whole(n) and n >= 0 for n in value.values())


def _is_public_part(value: object) -> bool:
    if not (isinstance(value, dict) and set(value) == set(PUBLIC_PART) and all(map(_is_whole, value.values()))):
        return False
    return min(value.values()) >= 0 < max(value.values())


def _are_releases(value: object) -> bool:
    if not isinstance(value, dict) or value.get("kind") not in ("series", "filter"):
        return False
    keys = SERIES_KEYS if value["kind"] == "series" else FILTER_KEYS
    whole = [value.get(name) for name in keys if name not in ("kind", "share")]
    return set(value) == set(keys) and all(map(_is_whole, whole)) and is_number(value.get("share", 0))


def _are_curves(value: object) -> bool:
    """Points of two numbers each, the same number of points for every secret: rows of one table."""
    if not isinstance(value, dict) or not all(isinstance(points, list) for points in value.values()):
        return False
    points = [point for points in value.values() for point in points]
    return len({len(points) for points in value.values()}) <= 1 and all(
        isinstance(point, list) and len(point) == 2 and all(type(number) is float for number in point)
        for point in points
    )


_CHECKS: Mapping[str, Callable[[Any], bool]] = {  # the check of each field as read from JSON
    **dict.fromkeys(("noise_multiplier", "batch_size", "clip_norm", "weights_gap", "kept_fraction"), is_number),
    "sampling_error": is_number,
    **dict.fromkeys(("rounds", "num_examples", "num_secrets", "num_found", "num_binding"), _is_whole),
    "trained_parameters": lambda value: _is_whole(value) and 0 < value < 2**63,
    **dict.fromkeys(("bound", "capacity", "created"), _is_text),
    **dict.fromkeys(("binding", "marks", "assumptions", "not_covered"), _are_texts),
    **dict.fromkeys(("fingerprints", "versions"), _are_named_texts),
    "strictest": _are_extremes,
    "scope": _is_scope,
    "drawn": lambda value: _is_whole(value) and value > 0,
    "public_part": _is_public_part,
    "private_rounds": lambda value: _is_whole(value) and value == 0,
    "rehearsed": lambda value: value is True,
    "releases": _are_releases,
    "curve": _are_curves,
}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, tuple) else value


def _escaped(name: str) -> str:
    """An id with Markdown escaped, so that it can break neither a line nor a table."""
    return "".join(f"\\{letter}" if letter in "\\`*_|<>[]#" else letter for letter in _printable(name))


def _printable(text: str) -> str:
    """Text without line breaks, terminal controls and marks of writing direction, which could hide other text."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
