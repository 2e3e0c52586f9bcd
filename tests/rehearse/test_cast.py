"""Who plays the secrets: groups of the sizes of real ones, by words, labels or chance; apart from what judges."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted import LITTLE_NOISE, content_of, corpus, planned

from hush.plan import Plan
from hush.rehearse.cast import MAX_PLAYERS_SHARE, NEAR, Cast, choose_cast, split_documents
from hush.rehearse.content import WORD, PublicContent
from hush.rehearse.settings import Roles

DATA = corpus()
PLANS = {slotted: planned(DATA, slotted=slotted, **LITTLE_NOISE) for slotted in (True, False)}
CONTENT = {slotted: content_of(DATA, plan) for slotted, plan in PLANS.items()}


def chosen(plan: Plan, content: PublicContent, *, roles: Roles = "words", seed: int = 0) -> Cast:
    split = split_documents(content, seed=seed)
    return choose_cast(plan, content, split.train, split.search, roles=roles, seed=(seed, 0))


def words_of(content: PublicContent, document: int) -> set[str]:
    return {word.casefold() for word in WORD.findall(content.texts[document])}


def hidden_words(cast: Cast, content: PublicContent) -> dict[str, set[int]]:
    """The words that one player secret hides in several examples, and these examples."""
    found: dict[str, set[int]] = {}
    for secret in range(cast.incidence.num_secrets):
        words: dict[str, set[int]] = {}
        for slot in range(len(cast.spans.slots)):
            if secret in cast.spans.slots.secrets_of(slot):
                example = int(cast.spans.slots.example_L[slot])
                begin, end = int(cast.spans.begin_L[slot]), int(cast.spans.end_L[slot])
                word = content.texts[cast.document_N[example]][begin:end].casefold()
                words.setdefault(word, set()).add(example)
        if len(words) == 1 and len(next(iter(words.values()))) > 1:  # others hide any word of any document
            found |= words
    return found


@given(st.integers(0, 1000), st.booleans(), st.sampled_from(["words", "random"]))
@settings(max_examples=15)
def test_every_document_has_one_role_and_judges_of_the_end_have_none(seed: int, slotted: bool, roles: Roles) -> None:
    content = CONTENT[slotted]
    split = split_documents(content, seed=seed)
    cast = chosen(PLANS[slotted], content, roles=roles, seed=seed)
    used = np.concatenate([cast.document_N, cast.judged])
    assert np.unique(used).size == used.size
    assert not np.intersect1d(used, split.final).size
    assert np.isin(cast.document_N[: cast.num_ordinary + cast.num_players], split.train).all()
    assert np.isin(np.concatenate([cast.document_N[cast.siblings], cast.judged]), split.search).all()
    assert cast.siblings.size
    assert (cast.weight_N[cast.siblings] == 0).all()
    assert (cast.incidence.secrets_per_example[cast.ordinary] == 0).all()
    assert (cast.incidence.secrets_per_example[cast.players] > 0).all()
    assert cast.num_players <= NEAR * MAX_PLAYERS_SHARE * split.train.size + 1


@given(st.integers(0, 1000))
@settings(max_examples=15)
def test_groups_are_as_large_as_the_secrets_that_they_play(seed: int) -> None:
    plan, content = PLANS[True], CONTENT[True]
    cast = chosen(plan, content, seed=seed)
    real = plan.incidence.examples_per_secret[cast.of_secret_S]
    played = np.array([int(np.isin(cast.incidence.examples_of(s), cast.players).sum()) for s in range(real.size)])
    assert np.unique(cast.of_secret_S).size == cast.of_secret_S.size
    assert (played <= 2 * real).all()
    assert (real <= 2 * played).all()


def test_a_word_that_is_secret_occurs_in_no_ordinary_document() -> None:
    plan, content = PLANS[True], CONTENT[True]
    cast = chosen(plan, content)
    hidden = hidden_words(cast, content)
    assert len(hidden) > 3
    assert any(cast.siblings[0] <= example for examples in hidden.values() for example in examples)
    for word, examples in hidden.items():
        for example, document in enumerate(cast.document_N.tolist()):
            assert (word in words_of(content, document)) <= (example in examples)
        assert not any(word in words_of(content, document) for document in cast.judged.tolist())


def test_skeletons_play_too_and_their_placeholders_are_no_words() -> None:
    content = CONTENT[True]
    with_slots = [text for text in content.texts if "[codes]" in text]
    assert len(with_slots) == DATA.incidence.num_entries
    assert "codes" not in content.documents_by_word
    assert not any("[codes]" in text for text in CONTENT[False].texts)


def test_labels_make_groups_where_they_are_known() -> None:
    content = CONTENT[False]
    labels = tuple(f"author {number % 50}" for number in range(len(content)))
    labelled = replace(content, group_D=labels)
    cast = chosen(PLANS[False], labelled)
    of_group = [
        {labels[document] for document in cast.document_N[cast.incidence.examples_of(secret)].tolist()}
        for secret in range(cast.incidence.num_secrets)
    ]
    assert all(len(of_secret) == 1 for of_secret in of_group)
    assert len(set.union(*of_group)) == len(of_group) > 3


def test_weights_are_dealt_from_those_of_the_real_examples() -> None:
    rng = np.random.default_rng(0)
    plan = PLANS[True]
    weights = np.where(plan.weights > 0, rng.uniform(0.1, 0.9, plan.weights.size), 0.0)
    cast = chosen(replace(plan, weights=weights), CONTENT[True])
    assert np.isin(cast.weight_N[cast.players], weights[weights > 0]).all()
    assert (cast.weight_N[cast.ordinary] == 0).all()


def test_a_plan_that_draws_everything_gives_players_their_share_of_a_batch() -> None:
    data = corpus(secrets=10)
    plan = planned(data, slotted=False, draw="all", keep=1.0, **LITTLE_NOISE)
    assert not plan.draws_secrets_only
    cast = chosen(plan, content_of(data, plan))
    bearing = plan.incidence.secrets_per_example > 0
    real = plan.weights[bearing].sum() / plan.weights.sum()
    assert cast.weight_N[cast.players].sum() / cast.weight_N.sum() == pytest.approx(real)
    assert cast.weight_N.max() <= 1


def test_a_cast_is_a_function_of_its_seed() -> None:
    first, again, other = (chosen(PLANS[True], CONTENT[True], seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.document_N, again.document_N)
    assert first.spans.slots == again.spans.slots
    assert not np.array_equal(first.document_N, other.document_N)
