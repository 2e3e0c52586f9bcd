"""The game that a promise about slots is about, from the scan to the release, played many times on a small model.

Each run draws a secret from its generator and writes it into the texts. The owner then scans the texts, makes
skeletons, cuts them into windows, plans, and trains: a public step on skeletons and on texts without a secret, and a
private step on what the skeletons lack, in every round. The attacker sees all that the promise calls public (graph,
slots, rules, skeletons, windows, plan) and every model, knows the texts around the secret, the candidates and how the
owner works, and names a candidate. It does so twice:

without the model   only candidates under which all public artefacts would be the same are possible; the likeliest of
                    them is named. If the artefacts are the same under every candidate, this succeeds with the largest
                    probability in the generator, which the stated prior must not be below.
with the models     the attacker adds the exact likelihood of the models, summed over all draws. This is the best attack
                    there is, and must not succeed with a higher probability than the plan certifies.

What the owner does is four functions (:class:`Steps`). A test that replaces one by a broken one sees whether the game
notices. The model is a table of bigram logits, whose gradients are linear in the counts of a text, so that thousands of
runs and hundreds of candidates are a few matrix products a round.

Shapes: R runs, M candidates, E examples, N examples that a round may draw, W examples of the public stream, V tokens,
S subsets of the N examples.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, softmax

from hush.accounting.arguments import checked_choice
from hush.arrays import Array
from hush.audit.statistics import LEVEL, Success
from hush.audit.verdict import Attempt, Verdict, judge
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.plan import Plan, make_plan
from hush.plan.make import public_examples
from hush.scan import scan
from hush.slots import Slots, Spans, placeholder

__all__ = ["Game", "Played", "Steps", "play", "rule_scan"]


MARK = "{secret}"  # where the secret is written into a text
RULE = "secret"
MAX_DRAWN_EXAMPLES = 6  # all 2^6 draws are summed
RUNS_AT_ONCE = 500  # bounds the memory for the models of a run
SAME_STEP = 1e-9  # largest difference of two public steps that are the same but for rounding

Part = Literal["slot", "difference"]


# What the owner does with the texts.


def rule_scan(texts: Sequence[str], secret: str) -> tuple[Incidence, Spans]:
    """Which texts hold the secret and in which spans: the product's scan, with a rule for this literal."""
    rule = {"name": RULE, "find": "literals", "values": [secret], "hides": "span"}
    with TemporaryDirectory() as folder:
        path = Path(folder) / "texts.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        # The promise of the rule is not used: the game states its own.
        found = scan(path, {"defaults": {"prior": 0.1, "ceiling": 0.5}, "rules": [rule]})
    return found.incidence, found.spans


def _placeholder(rule: str, _secret_text: str) -> str:
    return placeholder(rule)


def _windows(length_T: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    return np.arange(length_T.size) // size


def _public_weights(
    round: int, drawn_RE: NDArray[np.bool_], public_W: NDArray[np.int64], size: int
) -> NDArray[np.float64]:
    chosen_W = np.random.default_rng(round).permutation(public_W.size) < size
    return np.broadcast_to(chosen_W / size, (len(drawn_RE), public_W.size))


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What the owner does, as functions of what each of them may look at in a broken implementation too.

    scan: from texts and the secret to the graph and the spans; secret 0 is the drawn one. placeholder: from a rule and
    the text of a slot to the token that stands for it. windows: the window of each token of a skeleton, from the number
    of tokens that each has in the text and the size of a window. public_weights: the weights of the examples of the
    public stream, R × W, from the round, the private draw, their numbers and how many are taken.
    """

    scan: Callable[[Sequence[str], str], tuple[Incidence, Spans]] = rule_scan
    placeholder: Callable[[str, str], str] = _placeholder
    windows: Callable[[NDArray[np.int64], int], NDArray[np.int64]] = _windows
    public_weights: Callable[[int, NDArray[np.bool_], NDArray[np.int64], int], NDArray[np.float64]] = _public_weights


@final
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Game:
    """One secret, its generator, the texts that it is written into, and how the owner trains on them.

    texts: where ``{secret}`` stands, the secret is written. generator: the probability of each candidate. prior: what
    the owner states; by default the largest probability. part: what the private step learns of an example with slots,
    the loss at the slots' tokens or the difference between the text's gradient and its skeleton's.
    """

    texts: Sequence[str] = field(repr=False)
    candidates: Sequence[str] = field(repr=False)
    generator: Sequence[float] | None = None
    prior: float | None = None
    ceiling: float
    batch_size: float
    rounds: int
    clip_norm: float = 1.0
    learning_rate: float = 0.5
    public_batch: int = 2
    window: int = 8
    part: Part = "slot"
    steps: Steps = Steps()

    def __post_init__(self) -> None:
        checked_choice("part", self.part, Part)
        if len(self.candidates) < 2 or len(set(self.candidates)) < len(self.candidates) or "" in self.candidates:
            raise InvalidInput("pass at least two candidates, all different and none empty")
        chance_M = self.chance_M
        if chance_M.shape != (len(self.candidates),) or (chance_M <= 0).any() or abs(chance_M.sum() - 1) > 1e-9:
            raise InvalidInput("the generator must give each candidate a probability above 0, in all 1")
        if not any(MARK in text for text in self.texts):
            raise InvalidInput(f"no text has the mark {MARK}; put it where the secret is to be written")
        if self.window < 1 or self.public_batch < 1:
            raise InvalidInput(f"window={self.window} and public_batch={self.public_batch}; pass at least 1")

    @cached_property
    def chance_M(self) -> Array:
        """The probability of each candidate."""
        if self.generator is None:
            return np.full(len(self.candidates), 1 / len(self.candidates))
        return np.asarray(self.generator, dtype=np.float64)

    @property
    def stated_prior(self) -> float:
        """The prior that the owner states."""
        return float(self.chance_M.max()) if self.prior is None else self.prior

    def __repr__(self) -> str:
        return f"Game({len(self.candidates)} candidates in {len(self.texts)} texts, {self.rounds} rounds)"


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Prepared:
    """What comes before training if a candidate is the secret.

    public: all that the attacker sees, to be compared. skeletons: the tokens of each skeleton, None where the example
    is secret as a whole. pieces, is_slot, windows: the text that each token stands for, whether it is a slot, and its
    window.
    """

    public: tuple[object, ...]
    incidence: Incidence
    slots: Slots
    skeletons: tuple[tuple[str, ...] | None, ...]
    pieces: tuple[tuple[str, ...], ...]
    is_slot: tuple[tuple[bool, ...], ...]
    windows: tuple[tuple[int, ...], ...]


def prepare(game: Game, candidate: str) -> Prepared:
    """Scan, redact and cut the texts if this candidate is the secret."""
    texts = [text.replace(MARK, candidate) for text in game.texts]
    incidence, spans = game.steps.scan(texts, candidate)
    slots = spans.slots
    slots.check_against(incidence)
    is_whole_E = slots.whole_examples(incidence)
    skeletons, pieces, is_slot, windows = [], [], [], []
    for example, text in enumerate(texts):
        tokens, parts, hidden, done = list[str](), list[str](), list[bool](), 0
        for slot, (begin, end) in zip(slots.of_example(example), spans.of_example(example), strict=True):
            rule = slots.rules[slots.rule_L[slot]]
            tokens += (*text[done:begin], game.steps.placeholder(rule, text[begin:end]))
            parts += (*text[done:begin], text[begin:end])
            hidden += [False] * (begin - done) + [True]
            done = end
        tokens += text[done:]
        parts += text[done:]
        hidden += [False] * (len(text) - done)
        length_T = np.array([len(part) for part in parts], dtype=np.int64)
        whole = bool(is_whole_E[example])
        skeletons.append(None if whole else tuple(tokens))
        pieces.append(tuple(parts))
        is_slot.append(tuple(hidden))
        windows.append(tuple(game.steps.windows(length_T, game.window).tolist()))
    public_windows = tuple(
        None if skeleton is None else window for skeleton, window in zip(skeletons, windows, strict=True)
    )
    return Prepared(
        public=(incidence.fingerprint, slots.fingerprint, tuple(skeletons), public_windows),
        incidence=incidence,
        slots=slots,
        skeletons=tuple(skeletons),
        pieces=tuple(pieces),
        is_slot=tuple(is_slot),
        windows=tuple(windows),
    )


# The model: the logits of the next token for each token, started at 0.


def _counts(tokens: Sequence[tuple[str, int, bool]], index: dict[str, int]) -> Array:
    """How often a token follows another within a window, where the second is one to be learnt: V × V.

    tokens: (token, window, whether it is to be learnt).
    """
    counts = np.zeros((len(index), len(index)))
    for (before, window, _), (after, same, learnt) in pairwise(tokens):
        if window == same and learnt:
            counts[index[before], index[after]] += 1
    return counts


def _gradient(counts: Array, probability: Array) -> Array:
    """Gradient of the loss of a text with these counts, … × V × V; it is linear in the counts."""
    return counts.sum(axis=-1, keepdims=True) * probability - counts


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Arena:
    """The candidates that the public artefacts leave possible, and the training under these artefacts.

    candidate_M: their numbers in the game. count_MNVV: what the private step learns of each example that it may draw,
    under each candidate. count_WVV: the counts of the public stream, the same under each.
    """

    game: Game
    plan: Plan
    candidate_M: NDArray[np.int64]
    private_N: NDArray[np.int64]
    public_W: NDArray[np.int64]
    count_MNVV: Array
    count_WVV: Array

    @property
    def rate_N(self) -> Array:
        """The sampling rates of the examples that a round may draw."""
        return self.plan.rates[self.private_N]

    @property
    def noise_deviation(self) -> float:
        return self.plan.training_noise_multiplier * self.plan.clip_norm

    def public_steps(self, round: int, drawn_RN: NDArray[np.bool_]) -> Array:
        """The counts that the public step of a round learns, if these examples are drawn privately: R × V × V."""
        drawn_RE = np.zeros((len(drawn_RN), len(self.game.texts)), dtype=bool)
        drawn_RE[:, self.private_N] = drawn_RN
        weight_RW = self.game.steps.public_weights(round, drawn_RE, self.public_W, self.game.public_batch)
        return np.tensordot(weight_RW, self.count_WVV, axes=1)


def _arena(game: Game, plan: Plan, members: Sequence[tuple[int, Prepared]], index: dict[str, int]) -> Arena:
    first = members[0][1]
    private_N = np.flatnonzero(first.incidence.secrets_per_example > 0)
    public_W = public_examples(plan)
    if private_N.size > MAX_DRAWN_EXAMPLES or game.public_batch > public_W.size:
        raise InvalidInput(
            f"{private_N.size} examples hold secrets and {public_W.size} have a public part, of which a step takes "
            f"{game.public_batch}; pass at most {MAX_DRAWN_EXAMPLES} with secrets, and no larger public_batch"
        )
    return Arena(
        game=game,
        plan=plan,
        candidate_M=np.array([number for number, _ in members]),
        private_N=private_N,
        public_W=public_W,
        count_MNVV=np.array(
            [[_private_counts(game, made, example, index) for example in private_N.tolist()] for _, made in members]
        ),
        count_WVV=np.array([_skeleton_counts(first, e, index) for e in public_W.tolist()]),
    )


def _skeleton_counts(prepared: Prepared, example: int, index: dict[str, int]) -> Array:
    """Counts of a skeleton; placeholders are context and are not learnt."""
    skeleton, hidden = prepared.skeletons[example], prepared.is_slot[example]
    if skeleton is None:
        raise InvalidInput(f"example {example} is secret as a whole; it has no skeleton to learn")
    learnt = [not is_slot for is_slot in hidden]
    return _counts(list(zip(skeleton, prepared.windows[example], learnt, strict=True)), index)


def _private_counts(game: Game, prepared: Prepared, example: int, index: dict[str, int]) -> Array:
    """Counts of what the private step learns: the slots' tokens, the difference, or the text of a whole example."""
    whole = prepared.skeletons[example] is None
    pieces = zip(prepared.pieces[example], prepared.windows[example], prepared.is_slot[example], strict=True)
    at_slots_only = game.part == "slot" and not whole
    tokens = [(token, window, is_slot or not at_slots_only) for piece, window, is_slot in pieces for token in piece]
    counts = _counts(tokens, index)
    return counts if whole or game.part == "slot" else counts - _skeleton_counts(prepared, example, index)


def _train(arena: Arena, truth_R: NDArray[np.int64], rng: np.random.Generator) -> Array:
    """Every model of each run: the first, and those after each public and each private step. R × (2T + 1) × V × V."""
    game, plan = arena.game, arena.plan
    model_RVV = np.zeros((truth_R.size, *arena.count_WVV.shape[1:]))
    models = [model_RVV]
    for round in range(plan.rounds):
        drawn_RN = rng.random((truth_R.size, arena.private_N.size)) < arena.rate_N
        public_RVV = _gradient(arena.public_steps(round, drawn_RN), softmax(model_RVV, axis=-1))
        model_RVV = model_RVV - game.learning_rate * public_RVV
        models.append(model_RVV)
        h_RNVV = _gradient(arena.count_MNVV[truth_R], softmax(model_RVV, axis=-1)[:, None])
        norm_RN = np.sqrt(np.square(h_RNVV).sum(axis=(2, 3)))
        scale_RN = drawn_RN * np.minimum(1.0, plan.clip_norm / np.maximum(norm_RN, 1e-300))
        noise_RVV = arena.noise_deviation * rng.standard_normal(model_RVV.shape)
        model_RVV = model_RVV - game.learning_rate / plan.batch_size * (
            np.einsum("rn,rnab->rab", scale_RN, h_RNVV) + noise_RVV
        )
        models.append(model_RVV)
    return np.stack(models, axis=1)


# The attacker.


def log_likelihoods(arena: Arena, models: Array) -> Array:
    """Log likelihood of each run's models under each candidate, up to a constant of the run: R × M.

    Exact: the private step is a mixture of normal laws, one for each set of drawn examples. Sets that would have led
    to another public step than the one seen are left out.
    """
    game, plan = arena.game, arena.plan
    num_drawn = arena.private_N.size
    subset_SN = ((np.arange(2**num_drawn)[:, None] >> np.arange(num_drawn)) & 1).astype(bool)
    with np.errstate(divide="ignore"):  # a rate of 0 or 1 makes some sets impossible
        log_chance_S = np.where(subset_SN, np.log(arena.rate_N), np.log1p(-arena.rate_N)).sum(axis=1)
    total_RM = np.zeros((len(models), arena.candidate_M.size))
    for round in range(plan.rounds):
        start_RVV, middle_RVV, end_RVV = (models[:, 2 * round + step] for step in range(3))
        counts_SVV = arena.public_steps(round, subset_SN)
        public_RSVV = _gradient(counts_SVV, softmax(start_RVV, axis=-1)[:, None])
        seen_RVV = (start_RVV - middle_RVV) / game.learning_rate
        distance_RS = np.abs(public_RSVV - seen_RVV[:, None]).max(axis=(2, 3))
        possible_RS = distance_RS <= distance_RS.min(axis=1, keepdims=True) + SAME_STEP
        sum_RVV = (middle_RVV - end_RVV) * (plan.batch_size / game.learning_rate)
        dot_RMN, gram_RMNN = _products(arena.count_MNVV, softmax(middle_RVV, axis=-1), sum_RVV)
        norm_RMN = np.sqrt(np.maximum(np.einsum("rmnn->rmn", gram_RMNN), 1e-300))
        scale_RMN = np.minimum(1.0, plan.clip_norm / norm_RMN)
        clipped_RMNN = scale_RMN[..., None] * gram_RMNN * scale_RMN[..., None, :]
        square_RMS = np.einsum("rmnk,sn,sk->rms", clipped_RMNN, subset_SN, subset_SN, optimize=True)
        exponent_RMS = ((dot_RMN * scale_RMN) @ subset_SN.T - square_RMS / 2) / arena.noise_deviation**2
        weight_RS = np.where(possible_RS, log_chance_S, -np.inf)
        total_RM += logsumexp(exponent_RMS + weight_RS[:, None], axis=2)
    return total_RM


def _products(count_MNVV: Array, probability_RVV: Array, sum_RVV: Array) -> tuple[Array, Array]:
    """Products of the gradients h = n P - c of each candidate's examples with the sum, and with one another.

    n are the row sums of the counts c. R × M × N and R × M × N × N, by products of matrices that are R × V² at most.
    """
    m, n, v, _ = count_MNVV.shape
    runs = len(sum_RVV)
    rows_MNV = count_MNVV.sum(axis=-1)
    learnt_RV = (sum_RVV * probability_RVV).sum(axis=-1)
    dot = learnt_RV @ rows_MNV.reshape(-1, v).T - sum_RVV.reshape(runs, -1) @ count_MNVV.reshape(m * n, -1).T
    square_RV = np.square(probability_RVV).sum(axis=-1)
    rows_MNNV = rows_MNV[:, :, None] * rows_MNV[:, None]
    mixed_MNNVV = rows_MNV[:, :, None, :, None] * count_MNVV[:, None]
    mixed_MNNVV = (mixed_MNNVV + mixed_MNNVV.swapaxes(1, 2)).reshape(m * n * n, -1)
    gram = square_RV @ rows_MNNV.reshape(-1, v).T - probability_RVV.reshape(runs, -1) @ mixed_MNNVV.T
    gram = gram.reshape(runs, m, n, n) + np.einsum("mnab,mkab->mnk", count_MNVV, count_MNVV)
    return dot.reshape(runs, m, n), gram


# The game.


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How often the attacker named the secret, with and without the models; certified: the plan's bound.

    Guarantee: if the stated prior is not below the generator's and the owner's steps keep what docs/proofs.md assumes,
    the verdict is "failed" with probability at most its level.
    """

    prior: float
    certified: float
    ceiling: float
    without_model: Success
    with_model: Success

    def verdict(self, *, level: float = LEVEL) -> Verdict:
        """Both attacks judged together, at one level of error."""
        rows = [("without the model", self.prior, self.without_model)]
        rows.append(("with the models", self.certified, self.with_model))
        return judge(
            [
                Attempt(
                    attack=f"naming {how}", name="drawn secret", prior=self.prior, certified=bound,
                    ceiling=self.ceiling, measured=success, hits=success.hits, runs=success.runs, canaries=True,
                )
                for how, bound, success in rows
            ],
            level=level,
        )  # fmt: skip


def play(game: Game, *, runs: int, rng: np.random.Generator) -> Played:
    """Play the game in independent runs: draw a secret, scan, redact, plan, train, attack.

    >>> game = Game(texts=["xx{secret}y", "xyyx"], candidates=["a", "b", "ab"], ceiling=0.6, batch_size=0.5, rounds=3)
    >>> play(game, runs=200, rng=np.random.default_rng(0)).verdict().status
    'kept'
    """
    if runs < 1:
        raise InvalidInput(f"runs={runs}; play at least one run")
    arenas = arenas_of(game)
    truth_R = rng.choice(len(game.candidates), size=runs, p=game.chance_M)
    hits_without = hits_with = 0
    for arena in arenas:
        chance_M = game.chance_M[arena.candidate_M]
        local_R = np.searchsorted(arena.candidate_M, truth_R[np.isin(truth_R, arena.candidate_M)])
        hits_without += int(np.count_nonzero(local_R == chance_M.argmax()))
        for begin in range(0, local_R.size, RUNS_AT_ONCE):
            part_R = local_R[begin : begin + RUNS_AT_ONCE]
            score_RM = log_likelihoods(arena, _train(arena, part_R, rng)) + np.log(chance_M)
            hits_with += int(np.count_nonzero(score_RM.argmax(axis=1) == part_R))
    return Played(
        prior=game.stated_prior,
        certified=max(float(arena.plan.posterior[0, 0]) for arena in arenas),
        ceiling=game.ceiling,
        without_model=Success(hits=hits_without, runs=runs),
        with_model=Success(hits=hits_with, runs=runs),
    )


def arenas_of(game: Game) -> list[Arena]:
    """The candidates by what the attacker sees before training: one arena if it is the same under all of them."""
    prepared = [prepare(game, candidate) for candidate in game.candidates]
    tokens = {token for made in prepared for skeleton in made.skeletons if skeleton for token in skeleton}
    tokens.update(token for made in prepared for pieces in made.pieces for piece in pieces for token in piece)
    index = {token: number for number, token in enumerate(sorted(tokens))}
    same: dict[tuple[object, ...], list[tuple[int, Prepared]]] = {}
    for number, made in enumerate(prepared):
        same.setdefault(made.public, []).append((number, made))
    plans: dict[tuple[str, str], Plan] = {}
    arenas = list[Arena]()
    for members in same.values():
        incidence, slots = members[0][1].incidence, members[0][1].slots
        graph = (incidence.fingerprint, slots.fingerprint)
        if graph not in plans:
            plans[graph] = make_plan(
                incidence,
                slots=slots,
                prior=game.stated_prior,
                ceiling=game.ceiling,
                batch_size=game.batch_size,
                rounds=game.rounds,
                clip_norm=game.clip_norm,
                capacity="none",
            )
        arenas.append(_arena(game, plans[graph], members, index))
    return arenas
