"""Models, and libraries that only commands with models need: named if missing, kept from drawing bars of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hush.errors import InvalidInput

__all__ = ["check_model", "needed_for", "quiet_libraries"]


def check_model(name: str, option: str) -> None:
    """Refuse what is meant as a folder and is none, and what the hub cannot be asked for, before anything is read."""
    from hush.corpus.names import means_path
    from hush.pipeline.hub_names import check_reachable

    if Path(name).is_dir():
        return
    if Path(name).exists() or means_path(name):
        raise InvalidInput(f"{option}={name} is no folder; pass that of a model, or its NAME or OWNER/NAME on the hub")
    with needed_for("a model of the hub"):
        check_reachable(name)


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Imports inside may fail; the message then says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InvalidInput(f'{what} needs the library {error.name}; pip install "hush[hf]"') from error


def quiet_libraries(*, silent: bool) -> None:
    """No bars of the libraries beneath ours; their warnings stay, unless another process shows the same."""
    try:
        from transformers.utils import logging
    except ImportError:
        return  # said where the library is needed
    logging.disable_progress_bar()
    if silent:
        logging.set_verbosity_error()
