"""Every architecture of transformers is exact or refused by name, and the documentation says which."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

# The main families, and one of each kind that is hard to clip: linear layers with a forward of their own (falcon), rows
# flattened to examples × tokens (opt), tables shared by all examples (mpnet, deberta-v2), routed rows (mixtral,
# qwen2_moe), recurrences (mamba, recurrent_gemma), strict configurations (gemma3n_text), no mask of padding (fnet).
SAMPLE = [
    ("falcon", "causal"),
    ("gemma3_text", "causal"),
    ("gemma3n_text", "causal"),
    ("gpt2", "causal"),
    ("llama", "causal"),
    ("mamba", "causal"),
    ("mixtral", "causal"),
    ("opt", "causal"),
    ("qwen2_moe", "causal"),
    ("qwen3", "causal"),
    ("recurrent_gemma", "causal"),
    ("bert", "masked"),
    ("deberta-v2", "masked"),
    ("fnet", "masked"),
    ("modernbert", "masked"),
    ("mpnet", "masked"),
    ("roberta", "masked"),
    ("bart", "classification"),
    ("deberta-v2", "classification"),
    ("llama", "classification"),
]

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and torch, about models that nobody would train


@pytest.fixture(scope="module")
def architectures() -> Any:
    """The script that makes the page."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module("architectures")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def page(architectures: Any) -> dict[tuple[str, str], tuple[str, str]]:
    """The rows of the documentation page, if it is about the transformers that is installed."""
    import transformers

    text = architectures.PAGE.read_text()
    version = re.search(r"transformers\s+([\d.]+\d)", text)
    assert version is not None
    if version[1] != transformers.__version__:
        pytest.skip(f"the page is about transformers {version[1]}, and {transformers.__version__} is installed")
    return architectures.rows_of_page(text)


def agrees(found: Any, page: dict[tuple[str, str], tuple[str, str]]) -> bool:
    """Whether a verdict is the page's; the words of a refusal hold numbers, which may differ in their last digits."""
    verdict, why = page[found.model_type, found.task]
    return found.verdict == verdict and (found.verdict != "exact" or ", ".join(found.routes) == why.partition(": ")[0])


@pytest.mark.parametrize(("model_type", "task"), SAMPLE)
def test_an_architecture_is_exact_or_refused_as_the_page_says(
    model_type: str, task: str, architectures: Any, page: dict[tuple[str, str], tuple[str, str]]
) -> None:
    found = architectures.survey(model_type, task)
    assert found.verdict in ("exact", "refused"), found
    assert agrees(found, page), (found, page[model_type, task])


def test_the_page_lists_what_transformers_registers(
    architectures: Any, page: dict[tuple[str, str], tuple[str, str]]
) -> None:
    assert page.keys() == {(model_type, task) for model_type, task, _ in architectures.registered()}
    assert {verdict for verdict, _ in page.values()} <= {"exact", "refused", "not tried"}


def test_a_page_reads_back_as_it_was_written(architectures: Any) -> None:
    names = architectures.registered()
    verdicts = [
        architectures.Verdict(model_type=model_type, task=task, verdict="refused", reason=f"a | [{number}] *c* \\ `d`")
        for number, (model_type, task, _) in enumerate(names)
    ]
    rows = architectures.rows_of_page(architectures.page(verdicts))
    assert list(rows) == [(model_type, task) for model_type, task, _ in names]
    assert [re.sub(r"\\(.)", r"\1", why) for _, why in rows.values()] == [found.reason for found in verdicts]


@pytest.mark.slow
def test_every_architecture_is_exact_or_refused_as_the_page_says(
    architectures: Any, page: dict[tuple[str, str], tuple[str, str]]
) -> None:
    found = [architectures.survey_alone(model_type, task) for model_type, task, _ in architectures.registered()]
    assert not [verdict for verdict in found if verdict.verdict == "wrong" or not agrees(verdict, page)]
