"""What the documentation shows is what happens: its Python blocks and its ``$ hush`` lines run, in order, per page.

A block right after ``<!-- no-test -->`` is not run. Blocks of one page share their names and an empty folder. Two
pages start the installed program for each of their lines, as a reader would; the others call its commands in this
process, which saves some seconds of imports per line.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import command_line

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
IN_PROCESSES = [ROOT / "README.md", ROOT / "docs" / "certificate.md"]

BLOCK = re.compile(
    r"^(?P<skip><!-- no-test -->\s*\n)?(?P<indent> *)```(?P<language>python|console|bash)\b[^\n]*\n"
    r"(?P<body>.*?)^(?P=indent)```\s*$",
    re.MULTILINE | re.DOTALL,
)
FENCED = re.compile(r"^(?P<indent> *)```\w*[^\n]*\n(?P<body>.*?)^(?P=indent)```\s*$", re.MULTILINE | re.DOTALL)


def steps(page: str) -> Iterator[tuple[int, str, str]]:
    """(line, language, source) of each block that is to run; a console block gives one step per command line.

    Of hush, and of OpenSSF Model Signing, which must accept what hush signs.
    """
    for block in BLOCK.finditer(page):
        if block["skip"]:
            continue
        line = page.count("\n", 0, block.start("body")) + 1
        body = re.sub(f"^{block['indent']}", "", block["body"], flags=re.MULTILINE)
        if block["language"] == "python":
            yield line, "python", body
            continue
        for command in re.findall(r"^\$ ((?:hush|model_signing) .*)$", body.replace("\\\n", " "), flags=re.MULTILINE):
            yield line, "command", command


def run_command(command: str, where: str, *, own_process: bool) -> None:
    program, *arguments = shlex.split(command, comments=True)
    if own_process or program != "hush":
        done = subprocess.run([Path(sys.executable).with_name(program), *arguments], capture_output=True, text=True)
        code, output = done.returncode, done.stdout + done.stderr
    else:
        result = command_line.run(*arguments)
        code, output = result.exit_code, result.output
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
    assert code == 0, f"{where}: `{command}` ended with {code}\n{output}"


@pytest.mark.usefixtures("warm_public_process")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_documentation_runs_as_it_reads(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # for commands: their tiny models gain nothing from more threads
    names: dict[str, object] = {"__name__": "__main__"}
    for line, kind, source in steps(page.read_text()):
        where = f"{page.relative_to(ROOT)}:{line}"
        if kind == "command":
            run_command(source, where, own_process=page in IN_PROCESSES)
        else:
            # Blank lines in front, so that a traceback points at the line of the page.
            exec(compile("\n" * (line - 1) + source, str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_samples_fit_the_page(page: Path) -> None:
    wide = [
        line for block in FENCED.finditer(page.read_text()) for line in block["body"].splitlines() if len(line) > 88
    ]
    assert not wide


def test_the_reader_of_pages_finds_what_runs_and_skips_what_is_marked() -> None:
    page = (
        "```python\na = 1\n```\n<!-- no-test -->\n```python\nboom\n```\n"
        "```console\n$ hush demo \\\n    --json\nsome output\n$ ls\n```\n"
        "    ```python\n    b = 2\n    ```\n```json\n{}\n```\n"
    )
    assert [(kind, " ".join(source.split())) for _, kind, source in steps(page)] == [
        ("python", "a = 1"),
        ("command", "hush demo --json"),
        ("python", "b = 2"),
    ]
