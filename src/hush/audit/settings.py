"""The settings of an audit and of its canaries, stated once. Needs no torch.

They are the options of ``hush audit`` and ``hush canaries``, and ``audit:`` in a config.
"""

from typing import Annotated, Literal, Self, final, get_args

from pydantic import BeforeValidator, Field, model_validator

from hush.errors import InvalidInput, Setting
from hush.settings import Count, Probability, Settings, Text, Texts, Whole, wrong

__all__ = ["ATTACKS", "Alphabet", "AttackName", "AuditSettings", "CanarySettings", "Continuation"]

AttackName = Literal["mechanism", "extraction", "exposure"]
ATTACKS: tuple[AttackName, ...] = get_args(AttackName)
Continuation = int | Literal["secret"]  # so many tokens from the secret's first on, or the whole secret
Alphabet = Literal["digits", "hex", "lower", "upper", "letters", "alphanumeric"]
LENGTHS = "pass a list of numbers of tokens from 1 on, or of the word secret"


def _continuations(value: object) -> object:
    entries = value if isinstance(value, list | tuple) else [value]
    for entry in entries:
        counts = isinstance(entry, int) and not isinstance(entry, bool) and entry >= 1
        if not counts and entry != "secret":
            raise wrong(f"it holds something else than lengths; {LENGTHS}")
    if not entries:
        raise wrong(f"it is empty; {LENGTHS}")
    return tuple(entries)


class AuditSettings(Settings):
    """Which attacks are tried, and how hard.

    prompts, continuations: lengths in tokens; "secret" is the secret's own. secrets: how many are simulated, each in
    ``trials`` runs. candidates: how many of a canary are ranked. examples: how many whole examples are tried.
    level: the probability of a false alarm, for all rows together. max_length: tokens to which training cut texts, by
    default as the run says. micro_batch: sequences that the model sees at once, by default as memory allows. seed: for
    tests, of simulated runs and ranked candidates; no command and no config sets it.
    """

    attacks: Annotated[tuple[AttackName, ...], Field(min_length=1)] = Field(
        default=ATTACKS, description=f"a list of some of {', '.join(ATTACKS)}"
    )
    prompts: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(
        default=(10, 20, 50), description="a list of numbers of tokens, such as [10, 20, 50]"
    )
    continuations: Annotated[tuple[Continuation, ...], BeforeValidator(_continuations)] = ("secret",)
    secrets: Count = Field(default=10, description="how many secrets are simulated, a whole number from 1 on")
    trials: Count = Field(default=20_000, description="simulated runs for each, a whole number from 1 on")
    candidates: Whole = Field(default=1000, ge=2, description="candidates that are ranked, a whole number from 2 on")
    examples: Count = Field(default=10_000, description="whole examples to try, a whole number from 1 on")
    level: Probability = Field(
        default=0.01, lt=0.5, description="a probability of error, a number above 0 and below 0.5, such as 0.01"
    )
    max_length: Count | None = Field(default=None, description="a number of tokens, a whole number from 1 on")
    micro_batch: Count | None = Field(default=None, description="how many sequences at once, a whole number from 1 on")
    device: Text | None = Field(default=None, description="cpu, cuda, cuda:1, …")
    seed: Whole | None = Field(default=None, exclude=True, description="a whole number")


@final
class CanarySettings(Settings):
    """Canaries: secrets made up by the owner and planted, so that the training can be audited."""

    ceiling: Probability = Field(
        description="what each canary is promised, a number between 0 and 1, such as 1e-4 with a length of 8"
    )
    count: Count = Field(default=10, description="how many canaries, a whole number from 1 on")
    repeats: Count = Field(default=1, description="in how many new examples each stands, a whole number from 1 on")
    alphabet: Alphabet = "digits"
    length: Count = Field(default=4, le=256, description="how many letters a canary has, a whole number from 1 to 256")
    templates: Texts | None = Field(
        default=None, description='a list of texts with {secret} in them, such as ["PIN of user {number}: {secret}"]'
    )

    @model_validator(mode="after")
    def _plantable(self) -> Self:
        from hush.audit.canaries import Candidates, Template

        for number, text in enumerate(self.templates or ()):
            try:
                Template.parse(text)
            except InvalidInput as error:
                raise wrong(Setting("templates"), f"[{number}]: {error}") from None
        prior = Candidates.of_format(self.alphabet, self.length).prior
        if prior > self.ceiling:
            raise wrong(
                f"the ceiling {self.ceiling!r} is below {prior!r}, the chance of guessing one of this format; raise ",
                Setting("ceiling"),
                " or ",
                Setting("length"),
            )
        return self
