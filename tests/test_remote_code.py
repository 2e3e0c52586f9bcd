"""No model and no data set brings code along that runs: what is loaded by name is data."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOADERS = {"from_pretrained", "from_config", "load_dataset"}


def unguarded_calls(source: str) -> list[int]:
    """Lines of calls that load something by name without saying that its code must not run."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    loading = [
        call for call in calls if (getattr(call.func, "attr", None) or getattr(call.func, "id", None)) in LOADERS
    ]
    return [
        call.lineno
        for call in loading
        if not any(
            given.arg == "trust_remote_code" and isinstance(given.value, ast.Constant) and given.value.value is False
            for given in call.keywords
        )
    ]


def test_the_reader_of_calls_sees_every_form() -> None:
    source = (
        "A.from_pretrained(x)\nfrom_config(x, trust_remote_code=True)\nload_dataset(x, **options)\n"
        "a.b().from_pretrained(x, trust_remote_code=False)\nsave_pretrained(x)"
    )
    assert unguarded_calls(source) == [1, 2, 3]


@pytest.mark.parametrize("folder", ["src", "experiments", "benchmarks"])
def test_every_loader_says_that_no_remote_code_runs(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (lines := unguarded_calls(path.read_text()))
    }
    assert not found, f"pass trust_remote_code=False: {found}"
