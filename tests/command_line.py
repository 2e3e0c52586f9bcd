"""Running the command line inside the tests."""

import json
import re
from typing import Any

from typer.testing import CliRunner, Result

from hush.cli import app


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run_json(*arguments: object, code: int = 0) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def message(result: Result) -> str:
    """What a command said on stderr, without boxes and line breaks."""
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", result.stderr).split())


def refused(code: int, *arguments: object) -> str:
    """The message of a command that must fail with this code: short, on stderr, without a traceback."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    assert not result.stdout
    assert "Traceback" not in result.stderr
    return message(result)
