"""The settings of an audit and its canaries: options of ``hush audit`` and ``hush canaries``, ``audit:`` in a config.

Importing this module imports no torch.
"""

from typing import Annotated, Literal, Self, final, get_args

from pydantic import BeforeValidator, Field, model_validator

from hush.errors import InvalidInput, Setting
from hush.settings import Count, Probability, Settings, Text, Texts, Whole, wrong

__all__ = ["ATTACKS", "Alphabet", "AttackName", "AuditSettings", "CanarySettings", "Continuation"]

AttackName = Literal["mechanism", "extraction", "exposure"]
ATTACKS: tuple[AttackName, ...] = get_args(AttackName)
Continuation = int | Literal["secret"]  # a number of tokens from the start of the secret, or the whole secret
Alphabet = Literal["digits", "hex", "lower", "upper", "letters", "alphanumeric"]
LENGTHS = "pass a list of numbers of tokens, each at least 1 or the word secret"


def _continuations(value: object) -> object:
    entries = value if isinstance(value, list | tuple) else [value]
    for entry in entries:
        counts = isinstance(entry, int) and not isinstance(entry, bool) and entry >= 1
        if not counts and entry != "secret":
            raise wrong(f"it holds something other than lengths; {LENGTHS}")
    if not entries:
        raise wrong(f"it is empty; {LENGTHS}")
    return tuple(entries)


class AuditSettings(Settings):
    """Which attacks are tried, and with how much effort.

    prompts, continuations: lengths in tokens; "secret" is the length of the secret. secrets: how many are simulated,
    each in ``trials`` runs. candidates: how many candidates of a canary are ranked. examples: how many whole examples
    are tried. level: the probability of a false alarm, over all rows together. max_length: the tokens to which training
    truncated texts, by default that of the run. micro_batch: sequences that the model processes at once, by default as
    many as fit in memory. seed: of simulated runs and ranked candidates, for tests; no command and no config sets it.
    """

    attacks: Annotated[tuple[AttackName, ...], Field(min_length=1)] = Field(
        default=ATTACKS, description=f"a list of some of {', '.join(ATTACKS)}"
    )
    prompts: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(
        default=(10, 20, 50), description="a list of numbers of tokens, such as [10, 20, 50]"
    )
    continuations: Annotated[tuple[Continuation, ...], BeforeValidator(_continuations)] = ("secret",)
    secrets: Count = Field(default=10, description="the number of secrets to simulate, a whole number of at least 1")
    trials: Count = Field(
        default=20_000, description="the number of simulated runs per secret, a whole number of at least 1"
    )
    candidates: Whole = Field(
        default=1000, ge=2, description="the number of candidates to rank, a whole number of at least 2"
    )
    examples: Count = Field(
        default=10_000, description="the number of whole examples to try, a whole number of at least 1"
    )
    level: Probability = Field(
        default=0.01, lt=0.5, description="a probability of error, a number above 0 and below 0.5, such as 0.01"
    )
    max_length: Count | None = Field(default=None, description="a number of tokens, a whole number of at least 1")
    micro_batch: Count | None = Field(
        default=None, description="the number of sequences to process at once, a whole number of at least 1"
    )
    device: Text | None = Field(default=None, description="cpu, cuda, cuda:1, …")
    seed: Whole | None = Field(default=None, exclude=True, description="a whole number")


@final
class CanarySettings(Settings):
    """Canaries: made-up secrets that are planted in the data, so that a training can be audited."""

    ceiling: Probability = Field(
        description="the ceiling of each canary, a number between 0 and 1, such as 1e-4 with a length of 8"
    )
    count: Count = Field(default=10, description="the number of canaries, a whole number of at least 1")
    repeats: Count = Field(default=1, description="the number of new examples per canary, a whole number of at least 1")
    alphabet: Alphabet = "digits"
    length: Count = Field(
        default=4, le=256, description="the number of characters of a canary, a whole number from 1 to 256"
    )
    templates: Texts | None = Field(
        default=None, description='a list of texts with {secret} in them, such as ["PIN of user {number}: {secret}"]'
    )

    @model_validator(mode="after")
    def _ceiling_above_prior(self) -> Self:
        from hush.audit.canaries import Candidates, Template

        for number, text in enumerate(self.templates or ()):
            try:
                Template.parse(text)
            except InvalidInput as error:
                raise wrong(Setting("templates"), f"[{number}]: {error}") from None
        prior = Candidates.of_format(self.alphabet, self.length).prior
        if prior > self.ceiling:
            raise wrong(
                f"the ceiling {self.ceiling!r} is below {prior!r}, the probability of guessing this format; raise ",
                Setting("ceiling"),
                " or ",
                Setting("length"),
            )
        return self
