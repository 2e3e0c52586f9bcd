"""Libraries that only commands with models need: named if missing, and kept from drawing bars of their own."""

from collections.abc import Iterator
from contextlib import contextmanager

from hush.errors import InvalidInput

__all__ = ["needed_for", "quiet_libraries"]


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
