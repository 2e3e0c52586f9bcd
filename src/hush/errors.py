"""The error family, below every stage. Each message says what is wrong, the values, and what to do.

An error names a setting by the field that states it (``batch_size``, ``lora.rank``), never by a command-line flag: the
command line shows it as ``--batch-size``, a config file as ``plan.batch_size``, Python as the argument. No message
holds the text of a secret: secrets are named by index or id.
"""

from collections.abc import Callable

__all__ = ["CannotCertify", "HushError", "InfeasiblePlan", "InvalidInput", "NameOf", "Setting"]

NameOf = Callable[[str], str | None]  # a front door's name for a setting; None if it has none

_NO_VALUE = object()


class Setting(str):
    """The name of a setting inside a message: each front door shows its own name for it."""

    __slots__ = ()


class HushError(Exception):
    """Base of every error that hush raises on purpose; catch it to catch them all.

    parts: the message in pieces; a piece that is a :class:`Setting` is shown by the front door's name for it.
    setting: the one setting that is wrong, if there is one; with value, the message begins with both.

    >>> error = HushError("pass a number above 0, or drop ", Setting("keep"), setting="batch_size", value=0)
    >>> str(error)
    'batch_size=0; pass a number above 0, or drop keep'
    >>> error.show_settings_as(lambda name: "--" + name.replace("_", "-"))
    >>> str(error)
    '--batch-size=0; pass a number above 0, or drop --keep'
    """

    def __init__(self, *parts: str, setting: str | None = None, value: object = _NO_VALUE) -> None:
        super().__init__(*parts)
        self.setting = setting
        self._doors: tuple[NameOf, ...] = ()
        self._begin: tuple[str, ...] = ()  # a repr, so that the error can be pickled whatever the value is
        if setting is not None and value is not _NO_VALUE:
            self._begin = (Setting(setting), f"={value!r}; ")

    def show_settings_as(self, name_of: "NameOf") -> None:
        """From now on show each setting as ``name_of`` names it; what it does not know is left to the next door."""
        self._doors += (name_of,)

    def __str__(self) -> str:
        parts = (*self._begin, *self.args)
        return "".join(self._shown(part) if isinstance(part, Setting) else str(part) for part in parts)

    def _shown(self, setting: str) -> str:
        names = (name_of(str(setting)) for name_of in self._doors)
        return next((name for name in names if name is not None), str(setting))


class InvalidInput(HushError, ValueError):
    """An argument or a file cannot be what the caller meant.

    Raised before any computation: NaN or out-of-range numbers, lengths that do not match, a file that hush did not
    write or that was changed since. It is a ``ValueError`` too, so callers need not know hush to handle it.
    """


class InfeasiblePlan(HushError):
    """The input is well formed, but nothing can satisfy it.

    Raised when no finite noise keeps every promise (a ceiling equal to its prior, say), or when a batch size needs
    sampling probabilities above 1.
    """


class CannotCertify(HushError):
    """A number was found but not proven, so it is withheld.

    Raised when no available bound holds with a known error at the requested setting, or when a certificate does not
    match what it certifies. hush never returns an uncertified number in its place.
    """
