"""The rules file: one error lists all problems, by line, and never quotes the file."""

import re
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.plan.plan import CANARY
from hush.protection import Protection
from hush.scan.rules import CANARY_RULE_NAME, Rules, load_rules
from hush.scan.rules.schema import CodeRule

TOKEN = "hunter2-Zq81x"  # stands for a secret; no message may hold it
DEFAULTS = {"prior": 1e-10, "ceiling": 1e-3}
KINDS = "words, literals, patterns, credentials, gitleaks, pii, fields, code, copies"

WHOLE = """\
version: 1
defaults: {prior: 1e-10, ceiling: 1e-3}
chunks: {lines: 80, overlap: 8}
rules:
  - {name: rare-words, find: words, documents: [50, 100], tokens: {letters: unicode, joiners: "-"}}
  - name: api-keys
    find: patterns
    patterns: ['sk-[A-Za-z0-9]{32}']
    promise: {format: {alphabet: 62, length: 32}, ceiling: 1e-6}
  - {name: customers, find: literals, values: [Acme, Globex], ignore_case: true}
  - {name: keys, find: credentials, detectors: [AWSKeyDetector]}
  - {name: leaks, find: gitleaks, file: leaks.toml, everywhere: false}
  - {name: people, find: pii, entities: [PERSON], score: 0.4}
  - {name: team, find: fields, column: team, public_names: true, separator: ";"}
  - name: projects
    find: code
    secrets:
      - name: billing
        paths: ["services/billing/**"]
        owners: ["@acme/billing"]
        authors: [ana@acme.com]
        promise: {points: [[1e-10, 1e-3], [1e-4, 0.1]]}
    imports: {depth: all}
    contributors: {share: 0.2, since: 2024-01-01}
    groups: {billing-team: [ana@acme.com, bo@acme.com]}
  - {name: copies, find: copies, similarity: 0.8}
"""


def written(folder: Path, content: str) -> Path:
    path = folder / "rules.yaml"
    path.write_text(content, encoding="utf-8")
    return path


def said_of(path: Path) -> str:
    """The message about a file, which may not hold the planted secret, nor may anything that it came from."""
    with pytest.raises(InvalidInput) as raised:
        load_rules(path)
    assert TOKEN not in "".join(traceback.format_exception(raised.value))
    return str(raised.value).replace(str(path), "FILE")


def test_every_kind_of_rule_is_read(tmp_path: Path) -> None:
    (tmp_path / "leaks.toml").touch()
    rules = load_rules(written(tmp_path, WHOLE))
    assert sorted(rule.find for rule in rules.rules) == sorted(KINDS.split(", "))
    words, patterns, *_, code, _ = rules.rules
    assert isinstance(code, CodeRule)
    assert code.imports is not None
    assert code.contributors is not None
    assert rules.protection(words) == Protection(1e-10, 1e-3)
    assert rules.protection(patterns).ceilings == (1e-6,)
    assert rules.protection(code, code.secrets[0].promise) == Protection.of((1e-10, 1e-3), (1e-4, 0.1))
    assert code.imports.depth == "all"
    assert str(code.contributors.since) == "2024-01-01"


def rule(**changes: Any) -> dict[str, Any]:
    """A file with one rule for words, some of whose keys are other ones."""
    return {"defaults": DEFAULTS, "rules": [{"name": "r", "find": "words", "documents": [5, 10]} | changes]}


WRONG = yaml.safe_load(Path(__file__).with_name("wrong_rules.yaml").read_text())


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case["case"])
def test_what_is_wrong_is_said_without_quoting_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    content = case.get("file") or {"defaults": DEFAULTS, "rules": [case["rule"]]}
    said = said_of(written(Path(), yaml.safe_dump(content, sort_keys=False)))
    assert re.sub(r"^FILE, line \d+: ", "", said) == case["says"]
    with pytest.raises(InvalidInput) as raised:
        Rules.of(content)
    assert str(raised.value) == f"the rules, {case['says']}"


def test_all_problems_come_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    said = said_of(
        written(
            tmp_path,
            f"defaults: {{prior: 1e-10, ceilin: 1e-3}}\nrules:\n- {{name: a, find: words}}\n- {TOKEN}\n"
            "- name: b\n  find: fields\n  colum: team\n",
        )
    )
    assert said.splitlines() == [
        "FILE has 5 problems:",
        "  line 1: defaults has the unknown key ceilin (did you mean ceiling?); it may hold prior, ceiling, format, "
        "points",
        "  line 3: rules[0] (rule a): a rule for words needs either documents: [fewest, most] or ranks: [first, last], "
        "one of them",
        "  line 4: rules[1] is text; pass a list of rules, each with name and find",
        "  line 5: rules[2] (rule b) lacks column, the name of a column of the data",
        "  line 7: rules[2] (rule b) has the unknown key colum (did you mean column?); it may hold name, find, column, "
        "separator, public_names, hides, promise",
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "FILE: the file is empty; write a mapping with version, defaults and rules"),
        (TOKEN, "FILE: the file is text; write a mapping with version, defaults and rules"),
        (f"- {TOKEN}", "FILE: the file is a list; write a mapping with version, defaults and rules"),
        (f"a: {{{TOKEN}: [1", "FILE, line 1, column 22: this is not valid YAML"),
        (f'rules:\n  - "{TOKEN} \\d"', "FILE, line 2, column 21: this is not valid YAML"),
        (
            f"rules: 1\nother: 2\nrules: {TOKEN}",
            "FILE, line 3: a key occurs twice in one mapping, first on line 1; remove",
        ),
        (f"rules: !!python/name:{TOKEN}", "FILE, line 1, column 8: this is not valid YAML"),
        (f"a: {TOKEN}\n---\nb: 1", "FILE, line 2, column 1: this is not valid YAML"),
        ("a: " + "[" * 5000, "FILE is not valid YAML"),
        ("a: \x01", "FILE is not valid YAML"),
        ("a: 2024-99-99", "FILE is not valid YAML"),
    ],
)
def test_files_that_are_no_yaml_are_located_and_not_quoted(tmp_path: Path, content: str, expected: str) -> None:
    assert said_of(written(tmp_path, content)).startswith(expected)


def test_bytes_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_bytes(b"rules: \xff")
    assert said_of(path) == "FILE is not UTF-8; write it as UTF-8"


def test_rules_may_be_written_once_and_changed(tmp_path: Path) -> None:
    shared = "&rule {name: a, find: words, ranks: [1, 2]}"
    rules = load_rules(written(tmp_path, f"defaults: {DEFAULTS}\nrules:\n- {shared}\n- {{<<: *rule, name: b}}\n"))
    assert repr(rules) == "Rules(a: words, b: words)"


def test_no_rule_gives_its_secrets_the_ids_of_planted_canaries(tmp_path: Path) -> None:
    """A certificate says of those that they protect nothing real."""
    rules = "rules: [{name: %s, find: words, ranks: [1, 2]}]\n"
    assert said_of(written(tmp_path, f"defaults: {DEFAULTS}\n{rules % 'canary'}")) == (
        "FILE, line 2: rules[0].name (rule canary): the ids of planted canaries begin with this name; give the rule "
        "another name"
    )
    assert f"{CANARY_RULE_NAME}-" == CANARY
    load_rules(written(tmp_path, f"defaults: {DEFAULTS}\n{rules % 'canary-birds'}"))


def test_what_only_shows_between_rules_is_said_too(tmp_path: Path) -> None:
    one = "{name: a, find: words, ranks: [1, 2]}"
    said = said_of(written(tmp_path, f"defaults: {DEFAULTS}\nrules:\n- {one}\n- {{name: c, find: copies}}\n"
                           f"- {one}\n- {{name: d, find: copies}}\n"))  # fmt: skip
    assert said.splitlines() == [
        "FILE has 2 problems:",
        "  line 5: rules[2].name (rule a): rules[0] has this name too; give each rule its own",
        "  line 6: rules[3] (rule d): rules[1] looks for copies already; keep the one with less similarity",
    ]


json_like = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.just(TOKEN) | st.integers(-5, 5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "find", TOKEN]), inner),
    max_leaves=6,
)
keys = st.sampled_from(
    ["name", "find", "documents", "promise", "values", "patterns", "secrets", "groups", "tokens", TOKEN]
)


@settings(max_examples=200)
@given(
    changes=st.dictionaries(keys, json_like, max_size=4),
    find=st.sampled_from(KINDS.split(", ")),
    top=st.dictionaries(st.sampled_from(["defaults", "chunks", "version", TOKEN]), json_like, max_size=2),
)
def test_nothing_that_a_file_holds_comes_back_in_a_message(
    changes: dict[str, Any], find: str, top: dict[str, Any]
) -> None:
    content = rule(**({"find": find} | changes)) | top
    try:
        said = repr(Rules.of(content))
    except InvalidInput as error:
        said = "".join(traceback.format_exception(error))
    assert TOKEN not in said


def test_a_repr_shows_no_literal_and_no_pattern() -> None:
    kept = {"name": "r", "find": "patterns", "patterns": [TOKEN]}
    rules = Rules.of({"defaults": DEFAULTS, "rules": [kept]})
    assert repr(rules) == "Rules(r: patterns)"
    for each in (rules.file, rules.rules[0]):
        assert TOKEN not in repr(each) + str(each) + f"{each}"
