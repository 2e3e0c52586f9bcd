"""Laws that every command keeps: names, help, exit codes, --json, --quiet, --verbose, --debug, shell completion."""

import inspect
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from enum import EnumType
from pathlib import Path
from typing import Any, final, get_args, get_origin

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

from command_line import message, refused, run
from hush.cli import app
from hush.cli.messages import command
from hush.errors import InvalidInput

FUNCTIONS: dict[str, Any] = {
    one.callback.__name__: one.callback for one in app.registered_commands if one.callback is not None
}
COMMANDS = sorted(FUNCTIONS)
EVERYWHERE = {"--json", "--quiet", "--verbose", "--debug"}
NO_INPUT = {"demo", "init"}  # commands that are whole without any argument
MOST = 9  # options under one heading

# For every command, arguments that are well formed, but name files that are not there (or a file for a folder).
BAD = {
    "audit": "no-run",
    "calibrate": "no.parquet --rounds 1 --batch-size 1 --prior 0.1 --ceiling 0.2",
    "canaries": "no.jsonl --output new --ceiling 0.5 --from-data",
    "demo": "--noise-table --output a-file",
    "explain": "no-scan 3",
    "redact": "no-scan no-data.jsonl --output redacted.jsonl",
    "frontier": "no.parquet --batch-size 1 --rounds 1 --prior 0.1 --ceiling 0.2",
    "ledger": "no-ledger",
    "init": "--output /no/such/folder/hush.yaml",
    "plan": "no.parquet --batch-size 1 --rounds 1 --prior 0.1 --ceiling 0.2 --output new",
    "posterior": "--rates no.json --noise-multiplier 1 --rounds 1 --prior 0.1",
    "prior": "no-scan no.jsonl",
    "rehearse": "no.yaml",
    "report": "no-plan --output new.html",
    "run": "no.yaml",
    "scan": "no.jsonl --rules no.yaml --output new",
    "sign": "no-plan --private-key no.pem",
    "attest": "no-release --private-key no.pem",
    "train": "no-plan --model gpt2 --data no.jsonl",
    "verify": "no-plan",
}


@final
@dataclass(frozen=True, kw_only=True)
class Declared:
    """An option or argument as it was declared. kind: its type, of one value if it may be repeated."""

    forms: tuple[str, ...]
    kind: Any
    default: object
    info: Any


def declared(name: str) -> list[Declared]:
    """What a command takes, in order."""
    found: list[Declared] = []
    for parameter in inspect.signature(FUNCTIONS[name]).parameters.values():
        kind, info = get_args(parameter.annotation)
        kind = next((part for part in get_args(kind) if part is not type(None)), kind)  # of X | None, or of list[X]
        kind = get_args(kind)[0] if get_origin(kind) is list else kind
        forms = info.default.split("/") if isinstance(info.default, str) else []  # in Annotated, names come first
        if isinstance(info, typer.models.OptionInfo) and not forms:
            forms = [f"--{parameter.name.replace('_', '-')}"]
        found.append(Declared(forms=tuple(forms), kind=kind, default=parameter.default, info=info))
    return found


def options_of(name: str) -> dict[str, Declared]:
    """The options of a command by their names."""
    return {one.forms[0]: one for one in declared(name) if one.forms}


def test_every_command_is_looked_at() -> None:
    assert set(BAD) == set(COMMANDS)


# --- names


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_words_with_dashes_and_some_are_everywhere(name: str) -> None:
    for option in options_of(name).values():
        for form in option.forms:
            assert re.fullmatch(r"--[a-z0-9]+(-[a-z0-9]+)*", form), form
    assert options_of(name).keys() >= EVERYWHERE


# Same name, same thing; where the default, or that there is none, differs, the reason.
OTHER_DEFAULT = {
    "--output": "each writes something else",
    "--ceiling": "a canary has no other promise; elsewhere a table may bring them",
    "--prior": "the one question of posterior; elsewhere a table may bring them",
    "--rounds": "posterior has no file that could state them",
    "--batch-size": "calibrate may be given rates instead",
    "--noise-multiplier": "a plan finds it",
    "--data": "training needs it; a plan and an audit can do without",
    "--model": "training needs one; guessing slots can do without",
    "--rules": "a scan needs them; guessing slots only for the formats that promises state",
    "--micro-batch": "an audit fits it to the memory, training keeps to what it began with",
}

OR_AUTO = {"--batch-size", "--rounds"}  # numbers that hush plan also takes as auto; it reads their text itself


@pytest.mark.parametrize("form", sorted({form for name in COMMANDS for form in options_of(name)}))
def test_one_name_is_one_thing_in_every_command(form: str) -> None:
    found = [
        options_of(name)[form]
        for name in COMMANDS
        if form in options_of(name) and not (form in OR_AUTO and name == "plan")
    ]
    choices = [set(kind) if isinstance(kind, EnumType) else {kind} for kind in (option.kind for option in found)]
    values = [{getattr(one, "value", one) for one in each} for each in choices]
    assert all(each <= max(values, key=len) for each in values), values  # with, or without, "all"
    if form not in OTHER_DEFAULT:
        assert len({getattr(option.default, "value", repr(option.default)) for option in found}) == 1


def test_what_an_option_of_choices_takes_is_what_the_library_takes() -> None:
    from hush.audit.canaries import ALPHABETS
    from hush.audit.settings import ATTACKS

    for option, known in (
        (options_of("audit")["--attack"], ATTACKS),
        (options_of("canaries")["--alphabet"], ALPHABETS),
    ):
        assert [one.value for one in option.kind] == list(known)


def test_the_stages_of_hush_run_are_those_of_the_table() -> None:
    from hush.run.pipeline import STAGES

    names = [stage.name for stage in STAGES]
    assert f"Stages: {', '.join(names)}." in " ".join(run("run", "--help").stdout.split())
    assert f"'nosuch' is not one of {', '.join(map(repr, names))}." in " ".join(
        re.sub("[│╭╮╰╯─]", " ", run("run", "hush.yaml", "--from", "nosuch").output).split()
    )


# --- help


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches_and_fits_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = run(name, "--help")
    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert f"Example: hush {name}" in " ".join(shown.stdout.split())
    for form in options_of(name):
        assert form in shown.stdout
    assert "…-" not in shown.stdout  # a name that was cut
    title, purpose, *_ = (inspect.getdoc(FUNCTIONS[name]) or "").split("\n\n")
    assert len(title) < 120
    assert len(purpose) > 100


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained_and_many_are_grouped(name: str) -> None:
    for one in declared(name):
        assert one.info.help, one
        assert one.info.help[-1] in ".…", one
    panels = [option.info.rich_help_panel for option in options_of(name).values()]
    assert max(map(panels.count, panels)) <= MOST


# --- exit codes


@pytest.mark.parametrize("name", COMMANDS)
def test_bad_input_ends_with_2_and_one_line_and_a_traceback_only_if_asked_for(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-file").touch()
    assert "No such option" in refused(2, name, "--no-such-option")
    if name not in NO_INPUT:
        assert run(name).exit_code == 2
    words = BAD[name].split()
    said = refused(2, name, *words, "--quiet")
    assert run(name, *words).stderr.count("\n") == 1
    assert said.startswith("Error: ")
    for traced in (run(name, *words, "--debug"), run("--debug", name, *words)):
        assert traced.exit_code == 2
        assert "Traceback (most recent call last)" in traced.stderr
        assert message(traced).endswith(said)
    assert "contradict each other; pass one of them" in refused(2, name, *words, "--quiet", "--verbose")
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


def test_a_traceback_does_not_repeat_what_another_library_quoted() -> None:
    def reading() -> None:
        try:
            float("".join(["hunt", "er2"]))
        except ValueError as error:
            raise InvalidInput("the file holds something else than numbers") from error

    alone = typer.Typer()
    alone.command()(command(reading))
    traced = CliRunner().invoke(alone, ["--debug"])
    assert traced.exit_code == 2
    assert "ValueError (its message may quote the data)" in traced.stderr
    assert "InvalidInput: the file holds something else than numbers" in traced.stderr
    assert "hunter2" not in traced.stderr


def test_what_no_one_foresaw_is_told_without_its_message() -> None:
    def breaking() -> None:
        float("".join(["hunt", "er2"]))

    alone = typer.Typer()
    alone.command()(command(breaking))
    for words in ([], ["--debug"]):
        result = CliRunner().invoke(alone, words)
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit)
        assert "unexpected error in hush (ValueError; its message is hidden because it may quote" in message(result)
        assert ("Traceback" in result.stderr) == bool(words)
        assert "hunter2" not in result.output


def test_an_error_keeps_its_lines_and_quotes_nothing_that_a_terminal_obeys() -> None:
    def failing() -> None:
        raise InvalidInput("two problems:\n  one\x1b[2J\r\n  in odd-\udcff\x9b")

    alone = typer.Typer()
    alone.command()(command(failing))
    result = CliRunner().invoke(alone, [])
    assert result.stderr.splitlines() == ["Error: two problems:", "  one\ufffd[2J\ufffd", "  in odd-\\udcff\ufffd"]


def test_memory_that_runs_out_is_no_traceback(tmp_path: Path) -> None:
    graph = tmp_path / "graph.json"
    graph.write_text('{"num_examples": 1000000000000000, "num_secrets": 1, "pairs": [[0, 0]]}')
    words = ("--rounds", 1, "--rate", 0.1, "--prior", 0.1, "--ceiling", 0.2)
    assert "out of memory; process less at once" in refused(2, "calibrate", graph, *words)


def test_a_program_that_read_a_table_ends_as_it_should(tmp_path: Path) -> None:
    """Arrow's threads once aborted a third of such programs while Python ended."""
    pq.write_table(pa.table({"rate": [0.5] * 10}), tmp_path / "rates.parquet")
    program = "import sys, pathlib, hush.cli.inputs as f; f.read_rates(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", program, str(tmp_path / "rates.parquet")]
    for _ in range(5):
        pair = [subprocess.Popen(command) for _ in range(2)]
        assert [one.wait() for one in pair] == [0, 0]


# --- folders


@pytest.mark.parametrize(
    "words",
    [
        "scan texts --rules rules.yaml",
        "plan graph.json --data texts --key my.key --batch-size 1 --rounds 1 --prior 0.1 --ceiling 0.2",
        "train plan --model none --data texts",
        "canaries texts --ceiling 0.5 --from-data",
    ],
    ids=lambda words: words.split()[0],
)
def test_nothing_is_written_among_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """It would be read as data the next time, and an owner's file with it."""
    monkeypatch.chdir(tmp_path)
    for folder in ("texts", "plan"):
        Path(folder).mkdir()
    Path("texts", "a.txt").write_text("hello")
    Path("rules.yaml").write_text(
        "{defaults: {prior: 0.1, ceiling: 0.2}, rules: [{name: a, find: literals, values: [x]}]}"
    )
    Path("graph.json").write_text('{"num_examples": 1, "num_secrets": 1, "pairs": [[0, 0]]}')
    Path("way").symlink_to("texts")
    before = sorted(tmp_path.rglob("*"))
    for inside in ("texts/new", "texts/deep/new", "way/new"):
        said = refused(2, *words.split(), "--output", inside)
        assert said == f"Error: --output={inside} is inside the data folder texts; pass a folder elsewhere"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_path_that_leads_in_a_circle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("circle").symlink_to("circle")
    Path("texts.txt").write_text("hello\n")
    Path("rules.yaml").write_text("{}")
    assert "symbolic links" in refused(2, "scan", "texts.txt", "--rules", "circle", "--output", "new")
    assert "Error: " in refused(2, "scan", "circle", "--rules", "rules.yaml", "--output", "new")


def test_a_run_is_not_put_among_other_files(tmp_path: Path) -> None:
    """Above all not into the plan's own folder, which would be none any more."""
    plan, busy = tmp_path / "plan", tmp_path / "busy"
    for folder in (plan, busy):
        folder.mkdir()
    (busy / "thesis.tex").write_text("mine")
    (plan / "plan.json").write_text("{}")
    words = ("train", plan, "--model", "none", "--data", "no.jsonl")
    assert "holds something other than a run (plan.json)" in refused(2, *words, "--output", plan)
    assert "holds something other than a run (thesis.tex)" in refused(2, *words, "--output", busy)
    assert "is a file; pass a folder for the run" in refused(2, *words, "--output", busy / "thesis.tex")
    assert [path.name for path in busy.iterdir()] == ["thesis.tex"]


# --- completion


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_a_shell_completes_commands_options_choices_and_paths(tmp_path: Path) -> None:
    """Installed for bash as --install-completion does; where hush names nothing, bash itself completes file names."""
    lines = {
        "hush rep": ["report"],
        "hush plan --bound r": ["renyi"],
        "hush audit run --attack e": ["extraction", "exposure"],
        "hush plan gr": [],
        "hush plan graph.parquet --output ou": [],
    }
    program = Path(sys.executable).parent
    script = [f'export HOME="{tmp_path}" PATH="{program}:$PATH"', "hush --install-completion bash > /dev/null"]
    script += ['source "$HOME/.bash_completions/hush.sh"', "complete -p hush"]
    for line in lines:
        script += [f"COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}", "_hush_completion hush"]
        script += ['echo "${COMPREPLY[@]}"']
    done = subprocess.run(["bash", "--norc", "-c", "\n".join(script)], capture_output=True, text=True, check=True)
    how, *found = done.stdout.splitlines()
    assert how == "complete -o default -F _hush_completion hush"
    assert [line.split() for line in found] == list(lines.values())
    assert "hush.sh" in (tmp_path / ".bashrc").read_text()


# --- what is said about them elsewhere


ROOT = Path(__file__).parents[2]
MENTION = re.compile(rf"\bhush ({'|'.join(COMMANDS)})\b([^`\n|]*)")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in (".py", ".yaml"))


def mentioned(page: Path) -> list[tuple[str, set[str]]]:
    """Commands that a text names, and the options that it gives to each."""
    found = MENTION.findall(page.read_text(encoding="utf-8").replace("\\\n", " "))
    alone = [(name, re.split(r"\bhush\b|, then|[.;] |\"", words)[0]) for name, words in found]
    return [(name, set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", words))) for name, words in alone]


@pytest.mark.parametrize("page", [*filter(mentioned, PAGES)], ids=lambda page: str(page.relative_to(ROOT)))
def test_options_that_a_text_gives_to_a_command_exist(page: Path) -> None:
    for name, options in mentioned(page):
        known = {form for option in options_of(name).values() for form in option.forms} | {"--help"}
        assert options <= known, f"hush {name}"
