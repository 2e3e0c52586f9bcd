"""One audit in progress: its inputs and models, its notices, and the folder that makes it resumable.

An :class:`AuditSession` is what every attack of ``hush.audit.attacks`` takes. The folder of an audit holds:

audit.json, audit.md   the result: counts and numbers, no text. Only the owner can read it until the owner shares it
owner/                 a journal of each attack as JSON lines; details.json: the result of each secret; audit.key

A journal belongs to its inputs (model, plan, settings, and for data its tokens): it begins with their keyed
fingerprint. Each record carries a keyed checksum of itself and its position: from the first record that was changed,
moved or repeated, the work is done again.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final

from hush.arrays import Progress
from hush.audit.canaries import CanarySet
from hush.audit.exposure import CanaryFrame, canary_frame
from hush.audit.folders import CANARY_CLASS, AuditedRun, SecretSpans
from hush.audit.models import Subject, load_subject
from hush.audit.settings import AuditSettings
from hush.audit.verdict import NamedRun
from hush.data import Corpus
from hush.errors import InvalidInput, Setting
from hush.keys import DataKey
from hush.numbers import counted
from hush.storage import folder_digest, read_json, whole_file
from hush.train.language_models import default_loss, masked_lm_loss
from hush.train.pretrained import choose_device
from hush.train.settings import DEFAULT_MAX_TOKENS
from hush.train.slots.texts import add_placeholder_tokens

__all__ = [
    "AuditFolder",
    "AuditInputs",
    "AuditSession",
    "Journal",
    "LoadedModels",
    "StepProgress",
    "check_audit_folder",
    "read_named_run",
]


Record = dict[str, Any]

StepProgress = Callable[[str, int, int], None]  # called with (step, done, total)

REPORT_FILES = ("audit.json", "audit.md")

# A reference model that never saw the canaries is refused with at most this probability, in each attack.
MAX_FALSE_REFUSAL = 1e-4


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditInputs:
    """What the attacker is given.

    corpus: the data that the model was trained on. places: where its secrets stand. planting: its canaries. reference:
    a model with the same tokenizer that never saw the data. held_out: texts of the same kind that the model never saw.
    earlier: the naming results of independent runs that were audited before (``read_named_run``). releases: earlier
    releases of the run's chain in which the same canaries were planted; their models are attacked together with the
    run's. compared: whether the corpus was checked to be the plan's under the owner's key; if not, the report says so.
    """

    corpus: Corpus | None = None
    places: SecretSpans | None = None
    planting: CanarySet | None = None
    reference: str | None = None
    held_out: Corpus | None = None
    earlier: tuple[NamedRun, ...] = ()
    releases: tuple[AuditedRun, ...] = ()
    compared: bool = False

    def __post_init__(self) -> None:
        if self.planting is None and self.places is not None and CANARY_CLASS in self.places.classes.values():
            raise InvalidInput(
                "the spans include canaries, whose prior depends on their candidates; pass the planted canaries too, "
                "as ",
                Setting("canaries"),
            )


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoadedModels:
    """The model under audit and the reference. max_length: tokens to which texts are truncated, as in training."""

    subject: Subject
    reference: Subject | None
    tokenizer: Any
    masked: bool
    max_length: int

    def fold(self, text: str) -> str:
        """The text as the tokenizer distinguishes it: some tokenizers lower-case letters or strip accents first."""
        normalizer = getattr(getattr(self.tokenizer, "backend_tokenizer", None), "normalizer", None)
        return text if normalizer is None else normalizer.normalize_str(text)


@final
@dataclass(kw_only=True, repr=False)
class AuditSession:
    """One audit in progress. notices: what the reader of the report must know besides the numbers."""

    run: AuditedRun
    inputs: AuditInputs
    settings: AuditSettings
    folder: "AuditFolder"
    progress: StepProgress
    notices: list[str] = field(default_factory=list)

    @cached_property
    def models(self) -> LoadedModels:
        """The models, loaded on first use: the attack on the mechanism needs none."""
        self.progress("Loading the model", 0, 1)
        device = choose_device(self.settings.device)
        subject, tokenizer = load_subject(str(self.run.model), device=device)
        tokenizer = self._as_trained(tokenizer)
        reference = self.inputs.reference
        masked = _is_masked(subject)
        return LoadedModels(
            subject=subject,
            reference=None if reference is None else self._load_reference(reference, tokenizer, masked=masked),
            tokenizer=tokenizer,
            masked=masked,
            max_length=self._max_length(self.run, subject, tokenizer),
        )

    @cached_property
    def earlier_models(self) -> list[tuple[Subject, Any, int]]:
        """The models of earlier releases that are attacked too, oldest first: model, tokenizer, max_length."""
        device = choose_device(self.settings.device)
        models: list[tuple[Subject, Any, int]] = []
        for release in self.inputs.releases:
            subject, tokenizer = load_subject(str(release.model), device=device)
            if _is_masked(subject):
                raise InvalidInput(
                    "an earlier release is a masked language model, which ranks no candidates; leave it out of ",
                    Setting("earlier"),
                )
            tokenizer = self._as_trained(tokenizer)
            models.append((subject, tokenizer, self._max_length(release, subject, tokenizer)))
        return models

    def _as_trained(self, tokenizer: Any) -> Any:
        """The tokenizer as training used it: for conversations it adds no special tokens, which their texts hold."""
        corpus = self.inputs.corpus
        return tokenizer if corpus is None or corpus.rendering is None else corpus.rendering.tokenizer(tokenizer)

    def _max_length(self, run: AuditedRun, subject: Subject, tokenizer: Any) -> int:
        """Tokens to which the training of a run truncated texts."""
        asked = self.settings.max_length or run.max_length
        limit = min(subject.context_length, int(min(tokenizer.model_max_length, 10**9)))
        return min(DEFAULT_MAX_TOKENS if asked is None else asked, limit)

    def _load_reference(self, name: str, tokenizer: Any, *, masked: bool) -> Subject:
        """Load the reference. What it produces too does not count against training, so it must be another model."""
        if self.reference_id == self.run.digest:
            raise InvalidInput(
                "the reference is the model under audit, so everything it memorised would pass for known anyway; as ",
                Setting("reference"),
                " pass a model that never saw the data, such as the one that training started from",
            )
        device = choose_device(self.settings.device)
        reference, reference_tokenizer = load_subject(name, device=device)
        reference = self._with_placeholders(reference, reference_tokenizer, len(tokenizer))
        if reference_tokenizer.get_vocab() != tokenizer.get_vocab():
            raise InvalidInput(
                f"the reference has another tokenizer ({len(reference_tokenizer)} tokens) than the model under audit "
                f"({len(tokenizer)} tokens); pass a model with the same tokenizer as ",
                Setting("reference"),
            )
        if _is_masked(reference) != masked:  # training may use a model for another task than its configuration says
            reference, again = load_subject(name, task="masked" if masked else "causal", device=device)
            reference = self._with_placeholders(reference, again, len(tokenizer))
        return reference

    def _with_placeholders(self, reference: Subject, tokenizer: Any, wanted: int) -> Subject:
        """The reference with the tokens that training added for the slots of the plan, if it lacks them."""
        slots = self.run.plan.slots
        if slots is None or len(tokenizer) >= wanted:
            return reference
        add_placeholder_tokens(reference.model, tokenizer, slots.rules)
        inner: Any = reference.model
        return replace(reference, vocabulary_size=int(inner.get_input_embeddings().num_embeddings))

    @cached_property
    def reference_id(self) -> str | None:
        """What identifies the reference: the digest of its folder, or its name."""
        name = self.inputs.reference
        return folder_digest(Path(name)) if name is not None and Path(name).is_dir() else name

    @cached_property
    def frames(self) -> dict[int, CanaryFrame | None]:
        """The tokens around each canary, by the canary's index in the plan."""
        planting, models = self.inputs.planting, self.models
        if planting is None:
            return {}
        return {
            self.run.secret_index(canary.id): canary_frame(
                canary, planting.candidates, models.tokenizer, both_sides=models.masked
            )
            for canary in planting.canaries
        }

    @property
    def canary_prior(self) -> float:
        """The prior of a canary for a model that is asked to produce it; 0 without canaries."""
        planting, models = self.inputs.planting, self.models
        if planting is None:
            return 0.0
        candidates = planting.candidates
        if not models.masked:
            return candidates.prefix_prior(models.fold)
        more = max((frame.more for frame in self.frames.values() if frame is not None), default=0)
        return candidates.masked_prior(models.fold, more=more)

    def check_reference(self, p_value: float, *, smallest: float) -> None:
        """Refuse a reference that knows the canaries: they were drawn at random, so it must have been trained on them.

        p_value: the probability that a model which never saw the canaries knows as much of them. smallest: the same
        for a model that knows everything. Where even that is not rare enough the check has no power, and a notice
        says so.
        """
        no_power = (
            "with so few canaries or candidates it cannot be checked whether the reference was trained on them: if it "
            "was, what both models memorised passes for known anyway; plant more"
        )
        if smallest > MAX_FALSE_REFUSAL and no_power not in self.notices:
            self.notices.append(no_power)
        if p_value <= MAX_FALSE_REFUSAL:
            raise InvalidInput(
                "the reference knows the canaries, which were drawn at random: it was trained on them too, so what "
                "both models memorised would pass for known anyway; pass a model that never saw the data as ",
                Setting("reference"),
            )

    def step_progress(self, step: str) -> Progress:
        """The progress callback of one step."""
        return lambda done, total: self.progress(step, done, total)

    def journal(self, name: str, settings: Sequence[object], content: Iterable[bytes | str] = ()) -> "Journal":
        """The finished records of a step with these settings, on this model and plan."""
        plan = self.run.plan
        public = [self.run.digest, *plan.certificate.fingerprints.values(), *(one.digest for one in self.run.earlier)]
        numbers = [plan.rounds, plan.noise_multiplier, plan.noise_scale, self.settings.seed, *settings]
        return self.folder.journal(name, [name, *public, repr(numbers), *content])

    def note_skipped_prompts(self, prompts: Sequence[int]) -> None:
        """Add a notice about requested prompt lengths that no text is long enough for."""
        skipped = [str(length) for length in self.settings.prompts if length not in prompts]
        instead = [counted(length, "token") for length in prompts if length not in self.settings.prompts]
        notice = f"no text is long enough for prompts of {', '.join(skipped)} tokens; they were skipped"
        notice += f", and {', '.join(instead)} tried instead" if instead else ""
        if skipped and notice not in self.notices:
            self.notices.append(notice)


def _is_masked(subject: Subject) -> bool:
    return default_loss(subject.model) is masked_lm_loss


# The folder of an audit.


def check_audit_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but an audit."""
    if not folder.exists():
        return
    owner = folder / "owner"
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else {"a file"}
    is_audit = owner.is_dir() and ((names == {"owner"} and not any(owner.iterdir())) or (owner / "audit.key").is_file())
    if names - {"owner", *REPORT_FILES} or (names and not is_audit):
        raise InvalidInput(f"{folder} holds something other than an audit; pass a new folder as ", Setting("output"))


@final
class AuditFolder:
    """The folder of an audit; a later audit with the same inputs resumes from it."""

    def __init__(self, folder: str | Path) -> None:
        self.root = Path(folder)
        check_audit_folder(self.root)
        self.owner = self.root / "owner"
        self.owner.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = DataKey.load_or_create(self.owner / "audit.key")

    def journal(self, name: str, inputs: Iterable[str | bytes]) -> "Journal":
        """The journal of a step with exactly these inputs."""
        return Journal(self.owner / f"{name}.jsonl", self._key.fingerprint_rows(inputs), self._key)

    def write(self, record: Record, text: str, details: Record) -> None:
        """Write the report; each file appears complete or not at all."""
        contents = {
            self.root / "audit.json": json.dumps(record, indent=2, allow_nan=False) + "\n",
            self.root / "audit.md": text,
            self.owner / "details.json": json.dumps(details, indent=1, allow_nan=False) + "\n",
        }
        for path, content in contents.items():
            with whole_file(path, owner_only=True) as file:
                file.write(content.encode())


@final
class Journal:
    """Finished records of a step as JSON lines, after a line that names their inputs; other inputs start it anew."""

    def __init__(self, path: Path, inputs: str, key: DataKey) -> None:
        self._path, self._inputs, self._key = path, inputs, key
        self.records: list[Record] = []
        for position, record in enumerate(_read_records(path, inputs)):
            checksum = record.pop("check", None)
            if checksum != self._checksum(position, record):
                break
            self.records.append(record)
        with whole_file(path, owner_only=True) as file:  # drops the incomplete line that a kill may have left
            file.write(json.dumps({"inputs": inputs}).encode() + b"\n")
            for position, record in enumerate(self.records):
                file.write(self._line(position, record).encode())

    def append(self, record: Record) -> None:
        """Append a record; after a kill it is either complete or ignored."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(self._line(len(self.records), record))
        self.records.append(record)

    def _line(self, position: int, record: Record) -> str:
        return json.dumps({**record, "check": self._checksum(position, record)}) + "\n"

    def _checksum(self, position: int, record: Record) -> str:
        return self._key.fingerprint_rows([self._inputs, str(position), json.dumps(record)])


def _read_records(path: Path, inputs: str) -> list[Record]:
    if not path.is_file():
        return []
    records: list[Record] = []
    for line in path.read_bytes().split(b"\n")[:-1]:  # what follows the last line break is incomplete
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict):
            break
        records.append(record)
    return records[1:] if records and records[0] == {"inputs": inputs} else []


def read_named_run(folder: str | Path) -> NamedRun:
    """The naming result of a finished audit, to be counted together with other runs."""
    path = Path(folder) / "audit.json"
    try:
        record: Any = read_json(path)
        named = NamedRun(**record["naming"])
        _check_named_run(named)
    except (ValueError, TypeError, KeyError):
        raise InvalidInput(
            f"{path} is not an audit in which a canary was attacked by naming it; audit that run with ",
            Setting("canaries"),
        ) from None
    return named


def _check_named_run(named: NamedRun) -> None:
    """Refuse a record that no audit writes: an edited one must not be counted."""
    probabilities = [named.prior] if named.certified is None else [named.prior, named.certified]
    if not all(isinstance(text, str) and text for text in (named.model, named.planting)):
        raise ValueError
    if type(named.hit) is not bool or type(named.told) is not bool or named.hit > named.told:
        raise ValueError
    if not all(isinstance(value, int | float) and 0 < value <= 1 for value in probabilities):
        raise ValueError
    if named.prior > probabilities[-1]:
        raise ValueError
