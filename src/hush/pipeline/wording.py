"""Errors of a run in the words of its config: the stages speak of options of the commands that they stand for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hush.errors import CannotCertify, HushError, InfeasiblePlan, InvalidInput

__all__ = ["in_words_of_config"]

FAMILY = (InvalidInput, InfeasiblePlan, CannotCertify, HushError)  # those that callers tell apart
KEYS: Mapping[str, str] = {
    "hush scan --skip-bad": "data.skip_bad: true",
    "--column": "data.column",
    "--key": "data.key",
    "--task ": "training.task: ",
    "--max-length=": "training.max_length: ",
    "--device=": "training.device: ",
    "--lora-target": "training.lora.targets",
    "; ask for less": "; lower audit.prompts or audit.continuations",
}


@contextmanager
def in_words_of_config() -> Iterator[None]:
    """What hush raises on purpose inside is raised with keys of a config in place of options."""
    try:
        yield
    except HushError as error:
        said = str(error)
        for option, key in KEYS.items():
            said = said.replace(option, key)
        if said == str(error):
            raise
        raise next(kind for kind in FAMILY if isinstance(error, kind))(said) from error
