"""The examples of the help, run one after the other as they stand there: all work, in JSON and in words."""

import inspect
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from rich.console import Console
from tokenizers import Tokenizer, models, pre_tokenizers
from typer.testing import Result

from command_line import refused, run
from hush.cli import app

AT_ONCE = ("init", "run", "sign", "verify", "attest")
BY_STEPS = ("scan", "explain", "posterior", "calibrate", "frontier", "plan", "canaries", "train", "audit", "report")
ORDER = (*AT_ONCE, *BY_STEPS)
# They have tests of their own: they take minutes, or need spans or several releases.
ELSEWHERE = {"demo", "ledger", "prior", "redact", "rehearse"}
INSTANT = {"attest", "init", "posterior", "sign"}  # a new pair of keys and the like are not worth a time
HELP = {one.callback.__name__: inspect.getdoc(one.callback) or "" for one in app.registered_commands if one.callback}
RULES = """
defaults: {prior: 1e-6, ceiling: 1e-2}
rules:
  - {name: customers, find: literals, values: [Acme, Globex, Initech, Umbrella]}
"""
FILLED_IN = """
version: 1
data: {source: mail.jsonl}
rules: rules.yaml
plan: {batch_size: 16, rounds: 3}
model: {name: gpt2}
training: {device: cpu}
audit: {attacks: [mechanism], trials: 50, secrets: 1}
report: {frontier: false, methods: false}
"""


def examples(name: str) -> list[list[str]]:
    """The commands of a help text."""
    (paragraph,) = [part for part in HELP[name].split("\n\n") if part.startswith("Example: ")]
    return [shlex.split(words) for words in re.findall(r"`hush ([^`]*)`", paragraph.replace("\n", " "))]


@pytest.fixture(scope="module")
def story(warm_public_process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Result]]]:
    """What every example came to, in a folder with data, rules and a tiny model of the names that the help uses."""
    root = tmp_path_factory.mktemp("story")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    names = ("Acme", "Globex", "Initech", "Umbrella")
    who = [names[number % 4] if number % 7 == 5 else "nobody" for number in range(120)]
    texts = [f"Message {number:03d} of the day: {one} called" for number, one in enumerate(who)]
    (root / "mail.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (root / "rules.yaml").write_text(RULES)
    words = ["<pad>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    letters = Tokenizer(models.BPE(vocab={word: index for index, word in enumerate(words)}, merges=[]))
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokens = hf.PreTrainedTokenizerFast(tokenizer_object=letters, pad_token="<pad>", eos_token="<end>")
    tokens.model_max_length = 48
    tokens.save_pretrained(root / "gpt2")
    shape: dict[str, Any] = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 48, "vocab_size": len(words)}
    hf.GPT2LMHeadModel(hf.GPT2Config(**shape, bos_token_id=1, eos_token_id=1)).save_pretrained(root / "gpt2")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        told: dict[str, list[Result]] = {}
        for name in ORDER:
            told[name] = [run(*words, "--json", "--verbose") for words in examples(name)]
            if name == "init":
                Path("hush.yaml").write_text(FILLED_IN)
        yield told
    torch.set_num_threads(threads)


def test_every_command_is_in_the_story() -> None:
    assert {*ORDER, *ELSEWHERE} == set(HELP)


@pytest.mark.parametrize("name", ORDER)
def test_the_example_works_and_prints_json_alone(story: dict[str, list[Result]], name: str) -> None:
    assert story[name]
    for result in story[name]:
        assert result.exit_code == 0, result.output
        assert isinstance(json.loads(result.stdout), dict)


@pytest.mark.parametrize("name", ORDER)
def test_verbose_says_what_was_done_and_how_long_it_took(story: dict[str, list[Result]], name: str) -> None:
    """But never how long training took: that tells how large its draws were."""
    times = [re.findall(r"^(.+): \d+\.\d\d s$", result.stderr, re.MULTILINE) for result in story[name]]
    assert all(times) != (name in INSTANT)
    if name == "train":
        assert times == [["Reading the plan"]]


AGAIN = ("explain", "posterior", "calibrate", "verify", "train", "audit")


@pytest.mark.parametrize("name", AGAIN)
def test_quiet_leaves_the_results(story: dict[str, list[Result]], name: str) -> None:
    """Of commands that may be given twice, before or after the name of the command."""
    for words in examples(name):
        after, before, plain = run(*words, "--quiet"), run("--quiet", *words), run(*words)
        assert (after.exit_code, after.stderr, before.stderr) == (0, "", "")
        assert after.stdout
        strip = re.compile(r"\d+\.\d s\n")
        assert strip.sub("", after.stdout) == strip.sub("", before.stdout) == strip.sub("", plain.stdout)


@pytest.mark.parametrize("name", sorted({"init", "scan", "frontier", "plan", "sign", "report"}))
def test_nothing_is_replaced_unless_it_is_said(story: dict[str, list[Result]], name: str) -> None:
    words = examples(name)[-1]
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert "pass --force to overwrite" in refused(2, *words)
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before
    if name not in ("scan", "plan"):  # what follows them would not fit any more
        assert run(*words, "--force").exit_code == 0


def test_canaries_are_never_replaced(story: dict[str, list[Result]]) -> None:
    """A model may have been trained on them already."""
    assert "pass a new folder for the canaries as --output" in refused(2, *examples("canaries")[0])
    assert "No such option" in refused(2, *examples("canaries")[0], "--force")


# --- the demo, which is no part of the story


def test_the_noise_table_is_json_alone_if_asked_for_and_is_kept(tmp_path: Path) -> None:
    words = ("demo", "--noise-table", "--quick", "--output", tmp_path)
    shown = run(*words, "--json", "--quiet")
    assert (shown.exit_code, shown.stderr) == (0, "")
    record = json.loads(shown.stdout)
    assert [row["examples_per_secret"] for row in record["table"]] == [12, 1]
    assert all(Path(path).is_file() for path in record["files"])
    for name in ("noise.json", "noise.png", "noise.svg"):
        alone = tmp_path / name.replace(".", "-")
        alone.mkdir()
        (alone / name).write_text("mine")
        said = f"Error: {alone / name} exists; pass --force to overwrite it, or another --output"
        assert refused(2, *words[:-1], alone) == said
        assert [path.read_text() for path in alone.iterdir()] == ["mine"]
    assert "pass --force to overwrite" in refused(2, *words)


def test_a_demo_tells_its_story_beside_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the demo itself does has tests of its own; here it only speaks and writes."""

    def run_demo(folder: Path, console: Console, **_: object) -> Path:
        console.print("Once upon a time")
        (folder / "demo.json").write_text('{"arms": {}}')
        (folder / "report.html").touch()
        return folder / "report.html"

    monkeypatch.setattr("hush.demo.run.run_demo", run_demo)
    words = ("demo", "--output", tmp_path)
    assert run(*words).stdout == "Once upon a time\n"
    assert f"{tmp_path / 'report.html'} exists; pass --force" in refused(2, *words)
    quiet = run(*words, "--force", "--quiet")
    assert (quiet.stdout, quiet.stderr) == (f"Report: {tmp_path / 'report.html'}\n", "")
    told = run(*words, "--force", "--json")
    assert json.loads(told.stdout) == {"arms": {}, "files": [str(tmp_path / "report.html")]}
    assert told.stderr == "Once upon a time\n"
