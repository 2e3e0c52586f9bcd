"""What each section of a config may say, in the terms of the commands that it stands for.

Descriptions complete "pass …" in messages, as in rules files.
"""

from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from hush.accounting.arguments import MAX_ROUNDS
from hush.scan.rules.reading import YES_OR_NO, Model, Probability, Real, Texts, Whole, nearest, wrong
from hush.train.settings import MAX_LEARNING_RATE

__all__ = [
    "AttackName",
    "AuditSection",
    "CanariesSection",
    "DataSection",
    "LoraSection",
    "ModelSection",
    "PlanSection",
    "PublicSection",
    "ReportSection",
    "SmallModel",
    "TrainingSection",
]


LARGE = 1e9  # of noise and clip norm: float32 sums bear both, and their product
AttackName = Literal["mechanism", "extraction", "exposure"]

Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[Real, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[Whole, Field(ge=1)]


class DataSection(Model):
    """What to train on."""

    source: Text = Field(description="the path of a file or a folder with your data, or the name of a data set")
    column: Text | None = Field(default=None, description="the name of the column that holds the text")
    unit: Literal["line", "file"] | None = None
    id_column: Text | None = Field(default=None, description="the name of a column with ids of your own")
    key: Text | None = Field(default=None, description="the path of your key, which is made on first use")
    skip_bad: bool = Field(default=False, description=YES_OR_NO)
    workers: Count = Field(default=1, description="how many processes look for secrets, a whole number from 1 on")


class PlanSection(Model):
    """How often examples are used and how much noise is added: the arguments of ``make_plan``; what is held out."""

    batch_size: Positive = Field(description="the expected number of examples in a round, a number above 0")
    rounds: Count = Field(
        le=MAX_ROUNDS, description=f"the number of training rounds, a whole number from 1 to {MAX_ROUNDS:,}"
    )
    bound: Literal["blowup", "renyi", "kl"] = "blowup"
    capacity: Literal["accounted", "paper", "none"] = "accounted"
    noise_multiplier: Positive | None = Field(
        default=None, le=LARGE, description="a number above 0 and up to 1e9, or leave it out to have it found"
    )
    keep: Real | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="the share of their weight that examples with secrets keep, above 0 and up to 1, such as 0.9",
    )
    strength: Positive | None = Field(default=None, description="the paper's c, a number above 0")
    hold_out: Real | None = Field(
        default=None,
        ge=0.0,
        le=0.5,
        description="the share of the examples without secrets to evaluate on, from 0 for none to 0.5, such as 0.05",
    )
    clip_norm: Positive = Field(
        default=1.0, ge=1 / LARGE, le=LARGE, description="a number from 1e-9 to 1e9, such as 1.0"
    )

    @model_validator(mode="after")
    def _one_goal(self) -> Self:
        if self.keep is not None and (self.noise_multiplier is not None or self.capacity != "accounted"):
            raise wrong("keep looks for a noise, for accounted capacities; drop it, or noise_multiplier and capacity")
        if (self.strength is not None) != (self.capacity == "paper"):
            raise wrong("strength belongs to capacity: paper, which needs it; give both or neither")
        return self


class SmallModel(Model):
    """A GPT-2 over bytes with random weights, made on the spot: for demonstrations, and where nothing is downloaded."""

    layers: Count = Field(default=2, description="a whole number from 1 on, such as 2")
    width: Count = Field(default=64, description="a whole number from 1 on, a multiple of heads, such as 64")
    heads: Count = Field(default=2, description="a whole number from 1 on, such as 2")
    length: Whole = Field(
        default=128, ge=2, description="the most bytes of a text, a whole number from 2 on, such as 128"
    )
    seed: Whole = Field(default=0, ge=0, description="a whole number from 0 on")

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        if self.width % self.heads:
            raise wrong(f"a width of {self.width} cannot be split over {self.heads} heads; pass a multiple of heads")
        return self


class ModelSection(Model):
    """Which model is fine-tuned."""

    name: Text | None = Field(default=None, description="the name of a model on the hub, or the path of its folder")
    small: SmallModel | None = Field(
        default=None, description="a mapping with layers, width, heads, length or seed, maybe empty: {}"
    )

    @model_validator(mode="after")
    def _one_model(self) -> Self:
        if (self.name is None) == (self.small is None):
            raise wrong("a model is needed: pass either name (of the hub, or a folder) or small, one of them")
        return self


class LoraSection(Model):
    """Small adapters in place of the whole model."""

    rank: Count = Field(default=8, description="a whole number from 1 on, such as 8")
    alpha: Positive = Field(default=16.0, description="a number above 0, such as 16")
    dropout: Real = Field(default=0.0, ge=0.0, lt=1.0, description="a number from 0 to less than 1")
    targets: Texts | None = Field(default=None, description="a list of names of modules, such as [q_proj, v_proj]")


class PublicSection(Model):
    """Examples without secrets, added to each step without noise."""

    weight: Positive = Field(description="what their mean gradient is multiplied by, a number above 0")
    batch: Count = Field(description="how many of them in each round, a whole number from 1 on")


class TrainingSection(Model):
    """How the model learns; the options of ``hush train``. The guarantee holds for any."""

    task: Literal["causal", "masked"] | None = None
    lora: LoraSection | None = Field(default=None, description="a mapping with rank, alpha, dropout or targets")
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Positive | None = Field(
        default=None, le=MAX_LEARNING_RATE, description="a number above 0 and up to 1000, such as 5e-4"
    )
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup: Whole = Field(default=0, ge=0, description="a number of rounds, a whole number from 0 on")
    max_length: Whole | None = Field(
        default=None, ge=2, description="the tokens to which texts are cut, a whole number from 2 on"
    )
    bf16: bool = Field(default=False, description=YES_OR_NO)
    public: PublicSection | None = Field(default=None, description="a mapping with weight and batch")
    micro_batch: Count = Field(
        default=32, description="how many examples the model sees at once, a whole number from 1 on"
    )
    compile: bool = Field(default=False, description=YES_OR_NO)
    gradient_checkpointing: bool = Field(default=False, description=YES_OR_NO)
    save_every: Count = Field(default=100, description="rounds between states to resume from, a whole number from 1 on")
    evaluate_every: Count | None = Field(
        default=None, description="rounds between losses on what is held out, a whole number from 1 on"
    )
    device: Text | None = Field(default=None, description="cpu, cuda, cuda:1, …")


def _continuations(value: object) -> object:
    """Whole numbers from 1 on, or the word secret."""
    entries = value if isinstance(value, list | tuple) else [value]
    for entry in entries:
        counts = isinstance(entry, int) and not isinstance(entry, bool) and entry >= 1
        if not counts and entry != "secret":
            near = nearest(entry, ["secret"])
            raise wrong(f"it holds something else than lengths{near}; pass a list of numbers of tokens, or of secret")
    if not entries:
        raise wrong("it is empty; pass a list of numbers of tokens, or of secret")
    return tuple(entries)


class CanariesSection(Model):
    """Secrets that are yours to lose, planted so that the training can be audited."""

    ceiling: Probability = Field(
        description="what each canary is promised, a number between 0 and 1, such as 1e-4 with a length of 8"
    )
    count: Count = Field(default=10, description="how many canaries, a whole number from 1 on")
    repeats: Count = Field(default=1, description="in how many new examples each stands, a whole number from 1 on")
    alphabet: Literal["digits", "hex", "lower", "upper", "letters", "alphanumeric"] = "digits"
    length: Count = Field(default=4, le=256, description="how many letters a canary has, a whole number from 1 to 256")
    templates: Texts | None = Field(
        default=None, description='a list of texts with {secret} in them, such as ["PIN of user {number}: {secret}"]'
    )

    @model_validator(mode="after")
    def _plantable(self) -> Self:
        from hush.audit.canaries import Candidates, Template
        from hush.errors import InvalidInput

        for number, text in enumerate(self.templates or ()):
            try:
                Template.parse(text)
            except InvalidInput as error:
                raise wrong(f"templates[{number}]: {error}") from None
        prior = Candidates.of_format(self.alphabet, self.length).prior
        if prior > self.ceiling:
            raise wrong(
                f"the ceiling {self.ceiling!r} is below {prior!r}, the chance of guessing one of this format; raise "
                "ceiling, or length"
            )
        return self


class AuditSection(Model):
    """Which attacks to try on the result, and how hard."""

    attacks: Annotated[tuple[AttackName, ...], Field(min_length=1)] = Field(
        default=get_args(AttackName), description=f"a list of some of {', '.join(get_args(AttackName))}"
    )
    prompts: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(
        default=(10, 20, 50), description="a list of numbers of tokens, such as [10, 20, 50]"
    )
    continuations: Annotated[tuple[int | str, ...], BeforeValidator(_continuations)] = ("secret",)
    secrets: Count = Field(default=10, description="how many secrets are simulated, a whole number from 1 on")
    trials: Count = Field(default=20_000, description="simulated runs for each, a whole number from 1 on")
    candidates: Whole = Field(default=1000, ge=2, description="candidates that are ranked, a whole number from 2 on")
    examples: Count = Field(default=10_000, description="whole examples to try, a whole number from 1 on")
    level: Probability = Field(default=0.01, lt=0.5, description="the level of error, a number above 0 and below 0.5")
    reference: Text | None = Field(
        default=None,
        description="the name or folder of a model that never saw the data, or base-model for the one you begin with",
    )
    held_out: Text | None = Field(default=None, description="the path of texts that the model never sees")
    canaries: CanariesSection | None = Field(
        default=None, description="a mapping with ceiling, count, repeats, alphabet, length or templates"
    )


class ReportSection(Model):
    """What the report shows besides plan, training and audit."""

    title: Text = Field(default="Protection of secrets in training", description="a title for the page")
    frontier: bool = Field(default=True, description=YES_OR_NO)
    methods: bool = Field(default=True, description=YES_OR_NO)
    show_text: bool = Field(default=False, description=YES_OR_NO)
