"""The error family, below every stage. Each message says what is wrong, the values, and what to do.

No message ever holds the text of a secret: secrets are named by index or id.
"""

__all__ = ["CannotCertify", "HushError", "InfeasiblePlan", "InvalidInput"]


class HushError(Exception):
    """Base of every error that hush raises on purpose; catch it to catch them all."""


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
