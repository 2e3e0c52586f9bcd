"""What was checked, and with what result."""

from dataclasses import dataclass

from hush.certificate import Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was checked."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """All checks of one folder; its certificate, of a release that of the run, if it could be read.

    unchecked: names of files in the folder that no check looks at.
    """

    checks: tuple[Check, ...]
    certificate: Certificate | None
    unchecked: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)


def check(name: str, passed: bool, otherwise: str, detail: str) -> Check:
    """A check with what to say in either case."""
    return Check(name=name, passed=passed, detail=detail if passed else otherwise)
