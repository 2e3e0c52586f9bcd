"""Who plays the secrets: public documents in groups of the sizes of real secrets, by the graph, a rule and a seed.

A player secret stands for one secret of the plan. It takes that secret's number of examples, its weights and its rule,
and nothing else. By the rule "words" its examples are all documents that share a public word which about as many
documents contain, so that they have something in common as the examples of a secret do, and the word is what is secret
in them. By the rule "random" they are any documents. Documents with the same word among those that are set aside for
judging are its siblings: content like the secrets', never trained on.

Guarantee: a cast is a function of the graph, the slots' rules, the weights, public text and the seed. No secret is
looked at, so none is chosen by likeness to one.

Shapes: N examples of the rehearsal, S player secrets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from hush.arrays import Array
from hush.errors import InvalidInput
from hush.incidence import Incidence
from hush.plan import Plan
from hush.rehearse.content import WORD, PublicContent
from hush.rehearse.settings import Roles
from hush.slots import Spans, slots_of_spans

__all__ = ["REDACTED", "Cast", "Split", "choose_cast", "split_documents"]


REDACTED = "redacted"  # the rule whose placeholder hides a word, where the plan has no rule that hides spans
JUDGED_SHARE, MAX_JUDGED = 0.15, 1500  # of the documents: for the final figures, and as many for the search
MAX_PLAYERS_SHARE = 0.25  # of the documents to train on: the others have to play what is public
NEAR = 1.25  # a group of at most this many times more or fewer documents stands for a secret's
FAR = 2.0  # beyond this factor any documents are taken instead
SIBLINGS_SHARE = 0.5  # of the documents for judging, where no word makes some of them siblings

Documents = NDArray[np.int64]
Span = tuple[int, int]


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Split:
    """The documents in three parts: the final figures are measured on one that the search never sees."""

    train: Documents
    search: Documents
    final: Documents


def split_documents(content: PublicContent, *, seed: int) -> Split:
    """The three parts, at random."""
    order = np.random.default_rng([seed, 1]).permutation(len(content)).astype(np.int64)
    judged = min(MAX_JUDGED, int(JUDGED_SHARE * len(content)))
    final, search, train = np.split(order, (judged, 2 * judged))
    return Split(train=np.sort(train), search=np.sort(search), final=np.sort(final))


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class Cast:
    """The examples of one rehearsal: ordinary ones first, then players, then siblings.

    document_N: which document each is. incidence and spans: of players and siblings. weight_N: how often each is drawn,
    relative to others; 0 for siblings. of_secret_S: which secret of the plan each player secret stands for. judged:
    ordinary documents to measure on.
    """

    document_N: Documents
    num_ordinary: int
    num_players: int
    incidence: Incidence
    spans: Spans
    weight_N: Array
    of_secret_S: NDArray[np.int64]
    judged: Documents

    @property
    def ordinary(self) -> NDArray[np.int64]:
        """The examples that hold no player secret."""
        return np.arange(self.num_ordinary, dtype=np.int64)

    @property
    def players(self) -> NDArray[np.int64]:
        """The examples that hold one, to train on."""
        return np.arange(self.num_ordinary, self.num_ordinary + self.num_players, dtype=np.int64)

    @property
    def siblings(self) -> NDArray[np.int64]:
        """The examples like those, to measure on."""
        return np.arange(self.num_ordinary + self.num_players, len(self.document_N), dtype=np.int64)


def choose_cast(
    plan: Plan, content: PublicContent, train: Documents, judged: Documents, *, roles: Roles, seed: Sequence[int]
) -> Cast:
    """Groups of documents for randomly chosen secrets of the plan, until their share is that of the secrets.

    With labels (``content.group_D``) a group is the documents of a label instead of a word.
    """
    rng = np.random.default_rng([*seed, 2])
    sizes_S = plan.incidence.examples_per_secret
    real = rng.permutation(np.flatnonzero(sizes_S))
    if not real.size:
        raise InvalidInput("no example of the plan holds a secret, so there is nothing to rehearse")
    bearing = int(np.count_nonzero(plan.incidence.secrets_per_example))
    share = min(MAX_PLAYERS_SHARE, bearing / (bearing + content.available))
    number = max(1, round(share * len(train)))
    topics = {} if roles == "random" and content.group_D is None else _topics(content, train, number)
    has_siblings = {topic for topic in topics if np.isin(_documents(content)[topic], judged).any()}
    chooser = _GroupChooser(topics, has_siblings, train, rng)
    groups, players = list[tuple[str | None, Documents]](), set[int]()
    of_secret = list[int]()
    for secret in real.tolist():
        topic, group = chooser.group(min(int(sizes_S[secret]), number))
        if groups and len(players | set(group.tolist())) > NEAR * number:
            continue
        groups.append((topic, group))
        players.update(group.tolist())
        of_secret.append(secret)
        if len(players) >= number:
            break
    return _assembled(plan, content, train, judged, groups, of_secret, rng)


def _documents(content: PublicContent) -> Mapping[str, Documents]:
    """The documents of each word, or of each label where labels are known."""
    return content.documents_by_word if content.group_D is None else content.documents_by_group


def _topics(content: PublicContent, train: Documents, number: int) -> dict[str, Documents]:
    """What documents to train on may have in common: words or labels of at most about ``number`` of them."""
    trained_D = np.isin(np.arange(len(content)), train)
    inside = {topic: documents[trained_D[documents]] for topic, documents in _documents(content).items()}
    return {topic: documents for topic, documents in inside.items() if 0 < documents.size <= NEAR * number}


@final
class _GroupChooser:
    """Hands out groups of documents by size: each topic once, first those with siblings; without a topic, any."""

    def __init__(
        self, topics: Mapping[str, Documents], has_siblings: set[str], train: Documents, rng: np.random.Generator
    ) -> None:
        names = sorted(topics, key=lambda topic: (topics[topic].size, topic))
        self._topics, self._names, self._rng, self._train = topics, names, rng, train
        self._sizes = np.array([topics[name].size for name in names])
        self._is_free = np.ones(len(names), dtype=bool)
        self._has_siblings = np.array([name in has_siblings for name in names], dtype=bool)

    def group(self, size: int) -> tuple[str | None, Documents]:
        """A topic with about this many documents, and they; without one, this many documents."""
        free = np.flatnonzero(self._is_free)
        ratio = np.maximum(self._sizes[free] / size, size / self._sizes[free])
        near = free[ratio <= NEAR]
        if not near.size and free.size and ratio.min() <= FAR:
            near = free[ratio == ratio.min()]
        if self._has_siblings[near].any():
            near = near[self._has_siblings[near]]
        if not near.size:
            return None, np.sort(self._rng.choice(self._train, min(size, self._train.size), replace=False))
        chosen = int(self._rng.choice(near))
        self._is_free[chosen] = False
        name = self._names[chosen]
        return name, self._topics[name]


def _assembled(
    plan: Plan,
    content: PublicContent,
    train: Documents,
    judged: Documents,
    groups: Sequence[tuple[str | None, Documents]],
    of_secret: Sequence[int],
    rng: np.random.Generator,
) -> Cast:
    """The cast of these groups: siblings, graph, spans and weights."""
    by_topic = _documents(content)
    player_documents = np.unique(np.concatenate([group for _, group in groups]))
    like = [np.intersect1d(by_topic[topic], judged) if topic is not None else judged[:0] for topic, _ in groups]
    sibling_documents = np.unique(np.concatenate(like))
    if not sibling_documents.size:  # any documents play, so any are like them
        sibling_documents = np.sort(rng.choice(judged, max(1, int(SIBLINGS_SHARE * judged.size)), replace=False))
        like[0] = sibling_documents
    ordinary = np.setdiff1d(train, player_documents)
    document_N = np.concatenate([ordinary, player_documents, sibling_documents])
    place = {document: ordinary.size + number for number, document in enumerate(player_documents.tolist())}
    behind = ordinary.size + player_documents.size
    sibling_place = {document: behind + number for number, document in enumerate(sibling_documents.tolist())}
    pairs = [(place[document], secret) for secret, (_, group) in enumerate(groups) for document in group.tolist()]
    pairs += [(sibling_place[document], secret) for secret, group in enumerate(like) for document in group.tolist()]
    incidence = Incidence.from_pairs(
        [example for example, _ in pairs],
        [secret for _, secret in pairs],
        num_examples=len(document_N),
        num_secrets=len(groups),
    )
    words = [topic if content.group_D is None else None for topic, _ in groups]
    spans = _spans(plan, content, document_N, incidence, words, of_secret, rng)
    return Cast(
        document_N=document_N,
        num_ordinary=ordinary.size,
        num_players=player_documents.size,
        incidence=incidence,
        spans=spans,
        weight_N=_weights(plan, incidence, of_secret, ordinary.size, behind, rng),
        of_secret_S=np.asarray(of_secret, dtype=np.int64),
        judged=np.setdiff1d(judged, sibling_documents),
    )


def _spans(
    plan: Plan,
    content: PublicContent,
    document_N: Documents,
    incidence: Incidence,
    words: Sequence[str | None],
    of_secret: Sequence[int],
    rng: np.random.Generator,
) -> Spans:
    """What is hidden: every occurrence of a secret's word; without a word, every one of a random word of the text."""
    rules = plan.slots.rules if plan.slots is not None and plan.slots.rules else (REDACTED,)
    rule_S = _rules_of_secrets(plan)
    secret_E = np.repeat(np.arange(incidence.num_secrets), incidence.examples_per_secret)
    columns: tuple[list[int], ...] = ([], [], [], [], [])
    for example, secret in zip(incidence.example_of_entry.tolist(), secret_E.tolist(), strict=True):
        text = content.texts[document_N[example]]
        rule = int(rule_S[of_secret[secret]])
        for begin, end in _hidden(text, words[secret], rng):
            for column, value in zip(columns, (example, begin, end, rule, secret), strict=True):
                column.append(value)
    example, begin, end, rule, secret = columns
    return slots_of_spans(incidence, rules, example=example, begin=begin, end=end, rule=rule, secret=secret)


def _rules_of_secrets(plan: Plan) -> NDArray[np.int64]:
    """The rule of the first slot of each secret; the first rule for a secret without slots."""
    rule_S = np.zeros(plan.incidence.num_secrets, dtype=np.int64)
    if plan.slots is not None and len(plan.slots):
        rule_P = np.repeat(plan.slots.rule_L, np.diff(plan.slots.offset_L))
        rule_S[plan.slots.secret_P[::-1]] = rule_P[::-1]  # of several, the first is written last
    return rule_S


def _hidden(text: str, word: str | None, rng: np.random.Generator) -> Iterator[Span]:
    matches = [(match.group().casefold(), match.span()) for match in WORD.finditer(text)]
    if word is None and matches:
        word = matches[int(rng.integers(len(matches)))][0]
    spans = [span for found, span in matches if found == word]
    yield from spans or ([(0, len(text))] if text else [])


def _weights(
    plan: Plan, incidence: Incidence, of_secret: Sequence[int], ordinary: int, behind: int, rng: np.random.Generator
) -> Array:
    """The weights of the real secrets' examples, dealt to their players; the least where secrets share an example.

    If the plan draws examples without a secret too, those get the share of a batch that they have in the plan.
    """
    weight_N = np.ones(incidence.num_examples)
    for secret, real in enumerate(of_secret):
        examples = incidence.examples_of(secret)
        examples = examples[examples < behind]
        dealt = plan.weights[plan.incidence.examples_of(real)]
        drawn = rng.choice(dealt, examples.size, replace=examples.size > dealt.size)
        weight_N[examples] = np.minimum(weight_N[examples], drawn)
    weight_N[behind:] = 0.0
    players = float(weight_N[ordinary:].sum())
    if plan.draws_secrets_only:
        weight_N[:ordinary] = 0.0
        return weight_N
    bearing_N = plan.incidence.secrets_per_example > 0
    private, public = float(plan.weights[bearing_N].sum()), float(plan.weights[~bearing_N].sum())
    if not private or not players or not ordinary:
        return weight_N
    weight_N[:ordinary] = players * public / (private * ordinary)
    return weight_N / max(1.0, weight_N.max())
