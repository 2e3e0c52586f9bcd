"""Laws that an adversary, a careless owner or a disk may try to break: no false failure, and no pass for nothing."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from audited import masked_bytes, plan_for, release
from hypothesis import given
from hypothesis import strategies as st
from memorising import byte_model, byte_tokenizer
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers import processors as post

import hush
from hush.audit.attempts import extraction_attempts
from hush.audit.audit_files import AuditFolder, read_named_run
from hush.audit.audited_run import AuditedRun
from hush.audit.canaries import Canary, Template
from hush.audit.canary_files import Planting, read_canaries
from hush.audit.candidates import Candidates
from hush.audit.exposure import rank_canary
from hush.audit.generation import Subject
from hush.audit.headline import headline
from hush.audit.mechanism import MechanismAttack
from hush.audit.places import CANARIES, Places
from hush.audit.reconstruction import attack_runs
from hush.audit.run_audit import audit
from hush.audit.scenario import Scenario
from hush.audit.sequences import secret_sequences
from hush.audit.small_runs import train_small_runs
from hush.audit.statistics import Success
from hush.audit.verdict import Attempt, Together, judge
from hush.audit.work import AuditInputs, AuditSettings
from hush.certificate import DATA_FINGERPRINT
from hush.corpus import read_corpus
from hush.errors import InvalidInput
from hush.keyed import DataKey
from hush.storage import record_digest

TOKENIZER = byte_tokenizer()
TOKENIZER.model_max_length = 48
COUNT = 3
FEW = AuditSettings(prompts=(4,), trials=50, candidates=10, seed=0)


@pytest.fixture
def run(tmp_path: Path) -> AuditedRun:
    return release(tmp_path / "run", plan_for(COUNT), byte_model(), TOKENIZER)


def corpus_of(folder: Path, texts: list[str]) -> Any:
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return read_corpus(folder / "texts.jsonl")


def places_of(texts: list[str], secrets: dict[int, str]) -> Places:
    """Every place of these secrets."""
    found = [
        (example, secret, begin, begin + len(said))
        for secret, said in secrets.items()
        for example, text in enumerate(texts)
        for begin in range(len(text))
        if text.startswith(said, begin)
    ]
    columns = np.array(found, dtype=np.int64).reshape(-1, 4).T
    return Places(example=columns[0], secret=columns[1], begin=columns[2], end=columns[3])


# --- bounds that are none


@pytest.mark.parametrize("bound", [float("nan"), float("inf"), -0.1, 1.5])
@pytest.mark.parametrize(
    "measured",
    [
        Success(hits=1, runs=1),
        Together(hits=3, tried=5),
        MechanismAttack(prior=0.1, log_threshold=0.0, detected=Success(hits=5, runs=9), alarms=Success(hits=1, runs=9)),
    ],
)
def test_a_bound_that_is_no_probability_is_refused_and_never_kept(measured: Any, bound: float) -> None:
    with pytest.raises(InvalidInput, match="not a probability"):
        Attempt(attack="extraction", name="a", prior=None, certified=bound, ceiling=None, measured=measured)
    if isinstance(measured, Success | Together):
        with pytest.raises(InvalidInput, match="not a probability"):
            measured.p_value(bound)


@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_bounds_at_the_ends_decide_as_they_say(bound: float) -> None:
    made = judge([
        Attempt(attack="extraction", name="a", prior=None, certified=bound, ceiling=None, measured=measured)
        for measured in (Success(hits=1, runs=1), Together(hits=3, tried=5))
    ])  # fmt: skip
    assert [row.status for row in made.rows] == ["failed" if bound == 0 else "could not fail"] * 2


def test_limits_of_a_ratio_beyond_all_floats_are_numbers() -> None:
    """The suite takes a warning of overflow for an error."""
    attack = MechanismAttack(
        prior=1e-300, log_threshold=5e7, detected=Success(hits=9, runs=9), alarms=Success(hits=0, runs=9)
    )
    assert attack.upper() == 1.0
    assert 0.5 < attack.lower(0.4) <= 1


# --- what one answer may say


@given(st.lists(st.text("ab", min_size=1, max_size=5), min_size=2, max_size=12, unique=True))
def test_the_prior_of_an_answer_counts_all_candidates_that_it_says(values: list[str]) -> None:
    said = max(sum(answer.startswith(value) for value in values) for answer in values)
    prior = Candidates.of_list(values).spoken_prior()
    assert said / len(values) <= prior * (1 + 1e-15)
    assert prior == pytest.approx(said / len(values))


@given(st.lists(st.text("aAbB", min_size=1, max_size=3), min_size=2, max_size=12, unique=True))
def test_candidates_that_a_tokenizer_takes_for_one_are_said_at_once(values: list[str]) -> None:
    folded = [value.lower() for value in values]
    said = max(sum(answer.startswith(value) for value in folded) for answer in folded)
    assert Candidates.of_list(values).spoken_prior(str.lower) == pytest.approx(said / len(values))


def test_formats_that_a_tokenizer_folds_have_fewer_texts() -> None:
    pins = Candidates.of_format("letters", 3)
    assert pins.spoken_prior() == pins.prior
    assert pins.spoken_prior(str.lower) == pytest.approx(26**-3)
    assert Candidates.of_format("hex", 3).spoken_prior(str.lower) == Candidates.of_format("hex", 3).prior


@given(
    st.lists(st.text("abcü", min_size=1, max_size=4), min_size=2, max_size=12, unique=True),
    st.lists(st.integers(1, 8), min_size=12, max_size=12),
)
def test_who_is_told_the_number_of_tokens_has_an_answer_for_each(values: list[str], tokens: list[int]) -> None:
    """Any tokenizer whatever, of which a token holds a byte at least: the best answer to each number of tokens."""
    widths = [min(width, len(value.encode())) for value, width in zip(values, tokens, strict=False)]
    right = sum(
        max(sum(answer.startswith(value) for value in values) for answer, own in zip(values, widths, strict=True)
            if own == width)
        for width in set(widths)
    )  # fmt: skip
    candidates = Candidates.of_list(values)
    assert min(1.0, right / len(values)) <= candidates.masked_prior() * (1 + 1e-15)
    assert candidates.masked_prior() >= candidates.spoken_prior()
    assert Candidates.of_format("hex", 6).masked_prior() == pytest.approx(6 / 16**6)


def test_canaries_that_hold_each_other_are_held_against_a_bound_from_a_larger_prior(run: AuditedRun) -> None:
    classes, hit_of = dict.fromkeys(range(COUNT), CANARIES), dict.fromkeys(range(COUNT), True)
    (plain,) = extraction_attempts(run, hit_of, classes)
    (spoken,) = extraction_attempts(run, hit_of, classes, canary_prior=0.4)
    (certain,) = extraction_attempts(run, hit_of, classes, canary_prior=1.0)
    assert plain.certified is not None
    assert spoken.certified is not None
    assert plain.certified < 1e-5 < 0.4 <= spoken.certified < 1 == certain.certified
    assert spoken.ceiling is None
    assert judge([plain]).failed
    assert not judge([spoken]).failed


def test_the_token_for_unknown_text_says_no_secret(tmp_path: Path) -> None:
    """A model that always says <unk> has learnt nothing of a secret that its tokenizer cannot write."""
    words = {"<unk>": 0, "my": 1, "name": 2, "is": 3, "bo": 4, "<end>": 5}
    level = Tokenizer(models.WordLevel(vocab=words, unk_token="<unk>"))
    level.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=level, unk_token="<unk>", eos_token="<end>", pad_token="<end>", model_max_length=16
    )
    config = transformers.GPT2Config(
        vocab_size=6, n_embd=8, n_layer=1, n_head=1, n_positions=16, bos_token_id=5, eos_token_id=5
    )
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # all tokens tie, and the first wins: <unk>
    run = release(tmp_path / "run", plan_for(COUNT), model, tokenizer)
    texts = ["my name is zoë", "my name is bo", "my name is 漢字", "my", "my", "my"]
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places_of(texts, {0: "zoë", 1: "bo", 2: "漢字"}))
    made = audit(run, inputs, folder=tmp_path / "audit", settings=replace(FEW, prompts=(3,)))
    assert [cell["hits"] for cell in made.record["extraction"][0]["cells"]] == [2]
    assert [row.status for row in made.verdict.rows[-COUNT:]] == ["could not fail", "kept", "could not fail"]
    assert any("in 2 places a secret stands that the tokenizer cannot write" in notice for notice in made.notices)


# --- nothing to copy from


@given(st.lists(st.sampled_from(["Ann", "Bo", "and", "saw"]), min_size=1, max_size=8))
def test_what_a_model_is_shown_holds_no_other_place_of_the_secret(words: list[str]) -> None:
    text = "x " + " ".join(words) + " z"
    places = places_of([text], {0: "Ann", 1: "Bo"})
    for both_sides in (False, True):
        made = secret_sequences(
            [text],
            TOKENIZER,
            example=np.tile(places.example, 2),  # a place may be listed for two reasons
            secret=np.tile(places.secret, 2),
            begin=np.tile(places.begin, 2),
            end=np.tile(places.end, 2),
            both_sides=both_sides,
        )
        for tokens, secret, begin, end in zip(made.tokens, made.secret_N, made.begin_N, made.end_N, strict=True):
            said = TOKENIZER.decode(tokens[begin:end])
            assert said == ("Ann", "Bo")[secret]
            assert said not in TOKENIZER.decode(tokens[:begin])
            assert not both_sides or said not in TOKENIZER.decode(tokens[end:])
        expected = {
            secret
            for secret, said in enumerate(("Ann", "Bo"))
            if said in words and (not both_sides or words.count(said) == 1)
        }
        assert set(made.secret_N.tolist()) == expected
        assert len(made) + made.left_out.total == 2 * len(places)


def test_masked_models_are_not_shown_a_copy_behind_the_secret(tmp_path: Path) -> None:
    config, tokenizer = masked_bytes()
    run = release(tmp_path / "run", plan_for(COUNT), transformers.BertForMaskedLM(config), tokenizer)
    texts = ["Ann met Ann", "only Bo", "Bo, Ann, Bo", "none", "none", "none"]
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places_of(texts, {0: "Ann", 1: "Bo"}))
    made = audit(run, inputs, folder=tmp_path / "audit", settings=FEW)
    (found,) = made.found
    tried = set(zip(found.sequences.example_N.tolist(), found.sequences.secret_N.tolist(), strict=True))
    assert tried == {(1, 1), (2, 0)}
    assert made.record["extraction"][0]["left_out"]["repeated"] == 4


@pytest.mark.parametrize("special", [False, True])
@given(before=st.text("ab é漢", max_size=9), secret=st.text("ab é漢", min_size=1, max_size=5))
def test_prompts_end_before_the_secret_whatever_the_tokens_are(special: bool, before: str, secret: str) -> None:
    """Merges across the secret's borders, several bytes for a character, tokens that stand for no character."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("a", "b"), ("ab", "a"), ("b", "b"), ("Ġ", "a"), ("Ã", "©")]
    words = ["<s>", *alphabet, *("".join(pair) for pair in merges)]
    level = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=merges))
    level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if special:
        level.post_processor = post.TemplateProcessing(single="<s> $A <s>", special_tokens=[("<s>", 0)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=level, bos_token="<s>")
    text, first, last = f"{before}{secret}a", len(before), len(before) + len(secret)
    made = secret_sequences([text], tokenizer, example=[0], secret=[0], begin=[first], end=[last])
    assert len(made) == 1
    begin, end = int(made.begin_N[0]), int(made.end_N[0])
    byte_of = {"".join(pair): len("".join(pair)) for pair in merges}

    def size(tokens: np.ndarray) -> int:
        return sum(byte_of.get(words[token], 0 if token == 0 else 1) for token in tokens)

    assert size(made.tokens[0][:begin]) <= len(before.encode())
    assert size(made.tokens[0][:end]) >= len(f"{before}{secret}".encode())


def test_secrets_whose_beginning_was_cut_off_are_not_tried() -> None:
    """A tokenizer that keeps the end of long texts: what is left of a secret is not the secret."""
    tokenizer = byte_tokenizer()
    tokenizer.truncation_side = "left"
    text = "key: abcdef."
    places: dict[str, Any] = {"example": [0], "secret": [0], "begin": [5], "end": [11]}
    for length, cut in ((12, 0), (7, 0), (6, 1), (3, 1), (1, 1)):
        made = secret_sequences([text], tokenizer, **places, max_length=length)
        assert (made.left_out.cut, len(made)) == (cut, 1 - cut)


# --- the attack does not know the truth


def test_a_rank_does_not_depend_on_where_the_true_candidate_stands() -> None:
    """A model whose rounding favours some rows of a batch: over all truths each rank is taken once."""

    class Favours(torch.nn.Module):
        """Adds to the rows of a batch what rounding might; the very first gets most."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = byte_model()
            self.config = self.inner.config

        def get_input_embeddings(self) -> Any:
            return self.inner.get_input_embeddings()

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            """Nothing but the row's place speaks: the token that follows is the likelier, the earlier the row."""
            sharp = 1.0 / (1 + torch.arange(len(input_ids), dtype=torch.float32))
            digits = torch.zeros(len(input_ids), input_ids.shape[1], 257)
            digits[:, :, TOKENIZER.convert_tokens_to_ids(list("0123456789"))] = sharp[:, None, None]
            return SimpleNamespace(logits=digits)

    candidates = Candidates.of_format("digits", 1)
    ranks = [
        rank_canary(
            Subject.of(Favours().eval()),
            TOKENIZER,
            Canary(id="canary-000000", template=Template.parse("Code: {secret}"), truth=truth, examples=(0,)),
            candidates,
            max_length=48,
            batch_size=10,
        ).rank
        for truth in range(10)
    ]
    assert sorted(ranks) == list(range(1, 11))


def test_runs_of_another_scenario_are_refused() -> None:
    scenario: Any = Scenario(
        model=torch.nn.Linear(2, 1), loss=lambda model, batch: model(batch["x"]).squeeze(-1),
        data={"x": torch.zeros(2, 2)}, candidates={"x": torch.eye(2)[:, None]}, holders=np.array([0]),
        rates=np.array([0.5, 0.5]), noise_multiplier=1.0, rounds=2, batch_size=1.0, clip_norm=1.0, learning_rate=1.0,
    )  # fmt: skip
    made = train_small_runs(scenario, runs=4, generator=torch.Generator().manual_seed(0))
    assert attack_runs(scenario, made).runs == 4
    with pytest.raises(InvalidInput, match="truth outside"):
        attack_runs(scenario, replace(made, truth=made.truth + 2))
    with pytest.raises(InvalidInput, match="the scenario, and with it the bound"):
        attack_runs(replace(scenario, rounds=1), made)


# --- a pass for nothing


def test_a_model_is_no_reference_for_itself(run: AuditedRun, tmp_path: Path) -> None:
    shutil.copytree(run.model, tmp_path / "copy")
    texts = ["my key is abc", "xyz"] * COUNT
    inputs = {"corpus": corpus_of(tmp_path, texts), "places": places_of(texts, {0: "abc"})}
    for name in (run.model, tmp_path / "copy"):
        with pytest.raises(InvalidInput, match="reference is the model under audit"):
            audit(run, AuditInputs(**inputs, reference=str(name)), folder=tmp_path / "audit", settings=FEW)
    byte_model(seed=1).save_pretrained(tmp_path / "copy")
    other = Tokenizer(models.WordLevel(vocab={"a": 0, "<end>": 1}, unk_token="a"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=other, eos_token="<end>").save_pretrained(tmp_path / "copy")
    with pytest.raises(InvalidInput, match="another tokenizer"):
        audit(run, AuditInputs(**inputs, reference=str(tmp_path / "copy")), folder=tmp_path / "audit", settings=FEW)


def test_canaries_of_another_planting_are_refused(run: AuditedRun, tmp_path: Path) -> None:
    candidates = Candidates.of_format("digits", 3)
    template = Template.parse("Code: {secret}.")
    canary = Canary(id=run.plan.secret_ids[0], template=template, truth=7, examples=(1, 4))
    planting = Planting(id="one", canaries=(canary,), candidates=candidates)
    texts = ["other"] * (2 * COUNT)
    texts[1] = texts[4] = template.filled("007")
    settings = replace(FEW, attacks=("exposure",))
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), planting=planting)
    assert audit(run, inputs, folder=tmp_path / "audit", settings=settings).record["exposure"]["canaries"] == 1
    for wrong in (replace(canary, truth=8), replace(canary, examples=(1, 3)), replace(canary, examples=(1, 4, 99))):
        inputs = AuditInputs(corpus=inputs.corpus, planting=replace(planting, canaries=(wrong,)))
        with pytest.raises(InvalidInput, match="canaries of these") as caught:
            audit(run, inputs, folder=tmp_path / "audit", settings=settings)
        assert "008" not in str(caught.value)


def test_a_reader_is_told_that_the_model_was_not_attacked_or_the_data_not_compared(
    run: AuditedRun, tmp_path: Path
) -> None:
    made = audit(run, folder=tmp_path / "one", settings=FEW)
    assert any("no attack on the model itself" in notice for notice in made.notices)
    texts = ["my key is abc", "xyz"] * COUNT
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places_of(texts, {0: "abc"}))  # nobody compared
    made = audit(run, inputs, folder=tmp_path / "two", settings=FEW)
    assert any("nobody checked that these are the data" in notice for notice in made.notices)
    nobody = "Nobody checked that the model was trained on what it was attacked with."
    assert nobody in headline(made.record)
    checked = audit(run, replace(inputs, compared=True), folder=tmp_path / "three", settings=FEW)
    assert made.verdict.status == checked.verdict.status == "kept"
    assert nobody not in headline(checked.record)
    assert not any("no attack on the model itself" in notice for notice in made.notices)


def test_a_run_that_did_not_check_its_data_is_audited_and_the_reader_is_told(tmp_path: Path) -> None:
    """As by PrivateTraining without data: the plan names the data, and the certificate rightly does not."""
    texts = ["my key is abc", "xyz"] * COUNT
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts), places=places_of(texts, {0: "abc"}), compared=True)
    plan = plan_for(COUNT, data_fingerprint=DataKey.create(tmp_path / "my.key").fingerprint_rows(texts))
    for name, unnamed in (("checked", ()), ("not", (DATA_FINGERPRINT,))):
        run = release(tmp_path / name, plan, byte_model(), TOKENIZER, unnamed=unnamed)
        made = audit(run, inputs, folder=tmp_path / name / "audit", settings=FEW)
        assert any("training did not check" in notice for notice in made.notices) == bool(unnamed)


@pytest.mark.parametrize("name", ["model", "incidence", "promises", "weights", "posteriors"])
def test_a_certificate_must_name_all_else(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"not the model of|differ in fingerprint of the {name};"):
        release(tmp_path / "run", plan_for(COUNT), byte_model(), TOKENIZER, unnamed=(name,))


def test_whole_examples_are_named_by_their_numbers_in_the_data(run: AuditedRun, tmp_path: Path) -> None:
    plan = replace(run.plan, incidence=hush.Incidence.from_pairs([1, 3, 5], range(3), num_examples=6, num_secrets=3))
    moved = release(tmp_path / "moved", plan, byte_model(), TOKENIZER)
    texts = [f"a long text with a number, {number}" for number in range(5)] + ["short"]
    inputs = AuditInputs(corpus=corpus_of(tmp_path, texts))
    made = audit(moved, inputs, folder=tmp_path / "audit", settings=replace(FEW, attacks=("extraction",)))
    (found,) = made.found
    assert found.sequences.example_N.tolist() == [1, 3]
    assert [TOKENIZER.decode(row) for row in found.sequences.tokens] == [texts[1], texts[3]]


# --- files that were changed


def test_a_plan_with_other_noise_under_the_same_posteriors_is_refused(run: AuditedRun) -> None:
    path = run.model.parent / "plan" / "plan.json"
    for name, value in (("noise_multiplier", run.plan.noise_multiplier / 2), ("rounds", run.plan.rounds + 1)):
        kept = path.read_text()
        record = json.loads(kept)
        del record["digest"]
        record[name] = value
        path.write_text(json.dumps(record | {"digest": record_digest(record)}))
        with pytest.raises(InvalidInput, match="not the plan"):
            AuditedRun.load(run.model.parents[1])
        path.write_text(kept)
    AuditedRun.load(run.model.parents[1])


@pytest.mark.parametrize("fingerprints", [5, [], "x", None])
def test_a_certificate_without_fingerprints_is_refused(run: AuditedRun, fingerprints: object) -> None:
    path = run.model.parent / "certificate.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fingerprints": fingerprints}))
    with pytest.raises(InvalidInput, match="not a certificate"):
        AuditedRun.load(run.model.parents[1])


@pytest.mark.parametrize("recipe", ["[]", '"x"', '{"max_length": "x"}', '{"max_length": -3}', '{"max_length": true}'])
def test_a_recipe_that_says_no_length_is_refused(run: AuditedRun, recipe: str) -> None:
    (run.model.parents[1] / "owner").mkdir()
    (run.model.parents[1] / "owner" / "recipe.json").write_text(recipe)
    with pytest.raises(InvalidInput, match=r"recipe\.json"):
        AuditedRun.load(run.model.parents[1])


PIECES: dict[str, Callable[[list[str]], list[str]]] = {
    "changed": lambda lines: [*lines[:2], lines[2].replace("2", "9"), *lines[3:]],
    "doubled": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "another kind": lambda lines: [*lines[:2], '{"prompt": 3}', "5", *lines[2:]],
}


@pytest.mark.parametrize("how", list(PIECES))
def test_pieces_that_were_changed_are_done_again(tmp_path: Path, how: str) -> None:
    folder = AuditFolder(tmp_path)
    pieces = folder.pieces("secrets", ["a", "b"])
    records = [{"rows": [number, 2], "matched": [0.1, -float("inf")]} for number in range(4)]
    for record in records:
        pieces.add(record)
    assert folder.pieces("secrets", ["a", "b"]).done == records
    assert folder.pieces("other", ["a", "b"]).done == []
    path = tmp_path / "owner" / "secrets.jsonl"
    path.write_text("\n".join(PIECES[how](path.read_text().splitlines())) + "\n")
    again = folder.pieces("secrets", ["a", "b"])
    assert again.done == records[: len(again.done)]
    assert len(again.done) < 4
    for record in records[len(again.done) :]:
        again.add(record)
    assert folder.pieces("secrets", ["a", "b"]).done == records


RIGHT = {"model": "m", "planting": "p", "hit": True, "prior": 0.1, "certified": 0.2}


@pytest.mark.parametrize(
    "change",
    [
        {"certified": "x"}, {"certified": 2.0}, {"certified": -1.0}, {"certified": 0.05}, {"prior": None}, {"prior": 0},
        {"hit": 7}, {"hit": "yes"}, {"model": None}, {"planting": ""}, {"more": 1},
    ],
)  # fmt: skip
def test_an_edited_report_is_not_counted(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "audit.json").write_text(json.dumps({"naming": RIGHT}))
    assert read_named_run(tmp_path).hit
    (tmp_path / "audit.json").write_text(json.dumps({"naming": RIGHT | change}))
    with pytest.raises(InvalidInput, match="no audit in which a canary"):
        read_named_run(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"canaries": 5}, {"canaries": []}, {"canaries": [{"id": "a"}]}, {"candidates": {"letters": "xyz", "length": 2}},
        {"candidates": None}, {"candidates": {"letters": "0123456789", "length": 1}},
    ],
)  # fmt: skip
def test_a_changed_file_of_canaries_is_refused_without_its_text(tmp_path: Path, change: dict[str, object]) -> None:
    one = {"id": "canary-000000", "before": "Hidden ", "after": "", "truth": 42, "examples": [3]}
    right = {"kind": "hush canaries 1", "id": "x", "canaries": [one]}
    right["candidates"] = {"letters": "0123456789", "length": 2}
    (tmp_path / "canaries.json").write_text(json.dumps(right))
    assert read_canaries(tmp_path / "canaries.json").canaries[0].truth == 42
    (tmp_path / "canaries.json").write_text(json.dumps(right | change))
    with pytest.raises(InvalidInput, match="not a file of canaries") as caught:
        read_canaries(tmp_path / "canaries.json")
    assert "Hidden" not in str(caught.value)
    assert "42" not in str(caught.value).replace(str(tmp_path), "")


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInput, match="is not there"):
        AuditSettings(device="mars")
