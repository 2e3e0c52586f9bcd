"""What ``hush plan`` and ``hush frontier`` read to say what can be learnt: a model's size, and public texts.

Without a model they say for how many parameters the signal would do; without data, how many examples dropping leaves,
but not how much text.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from hush.cli.checks import check_model, missing_library_explained, quiet_libraries
from hush.cli.options import TextUnit
from hush.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hush.accounting.signal import GradientStatistics
    from hush.plan import Plan
    from hush.plan.signal import Outlook

__all__ = ["check_model_option", "read_outlook", "read_parameters"]


MAX_TEXTS = 1000  # public ones, of which some are measured
MAX_PARAMETERS = 1e15


def check_model_option(model: str | None) -> None:
    """Refuse a number that is no size and a model that cannot be found, before anything is read."""
    if model is None:
        return
    number = _number(model)
    if number is None:
        check_model(model, "--model")
    elif not 1 <= number < MAX_PARAMETERS:  # NaN fails
        raise InvalidInput(f"--model={model}; pass a model, or its number of trained parameters, such as 124e6")


def read_parameters(model: str | None) -> int | None:
    """How many parameters of this model are trained; its weights are not read."""
    if model is None:
        return None
    number = _number(model)
    if number is not None:
        return int(number)
    with missing_library_explained("a model"):
        from hush.train.public.predictor import count_trained
    return count_trained(model)


def read_outlook(
    plan: "Plan",
    *,
    incidence: Path,
    model: str | None,
    data: str | None,
    column: str | None,
    unit: TextUnit | None,
) -> "Outlook":
    """The outlook of a plan, for a model and with texts where there are any.

    With a model and data, gradients of the model are measured on examples without a secret.
    """
    import numpy as np

    from hush.data import read_corpus
    from hush.plan.make import held_out_examples
    from hush.plan.signal import Outlook, text_shares
    from hush.slots import SPANS_FILE, Spans

    if data is None:
        return Outlook.of_plan(plan, parameters=read_parameters(model))
    free_N = plan.incidence.secrets_per_example == 0
    free_N[held_out_examples(plan)] = False
    corpus = read_corpus(data, column=column, unit=None if unit is None else unit.value)
    characters_N, public = np.zeros(len(free_N), dtype=np.int64), list[str]()
    for example, text in enumerate(corpus.texts()):
        characters_N[example] = len(text)
        if free_N[example] and len(public) < MAX_TEXTS:
            public.append(text)
    path = incidence.parent.parent / SPANS_FILE
    spans = None if plan.slots is None or not path.is_file() else Spans.from_parquet(path, plan.slots)
    statistics = _statistics(model, public, clip_norm=plan.clip_norm)
    return Outlook.of_plan(
        plan,
        parameters=read_parameters(model) if statistics is None else statistics.parameters,
        statistics=statistics,
        texts=text_shares(plan.incidence, characters_N, spans),
    )


def _statistics(model: str | None, public: "Sequence[str]", *, clip_norm: float) -> "GradientStatistics | None":
    """What gradients of the model on public texts say; None if only its size is known."""
    if model is None or not public or _number(model) is not None:
        return None
    with missing_library_explained("a model"):
        from hush.train.public.predictor import statistics_of_texts
    quiet_libraries(silent=False)
    return statistics_of_texts(model, public, clip_norm=clip_norm)


def _number(model: str) -> float | None:
    try:
        return float(model)
    except ValueError:
        return None
