"""The config: each of many typical mistakes gets a message with its line, its key and the remedy, and no text of it."""

import copy
import json
import re
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.audit.canaries import Candidates
from hush.audit.settings import CanarySettings
from hush.audit.statistics import Success
from hush.audit.verdict import Attempt, judge
from hush.cli.canaries import canaries
from hush.errors import InvalidInput
from hush.protection import Protection
from hush.run.config import Config, load_config, template
from hush.run.sections import AuditSection
from hush.scan import scan

TOKEN = "hunter2-Zq81x"  # stands for a secret; no message may hold it
RULE = {"name": "rare-words", "find": "words", "documents": [5, 50]}
RIGHT: dict[str, Any] = {
    "data": {"source": "data.jsonl"},
    "promises": {"prior": 1e-10, "ceiling": 1e-3},
    "rules": [RULE],
    "plan": {"batch_size": 16, "rounds": 100},
    "model": {"name": "gpt2"},
}
WRONG = yaml.safe_load(Path(__file__).with_name("wrong_configs.yaml").read_text())


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, in which the tests stand."""
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(content: object, name: str = "hush.yaml") -> Path:
    path = Path(name)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return path


def said_of(content: object) -> str:
    """The message about a config, which may not hold the planted secret, nor may anything that it came from."""
    path = written(content)
    with pytest.raises(InvalidInput) as raised:
        load_config(path)
    assert TOKEN not in "".join(traceback.format_exception(raised.value))
    return str(raised.value)


def changed(case: dict[str, Any]) -> dict[str, Any]:
    """The right config with what a case drops and sets."""
    content = copy.deepcopy(RIGHT)
    for name in case.get("drop", []):
        del content[name]
    for path, value in case.get("set", {}).items():
        *above, last = path.split(".")
        inside = content
        for step in above:
            inside = inside[step]
        inside[last] = value
    return content


def test_there_are_enough_mistakes_and_no_two_alike() -> None:
    assert len(WRONG) >= 30
    assert len({case["says"] for case in WRONG}) == len(WRONG)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case["case"])
def test_a_mistake_is_named_with_its_line_its_key_and_the_remedy(desk: Path, case: dict[str, Any]) -> None:
    assert said_of(changed(case)) == case["says"]


def test_the_config_without_mistakes_is_right(desk: Path) -> None:
    config = load_config(written(RIGHT))
    assert config.source == "data.jsonl"
    assert config.rules.protection(config.rules.rules[0]) == Protection(1e-10, 1e-3)
    assert config.audit is None
    assert repr(config) == "Config(rare-words: words; gpt2, 100 rounds of 16)"


def test_all_mistakes_are_listed_in_the_order_of_the_file(desk: Path) -> None:
    said = said_of(
        f"data: {{sourc: {TOKEN}}}\nrules:\n- {{name: r, find: words}}\nplan: {{batch_size: 16, rounds: -1}}\n"
        "model: {name: gpt2}\ntraining: {optimiser: sgd}\n"
    )
    assert [line.strip().split(":")[0] for line in said.splitlines()[1:]] == [
        "line 1",
        "line 1",
        "line 3",
        "line 4",
        "line 6",
    ]
    assert "(did you mean source?)" in said
    assert "(did you mean optimizer?)" in said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "the file is empty; it takes a mapping with data, rules, plan and model"),
        (f"- {TOKEN}", "the file is a list; it takes a mapping"),
        (f"a: [{TOKEN}", "this is not valid YAML; check indentation and quotes"),
        (f"data: 1\ndata: {TOKEN}", "line 2: a key occurs twice in one mapping, first on line 1"),
    ],
)
def test_what_is_no_config_at_all_is_said_so(desk: Path, content: str, words: str) -> None:
    assert words in said_of(content)


@settings(max_examples=60, deadline=None)
@given(
    section=st.sampled_from([*RIGHT, "training", "audit", "report", "output", "chunks"]),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.just(TOKEN),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from([TOKEN, "name", "find"]), inner),
        max_leaves=4,
    ),
)
def test_whatever_stands_in_a_section_is_read_or_refused_without_being_quoted(section: str, value: Any) -> None:
    content = copy.deepcopy(RIGHT) | {"data": {"source": "imdb"}, section: value}
    if section in ("data", "output") or (section == "rules" and isinstance(value, str)):
        return  # a path is shown, so that its owner can mend it
    said = ""
    try:
        Config.of(content)
    except InvalidInput as error:
        said = "".join(traceback.format_exception(error))
    assert TOKEN not in said


@pytest.mark.parametrize("kind", ["text", "code"])
def test_a_template_is_right_once_the_data_is_there(desk: Path, kind: Any) -> None:
    path = written(template(kind))
    named = yaml.safe_load(path.read_text())["data"]["source"]
    if kind == "code":
        with pytest.raises(InvalidInput, match=r"data\.source: repository is not a folder"):
            load_config(path)
        Path(named).mkdir()
    config = load_config(path)
    assert config.about_code == (kind == "code")
    assert config.audit is not None
    assert config.audit.reference == "base-model"


def test_the_template_for_texts_promises_small_priors_for_random_keys_alone(desk: Path) -> None:
    """Whichever rules are switched on: a word, a name or a customer has no prior of one in ten thousand million."""
    lines = template("text").splitlines()
    first, last = lines.index("rules:"), next(n for n, line in enumerate(lines) if line.startswith("# --- Long texts"))
    lines[first:last] = [line.replace("# ", "", 1) if line.startswith("  # ") else line for line in lines[first:last]]
    Path("customers.txt").write_text("Acme\n")
    Path("private.pem").touch()
    config = load_config(written("\n".join(lines)))
    priors = {
        rule.name: config.rules.protection(rule).points[-1][0] for rule in config.rules.rules if rule.find != "copies"
    }
    assert len(priors) == 6
    assert priors.pop("keys") == 1e-10
    assert min(priors.values()) >= 1e-4
    assert min(priors[name] for name in ("customers", "rare-words", "people")) >= 0.01


def test_the_template_for_texts_finds_names_of_any_alphabet_whole(desk: Path) -> None:
    names = ["Müller", "Łukasz", "Jean-François", "Nguyễn", "Ann"]
    texts = [f"note {number} to {names[number % 5]}" for number in range(60)]
    Path("data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    lines = template("text").splitlines()
    first = next(number for number, line in enumerate(lines) if "# - name: rare-words" in line)
    lines[first : first + 5] = [line.replace("# ", "", 1) for line in lines[first : first + 5]]
    short = "\n".join(lines).replace("chunks: {tokens: auto}", "chunks: {characters: 500}")  # without a model
    config = load_config(written(short))
    found = scan(config.source, config.rules)
    for number, text in enumerate(texts):
        assert [text[why.begin : why.end] for why in found.why(example=number)] == [names[number % 5]]


@pytest.mark.parametrize("kind", ["text", "code"])
def test_what_a_template_leaves_out_as_a_comment_is_right_too(desk: Path, kind: Any) -> None:
    """Every key that stands behind a # is one that the config takes: each is put in, one at a time."""
    Path("repository").mkdir()
    Path("customers.txt").write_text("Acme\n")
    Path("private.pem").touch()
    lines = template(kind).splitlines()
    keys = [number for number, line in enumerate(lines) if line.lstrip().startswith("# ") and _is_option(line)]
    assert len(keys) > 10
    for number in keys:
        put_in = [line.replace("# ", "", 1) if place == number else line for place, line in enumerate(lines)]
        if lines[number].startswith(("  # name: ", "  # lora: ")):  # of a model, in place of a small one
            named = [line.replace("  # name: ", "  name: ") for line in put_in]
            put_in = [line for line in named if not line.startswith("  small:")]
        try:
            load_config(written("\n".join(put_in)))
        except InvalidInput as error:
            pytest.fail(f"{lines[number].strip()}: {error}")


def _is_option(line: str) -> bool:
    """Whether a commented line is a key of its own, and not a sentence or a part of a longer rule."""
    rest = line.lstrip().removeprefix("# ")
    head = rest.split(":")[0]
    whole_rule = rest.startswith("- {")
    return whole_rule or (
        head.replace("_", "").isalnum() and head.islower() and ": " in rest and "hush run" not in rest
    )


def test_rules_may_have_a_file_of_their_own(desk: Path) -> None:
    Path("sub").mkdir()
    Path("sub/names.txt").write_text("Acme\n")
    listed = {"rules": [{"name": "names", "find": "literals", "file": "names.txt"}]}
    written(listed, "sub/rules.yaml")
    config = load_config(written(RIGHT | {"rules": "sub/rules.yaml"}))
    assert config.rules.protection(config.rules.rules[0]) == Protection(1e-10, 1e-3)
    assert config.rules.path("names.txt") == Path("sub/names.txt")
    own = {**listed, "defaults": {"prior": 1e-6, "ceiling": 1e-2}}
    written(own, "sub/rules.yaml")
    message = said_of(RIGHT | {"rules": "sub/rules.yaml"})
    assert "states defaults and the config states promises, which are the same; keep one" in message
    without = {name: value for name, value in RIGHT.items() if name != "promises"}
    config = load_config(written(without | {"rules": "sub/rules.yaml"}))
    assert config.rules.protection(config.rules.rules[0]) == Protection(1e-6, 1e-2)
    written({"rules": [{"name": "names", "find": "word"}]}, "sub/rules.yaml")
    assert said_of(RIGHT | {"rules": "sub/rules.yaml"}).startswith(
        "sub/rules.yaml, line 2: rules[0] (rule names): find"
    )
    said = said_of(RIGHT | {"rules": "sub/rules.yaml", "chunks": {"lines": 3}})
    assert "chunks: they belong in the rules file" in said


def test_paths_begin_at_the_folder_of_the_config(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(RIGHT | {"output": "out"}).resolve()
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    config = load_config(path)
    assert config.source == str(desk / "data.jsonl")
    assert config.output == desk / "out"
    assert config.located("gpt2") == "gpt2"


@pytest.mark.parametrize(
    "text", [template("text"), template("code"), str(canaries.__doc__)], ids=["text", "code", "hush canaries"]
)
def test_a_canary_of_an_example_can_fail_an_audit_and_is_drawn(text: str) -> None:
    """Even if fifty rows share the level; and its prior leaves room, so that the plan uses it."""
    line = next(line for line in text.splitlines() if "{secret}" in line)
    ceiling, length = (float(re.findall(rf"{name}:? ([\w.-]+)", line)[0]) for name in ("ceiling", "length"))
    section = CanarySettings(ceiling=ceiling, length=int(length))
    known = Candidates.of_format(section.alphabet, section.length)
    said = Attempt(
        attack="extraction", name="canaries", prior=known.prior, certified=section.ceiling, ceiling=section.ceiling,
        measured=Success(hits=1, runs=1), hits=1, runs=1,
    )  # fmt: skip
    others = [replace(said, name=f"other-{number}", measured=Success(hits=0, runs=1), hits=0) for number in range(49)]
    assert judge([said, *others], level=AuditSection().level).failed
    assert section.ceiling >= 1000 * known.prior
