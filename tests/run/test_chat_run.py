"""Conversations from ``hush init --chat`` to a verified release: one run of a tiny instruct model with its template."""

import json
import random
import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import hush
from command_line import run as command
from hush.data import read_corpus
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.plan import Plan
from hush.run import run_pipeline
from hush.run.config import load_config
from hush.slots import spans_in
from hush.train.fit import fit
from hush.train.settings import Recipe
from instruct_model import save_instruct_model

TOPICS = ["the invoice", "a parcel", "my password", "the contract", "a refund"]


def chats(count: int = 60) -> list[dict[str, list[dict[str, str]]]]:
    """Questions of customers; every fifth answer repeats an access code."""
    rng, rows = random.Random(0), []
    for number in range(count):
        topic, code = rng.choice(TOPICS), f"AX-{rng.randrange(10_000):04d}"
        said = f"Gladly: {topic} is on its way." + (f" It is under {code}." if number % 5 == 0 else "")
        question = {"role": "user", "content": f" Hello, where is {topic}? "}
        system = {"role": "system", "content": "You help customers."}
        rows.append({"messages": [system, question, {"role": "assistant", "content": said}]})
    return rows


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the config that ``hush init --chat`` writes, as a user would change it."""
    folder, rows = tmp_path_factory.mktemp("chats"), chats()
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    save_instruct_model(folder / "model", [message["content"] for row in rows for message in row["messages"]])
    config = folder / "hush.yaml"
    assert command("init", "--chat", "--output", config).exit_code == 0
    text = config.read_text()
    for line, changed in (
        (r"  chat_template: chatml.*\n", ""),
        (r"  small: .*", "  name: model"),
        (r"batch_size: auto.*", "batch_size: 6"),
        (r"rounds: auto.*", "rounds: 3"),
        (r"# public_first: false.*", "public_first: false"),
        (r"private_part: auto.*", "private_part: true"),
        (r"# learn: assistant.*", "learn: assistant"),
        (r"trials: 2000.*", "trials: 50\n  prompts: [8]"),
        (r"secrets: 5.*", "secrets: 1"),
        (r"# attest: .*", "attest: {private_key: private.pem}"),
        (r"# report: .*", "report: {frontier: false, methods: false}"),
    ):
        text, count = re.subn(line, changed, text, count=1)
        assert count == 1, line
    config.write_text(text)
    assert command("attest", "--new-key", folder / "private.pem", folder / "public.pem").exit_code == 0
    run_pipeline(load_config(config), output=folder / "run")
    return folder


def test_the_release_keeps_its_promises_and_writes_texts_as_they_were_trained(desk: Path) -> None:
    release = desk / "run" / "release"
    verified = hush.verify(release, public_key=desk / "public.pem")
    assert verified.passed
    assert {"model.sig", "attestations"} <= {check.name for check in verified.checks}
    ours, theirs = (AutoTokenizer.from_pretrained(folder) for folder in (desk / "model", release / "model"))
    assert theirs.chat_template == ours.chat_template
    corpus = read_corpus(desk / "run" / "owner" / "scan" / "owner" / "data.parquet")
    rows = chats()
    assert list(corpus.texts()) == [ours.apply_chat_template(row["messages"], tokenize=False) for row in rows]
    told = [text[begin:end] for text, ranges in corpus.texts_with_answers() for begin, end in ranges or ()]
    assert told == [row["messages"][2]["content"] + "<|im_end|>" for row in rows]
    spans = spans_in(desk / "run" / "owner" / "scan")
    assert spans is not None
    assert len(spans.slots) == 12


def test_another_template_is_refused_and_a_model_without_one_too(desk: Path, tmp_path: Path) -> None:
    other = save_instruct_model(tmp_path / "other", ["hello"], template="{{ messages[0].content }}")
    owner = desk / "run" / "owner"
    scan = owner / "scan"
    corpus = read_corpus(scan / "owner" / "data.parquet")
    with pytest.raises(InvalidInput, match="another chat template"):
        fit(
            Plan.load(owner / "plan"),
            Recipe(model=str(other)),
            corpus,
            key=DataKey.load(owner / "data.key"),
            spans=spans_in(scan),
            output=tmp_path / "trained",
        )
    bare = save_instruct_model(tmp_path / "bare", ["hello"], template=None)
    content = (desk / "hush.yaml").read_text().replace("name: model", f"name: {bare}")
    (desk / "bare.yaml").write_text(content)
    with pytest.raises(InvalidInput, match=r"data.chat_template|no chat template"):
        run_pipeline(load_config(desk / "bare.yaml"), output=tmp_path / "run")
