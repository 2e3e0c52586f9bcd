"""The gitleaks rule finds what gitleaks does: secrets, entropy, keywords, paths, allowlists, extensions."""

import pickle
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from finder_cases import block_of, rows_of, texts
from hypothesis import given, settings

from hush.errors import InvalidInput

pytest.importorskip("re2")

from hush.scan import scan
from hush.scan.finders import Gitleaks
from hush.scan.finders.gitleaks import _lowered
from hush.scan.rules.gitleaks import DetectionRule, DetectionRules, read_gitleaks, rule_files

RULE = """
[[rules]]
id = "acme"
regex = '''acme_([a-z0-9]{8})'''
"""
SECRET = "q7x1k9z4"
TEXT = f"é 😀 acme_{SECRET} é"


def written(folder: Path, content: str, name: str = "rules.toml") -> Path:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return path


def found(folder: Path, content: str, text: str = TEXT, path: str | None = None) -> list[str]:
    """The texts that a file of these rules finds, in the order of their places."""
    finder = Gitleaks(rules=read_gitleaks(written(folder, content)), path_column=None if path is None else "path")
    columns = {} if path is None else {"path": pa.array([path])}
    rows = rows_of(finder.find(block_of([text], **columns)))
    assert all(text[begin:end] == key for _, begin, end, key, _ in rows)
    return [row[3] for row in rows]


# --- what is the secret


@pytest.mark.parametrize(
    ("regex", "group", "secret"),
    [
        ("acme_[a-z0-9]{8}", 0, f"acme_{SECRET}"),
        ("acme_([a-z0-9]{8})", 0, SECRET),
        ("(none)?(acme)_([a-z0-9]{8})", 0, "acme"),  # the first group that is not empty
        ("(acme)_([a-z0-9]{8})", 2, SECRET),
        ("(none)?acme_[a-z0-9]{8}", 0, f"acme_{SECRET}"),  # no group with anything
        ("(none)?acme_[a-z0-9]{8}", 1, f"acme_{SECRET}"),  # to gitleaks an empty secret: the match is protected
        ("(?i)ACME_(?P<key>[A-Z0-9]{8})", 0, SECRET),
    ],
)
def test_the_secret_is_the_group_that_is_named_or_the_first_with_anything(tmp_path, regex, group, secret) -> None:
    assert found(tmp_path, f"[[rules]]\nid = 'a'\nregex = '''{regex}'''\nsecretGroup = {group}") == [secret]


def test_line_ends_around_a_match_do_not_belong_to_it(tmp_path) -> None:
    content = "[[rules]]\nid = 'a'\nregex = '''\\n+key [a-z0-9]{4}\\n'''"
    assert found(tmp_path, content, "x\n\nkey é\nkey ab12\n\n") == ["key ab12"]


def test_groups_are_those_of_the_match_alone(tmp_path) -> None:
    """gitleaks applies the pattern again to its match: what follows there, such as a word's end, may differ."""
    content = "[[rules]]\nid = 'a'\nregex = '''key=(?:([a-z]+)\\z|([a-z0-9]+);)'''"
    assert found(tmp_path, content, "key=ab12; x") == ["ab12"]
    content = "[[rules]]\nid = 'a'\nregex = '''key=(?:([a-z]{2})[a-z]*$|[a-z]+;|([a-z]+))'''"
    assert found(tmp_path, content, "key=abcd ") == ["ab"]  # at the end of the match, not of the text


@settings(max_examples=40)
@given(texts, texts)
def test_a_planted_secret_is_found_at_its_characters_in_any_script(before: str, after: str) -> None:
    text = f"{before} acme_{SECRET} {after}"
    finder = Gitleaks(rules=DetectionRules(rules=(DetectionRule(id="acme", regex="acme_([a-z0-9]{8})"),)))
    at = text.index(f"acme_{SECRET}") + 5
    assert (1, at, at + 8, SECRET, "gitleaks rule acme") in rows_of(finder.find(block_of(["", text])))


# --- entropy and keywords


def test_the_entropy_of_the_secret_must_be_above_the_rules(tmp_path) -> None:
    rule = "[[rules]]\nid = 'a'\nregex = '''key=(\\S+)'''\nentropy = {}"
    assert found(tmp_path, rule.format(2), "key=aabbccdd key=aabbccde") == ["aabbccde"]  # 2 bits are not above 2
    assert found(tmp_path, rule.format(1.99), "key=aabbccdd") == ["aabbccdd"]
    assert found(tmp_path, rule.format(0), "key=aaaa") == ["aaaa"]
    # gitleaks divides by the number of bytes: four letters have two bits, and 1.5 if each of them has two bytes.
    assert found(tmp_path, rule.format(1.4), "key=abcd key=éèêë") == ["abcd", "éèêë"]
    assert found(tmp_path, rule.format(1.6), "key=abcd key=éèêë") == ["abcd"]


def test_a_rule_is_tried_on_texts_with_one_of_its_keywords_in_any_case(tmp_path) -> None:
    rule = "[[rules]]\nid = 'a'\nregex = '''[0-9]{6}'''\nkeywords = ['Acme', 'ΣΑΣ']"
    assert found(tmp_path, rule, "123456") == []
    assert found(tmp_path, rule, "ACME\n\n123456") == ["123456"]
    assert found(tmp_path, rule, "σας 123456") == []  # ς is no Σ in Go, whose lower case is one for each character
    assert found(tmp_path, rule, "σασ 123456") == ["123456"]


def test_lower_case_is_that_of_single_characters() -> None:
    for code in range(sys.maxunicode + 1):
        if not 0xD800 <= code < 0xE000:
            lower = _lowered("a" + chr(code))[1:]  # after a letter, where a final sigma would be another
            assert lower == (chr(code).lower() if chr(code) != "İ" else "i")


# --- paths


def test_a_rule_for_paths_applies_there_and_where_no_path_is_known(tmp_path) -> None:
    content = RULE + "path = '''\\.env$'''"
    assert found(tmp_path, content, path="deploy/.env") == [SECRET]
    assert found(tmp_path, content, path="deploy/a.py") == []
    assert found(tmp_path, content) == [SECRET]


def test_a_rule_of_a_path_alone_makes_whole_files_secrets(tmp_path) -> None:
    content = "[[rules]]\nid = 'a'\npath = '''(?i)\\.p12$'''"
    assert found(tmp_path, content, path="a/KEY.P12") == [TEXT]
    assert found(tmp_path, content, path="a/key.p") == []
    assert found(tmp_path, content) == []


# --- allowlists

ALLOWED = [
    ("regexes = ['''^q7''']", True),
    ("regexes = ['''^acme''']", False),
    ("regexTarget = 'secret'\nregexes = ['''x''', '''z4$''']", True),
    ("regexTarget = 'match'\nregexes = ['''^acme_q7''']", True),
    ("regexTarget = 'match'\nregexes = ['''é''']", False),
    ("regexTarget = 'line'\nregexes = ['''😀 acme.* é''']", True),
    ("regexTarget = 'line'\nregexes = ['''before''']", False),
    ("regexTarget = 'line'\nregexes = ['''after''']", False),
    ("stopwords = ['X1K']", True),
    ("stopwords = ['acme']", False),  # stopwords are compared with the secret alone
    ("paths = ['''^tests/''']", True),
    ("paths = ['''^src/''']", False),
    ("commits = ['abcdef']", False),
    ("paths = ['''^src/''']\nstopwords = ['x1k']", True),
    ("condition = 'AND'\npaths = ['''^src/''']\nstopwords = ['x1k']", False),
    ("condition = 'and'\npaths = ['''^tests/''']\nstopwords = ['x1k']", True),
    ("condition = '&&'\npaths = ['''^tests/''']\nregexes = ['''nothing''']", False),
    ("condition = 'AND'\npaths = ['''^tests/''']", True),
    ("condition = 'AND'\npaths = ['''^tests/''']\ncommits = ['abcdef']", False),
    ("condition = '||'\ncommits = ['abcdef']\nregexes = ['''q7''']", True),
]


@pytest.mark.parametrize(("allowlist", "is_allowed"), ALLOWED)
@pytest.mark.parametrize("table", ["[[rules.allowlists]]", "[rules.allowlist]", "[[allowlists]]", "[allowlist]"])
def test_an_allowlist_allows_what_gitleaks_says(tmp_path, table: str, allowlist: str, is_allowed: bool) -> None:
    text = f"before\n{TEXT}\nafter"
    assert found(tmp_path, f"{RULE}\n{table}\n{allowlist}", text, path="tests/a.py") == [SECRET] * (not is_allowed)


def test_any_allowlist_is_enough_and_allows_one_finding_only(tmp_path) -> None:
    content = RULE + "[[rules.allowlists]]\nstopwords = ['no']\n[[rules.allowlists]]\nregexes = ['''^q7''']\n"
    assert found(tmp_path, content, f"{TEXT} acme_zzzzzzz1") == ["zzzzzzz1"]


def test_no_path_is_never_allowed(tmp_path) -> None:
    assert found(tmp_path, RULE + "[[allowlists]]\npaths = ['''.*''']") == [SECRET]


def test_an_allowlist_may_be_for_some_rules_only(tmp_path) -> None:
    other = "[[rules]]\nid = 'other'\nregex = '''acme_q7x1k9z4'''\n"
    content = RULE + other + "[[allowlists]]\ntargetRules = ['acme']\nregexes = ['''q7''']"
    assert found(tmp_path, content) == [f"acme_{SECRET}"]


def test_comments_that_allow_a_finding_are_ignored(tmp_path) -> None:
    assert found(tmp_path, RULE, f"acme_{SECRET} # gitleaks:allow") == [SECRET]


# --- extensions


def test_a_file_extends_another_and_overrides_or_disables_its_rules(tmp_path) -> None:
    (tmp_path / "base").mkdir()
    written(tmp_path, RULE + "keywords = ['acme']\n[[allowlists]]\nregexes = ['''^zz''']", "base/last.toml")
    middle = "[extend]\npath = 'last.toml'\n[[rules]]\nid = 'b'\nregex = '''b=(\\d{4})'''\n"
    middle += "[[rules]]\nid = 'c'\nregex = '''c=(\\d{4})'''\n"
    written(tmp_path, middle, "base/middle.toml")
    first = "[extend]\npath = 'base/middle.toml'\ndisabledRules = ['b']\n"
    text = f"{TEXT} b=1234 c=1234 acme_zz345678"
    assert found(tmp_path, first, text) == [SECRET, "1234"]
    assert found(tmp_path, first + "[[rules]]\nid = 'acme'\nentropy = 9.0\n", text) == ["1234"]
    assert found(tmp_path, first + "[[rules]]\nid = 'acme'\nregex = '''c=1'''\n", text) == ["c=1", "1234"]
    allowed = first + "[[rules]]\nid = 'acme'\n[[rules.allowlists]]\nstopwords = ['q7']\n"
    assert found(tmp_path, allowed, text) == ["1234"]
    files = rule_files(tmp_path / "rules.toml")
    assert [file.name for file in files] == ["rules.toml", "middle.toml", "last.toml"]


def test_a_chain_of_extensions_that_gitleaks_would_cut_is_refused(tmp_path) -> None:
    with pytest.raises(InvalidInput, match=r"rules\.toml extends a further file, which gitleaks would ignore"):
        read_gitleaks(written(tmp_path, "[extend]\npath = 'rules.toml'\n" + RULE))
    with pytest.raises(InvalidInput, match=r"extends .*none\.toml, which is no file"):
        read_gitleaks(written(tmp_path, "[extend]\npath = 'none.toml'\n"))


# --- what is refused

PLANTED = "hunter2-Zq81x"
REFUSED = {
    f"[extend]\nuseDefault = true\n{RULE}": r"extend.useDefault: the rules built into gitleaks are not part of hush",
    "[extend]\nurl = 'x'": "extend.url: a scan downloads nothing",
    RULE + "[[rules.required]]\nid = 'b'": r"rules\[0\].required: composite rules are not supported",
    RULE + f"regexs = '{PLANTED}'": r"rules\[0\] has the unknown key regexs \(did you mean regex\?\)",
    RULE + f"'{PLANTED}' = 1": r"rules\[0\] has an unknown key, number 3 of its keys",
    RULE + RULE: r"rules\[0\] and rules\[1\] have the same id",
    RULE + "Regex = 'a'": "a table has regex twice",
    RULE + "secretGroup = 2": "rule acme: secretGroup is 2, and its regex has 1 groups",
    RULE + "secretGroup = -1": r"rules\[0\].secretGroup is -1, which is out of range",
    RULE + "keywords = ['']": r"rules\[0\].keywords\[0\] is empty",
    RULE + "entropy = 'x'": r"rules\[0\].entropy is text; pass a number of bits per character",
    RULE + "[[rules.allowlists]]\ndescription = 'x'": r"allowlists\[0\]: an allowlist needs commits, paths",
    RULE + "[[rules.allowlists]]\nregexes = ['']": r"regexes\[0\] is empty",
    RULE + f"[[rules.allowlists]]\nregexes = ['({PLANTED}']": "an allowlist of rule acme has a pattern that RE2",
    RULE + "[[rules.allowlists]]\nregexes = ['a']\nregexTarget = 'lines'": "not an allowed word",
    RULE + "[[rules.allowlists]]\nregexes = ['a']\ncondition = 'xor'": "pass or or and",
    RULE + "[rules.allowlist]\npaths = ['a']\n[[rules.allowlists]]\npaths = ['b']": "older spelling of allowlists",
    RULE + "[[allowlists]]\ntargetRules = ['b']\npaths = ['a']": "names a rule that does not exist",
    f"[[rules]]\nid = 'a'\nregex = '''({PLANTED}(?=x)'''": "rule a has a pattern that RE2 does not accept",
    "[[rules]]\nid = 'a'": "rule 1 has neither regex nor path",
    "[[rules]]\nregex = 'a'": r"rules\[0\] lacks id",
    "title = 'x'": "there are no rules in it",
    f"a = 1\nb = '{PLANTED}' c\n": "line 2, column 21: this is not valid TOML",
    f"rules = '{PLANTED}": "end of document: this is not valid TOML",
}


@pytest.mark.parametrize("content", REFUSED)
def test_what_would_find_less_or_cannot_be_meant_is_refused_without_quoting_it(tmp_path, content: str) -> None:
    with pytest.raises(InvalidInput, match=REFUSED[content]) as raised:
        Gitleaks(rules=read_gitleaks(written(tmp_path, content)))
    assert PLANTED not in str(raised.value)


def test_keys_are_read_in_any_case(tmp_path) -> None:
    content = "[[Rules]]\nID = 'a'\nREGEX = '''(acme)_([a-z0-9]{8})'''\nsecretgroup = 2\n"
    assert found(tmp_path, content) == [SECRET]


def test_a_rule_that_only_serves_others_reports_nothing(tmp_path) -> None:
    assert found(tmp_path, RULE + "skipReport = true") == []


def test_large_patterns_and_long_texts_are_searched_whole(tmp_path) -> None:
    """RE2 gives up automata that grow too large, and must then find the same in another way."""
    content = "[[rules]]\nid = 'a'\nregex = '''[a-z0-9]{3,900}[-_][a-z0-9]{3,900}[-_]([A-Z]{6})'''"
    assert found(tmp_path, content, "é " * 5_000 + "ab1-cd2_QWERTZ" + " x" * 5_000) == ["QWERTZ"]
    content = "[[rules]]\nid = 'a'\nregex = '''(?:key|\\p{L}{1,999}secret)[-_]([\\p{L}\\d]{900,1000})'''"
    assert found(tmp_path, content, "ключsecret-" + "я" * 950) == ["я" * 950]


# --- in a scan


def test_a_scan_takes_a_file_of_gitleaks_by_its_path(tmp_path) -> None:
    written(tmp_path, RULE + "[[rules]]\nid = 'pin'\nregex = '''pin=(\\d+)'''\n", "leaks.toml")
    written(tmp_path, f"acme_{SECRET}\nnothing\nagain {SECRET}\npin=4821\n", "data.txt")
    rule = {"name": "leaks", "find": "gitleaks", "file": str(tmp_path / "leaks.toml")}
    result = scan(tmp_path / "data.txt", {"defaults": {"prior": 1e-10, "ceiling": 1e-3}, "rules": [rule]})
    assert result.incidence.examples_of(0).tolist() == [0, 2]
    assert [(entry.examples, entry.why) for entry in result.set_aside()] == [
        ((3,), "gitleaks rule pin: too short for its promise")
    ]


def test_a_finder_is_sent_light_and_shows_no_pattern(tmp_path) -> None:
    finder = Gitleaks(rules=read_gitleaks(written(tmp_path, RULE + f"[[allowlists]]\nregexes = ['{PLANTED}']")))
    assert PLANTED not in repr(finder) + repr(finder.rules) + repr(finder.rules.allowlists)
    again = pickle.loads(pickle.dumps(finder))
    assert rows_of(again.find(block_of([TEXT]))) == rows_of(finder.find(block_of([TEXT])))
