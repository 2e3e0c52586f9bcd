"""An audit under way: what is attacked, with what, how hard, where finished pieces are kept, and who is told.

The folder of an audit: finished pieces of work, which are never done again, and at the end the report.

audit.json, audit.md   the result: counts and numbers, no text. Readable by its owner alone until the owner shares it
owner/                 pieces of each attack as lines of JSON; details.json: secret by secret; audit.key

A piece belongs to its inputs (model, plan, settings, and for data its tokens), of which a keyed fingerprint is kept.
Each carries a keyed check of itself and its place: from the first that was changed or doubled, work is done again.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, final

from hush.audit.canaries import Planting
from hush.audit.exposure import Frame, frame_of
from hush.audit.folders import CANARIES, AuditedRun, Places
from hush.audit.models import Subject, load_subject
from hush.audit.sequences import Progress
from hush.audit.settings import AuditSettings
from hush.audit.verdict import NamedRun
from hush.data import Corpus
from hush.errors import InvalidInput
from hush.keys import DataKey
from hush.numbers import counted
from hush.storage import folder_digest, read_json, whole_file
from hush.train.fit import usable_device
from hush.train.language_models import default_loss, masked_lm_loss
from hush.train.pretrained import MOST_TOKENS

__all__ = [
    "AuditFolder",
    "AuditInputs",
    "Models",
    "Pieces",
    "Told",
    "Work",
    "check_folder",
    "read_named_run",
]


Record = dict[str, Any]
REPORT = ("audit.json", "audit.md")


def check_folder(folder: Path) -> None:
    """Refuse a place that holds anything but an audit."""
    if not folder.exists():
        return
    owner = folder / "owner"
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else {"a file"}
    begun = owner.is_dir() and ((names == {"owner"} and not any(owner.iterdir())) or (owner / "audit.key").is_file())
    if names - {"owner", *REPORT} or (names and not begun):
        raise InvalidInput(f"{folder} holds something other than an audit; name a new folder")


@final
class AuditFolder:
    """Where an audit is kept; a later one with the same inputs goes on from there."""

    def __init__(self, folder: str | Path) -> None:
        self.root = Path(folder)
        check_folder(self.root)
        self.owner = self.root / "owner"
        self.owner.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = DataKey.load_or_create(self.owner / "audit.key")

    def pieces(self, name: str, inputs: Iterable[str | bytes]) -> "Pieces":
        """What is done of an attack with exactly these inputs."""
        return Pieces(self.owner / f"{name}.jsonl", self._key.fingerprint_rows(inputs), self._key)

    def write(self, record: Record, text: str, details: Record) -> None:
        """Write the report, each file whole."""
        contents = {
            self.root / "audit.json": json.dumps(record, indent=2, allow_nan=False) + "\n",
            self.root / "audit.md": text,
            self.owner / "details.json": json.dumps(details, indent=1, allow_nan=False) + "\n",
        }
        for path, content in contents.items():
            with whole_file(path, owner_only=True) as file:
                file.write(content.encode())


def read_named_run(folder: str | Path) -> NamedRun:
    """What naming came to in an audit that is finished, to be counted with other runs."""
    path = Path(folder) / "audit.json"
    try:
        record: Any = read_json(path)
        named = NamedRun(**record["naming"])
        _check_named(named)
    except (ValueError, TypeError, KeyError):
        raise InvalidInput(f"{path} is no audit in which a canary was to be named; audit with --canaries") from None
    return named


def _check_named(named: NamedRun) -> None:
    """A count of an edited report would be no count: every field is what an audit writes."""
    chances = [named.prior] if named.certified is None else [named.prior, named.certified]
    if not all(isinstance(one, str) and one for one in (named.model, named.planting)):
        raise ValueError
    if type(named.hit) is not bool or type(named.told) is not bool or named.hit > named.told:
        raise ValueError
    if not all(isinstance(one, int | float) and 0 < one <= 1 for one in chances) or named.prior > chances[-1]:
        raise ValueError


@final
class Pieces:
    """Lines of JSON after one that names their inputs; those of other inputs are dropped."""

    def __init__(self, path: Path, inputs: str, key: DataKey) -> None:
        self._path, self._inputs, self._key = path, inputs, key
        self.done: list[Record] = []
        for place, record in enumerate(_read(path, inputs)):
            check = record.pop("check", None)
            if check != self._check(place, record):
                break
            self.done.append(record)
        with whole_file(path, owner_only=True) as file:  # without the half line that a kill may have left
            file.write(json.dumps({"inputs": inputs}).encode() + b"\n")
            for place, record in enumerate(self.done):
                file.write(self._line(place, record).encode())

    def add(self, record: Record) -> None:
        """Keep a piece; after a kill it is there, or it was not done."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(self._line(len(self.done), record))
        self.done.append(record)

    def _line(self, place: int, record: Record) -> str:
        return json.dumps({**record, "check": self._check(place, record)}) + "\n"

    def _check(self, place: int, record: Record) -> str:
        return self._key.fingerprint_rows([self._inputs, str(place), json.dumps(record)])


def _read(path: Path, inputs: str) -> list[Record]:
    if not path.is_file():
        return []
    found: list[Record] = []
    for line in path.read_bytes().split(b"\n")[:-1]:  # what follows the last line break was not finished
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict):
            break
        found.append(record)
    return found[1:] if found and found[0] == {"inputs": inputs} else []


NEVER = 1e-4  # a reference that never saw the canaries is refused with this probability at most, in each attack

Told = Callable[[str, int, int], None]
"""Told what is being done, how much of it is finished, and how much there is."""


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AuditInputs:
    """What there is to attack with. reference: a model with the same tokenizer that never saw the data.

    earlier: what naming came to in independent runs that were audited before (``read_named_run``). compared: whether
    the corpus is known to be the plan's, under the owner's key; if not, the report says so.
    """

    corpus: Corpus | None = None
    places: Places | None = None
    planting: Planting | None = None
    reference: str | None = None
    held_out: Corpus | None = None
    earlier: tuple[NamedRun, ...] = ()
    compared: bool = False

    def __post_init__(self) -> None:
        if self.planting is None and self.places is not None and CANARIES in self.places.classes.values():
            raise InvalidInput(
                "there are places of canaries, but nothing says what else they may be, on which their prior depends; "
                "pass their planting too"
            )


@final
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Models:
    """The model under audit and the reference; max_length: tokens to which texts are cut, as for training."""

    subject: Subject
    reference: Subject | None
    tokenizer: Any
    masked: bool
    max_length: int

    def fold(self, text: str) -> str:
        """What the tokenizer tells apart: some make letters small, or take their accents off, before they begin."""
        normalizer = getattr(getattr(self.tokenizer, "backend_tokenizer", None), "normalizer", None)
        return text if normalizer is None else normalizer.normalize_str(text)


@final
@dataclass(kw_only=True, repr=False)
class Work:
    """One audit under way. notices: what its reader has to know besides numbers."""

    run: AuditedRun
    inputs: AuditInputs
    settings: AuditSettings
    folder: AuditFolder
    told: Told
    notices: list[str] = field(default_factory=list)

    @cached_property
    def models(self) -> Models:
        """Loaded when first asked for: the attack on the mechanism needs none."""
        self.told("Loading the model", 0, 1)
        device = usable_device(self.settings.device)
        subject, tokenizer = load_subject(str(self.run.model), device=device)
        named = self.inputs.reference
        asked = self.settings.max_length or self.run.max_length
        room = min(subject.room, int(min(tokenizer.model_max_length, 10**9)))
        masked = _is_masked(subject)
        return Models(
            subject=subject,
            reference=None if named is None else self._reference(named, tokenizer, masked=masked),
            tokenizer=tokenizer,
            masked=masked,
            max_length=min(MOST_TOKENS, room) if asked is None else min(asked, room),
        )

    def _reference(self, named: str, tokenizer: Any, *, masked: bool) -> Subject:
        """A model that never saw the data: what it says too is held against nobody, so it must not be the same one."""
        if self.reference_id == self.run.digest:
            raise InvalidInput(
                "the reference is the model under audit: whatever it learnt would pass for known anyway; pass one that "
                "never saw the data, such as the one that training began with"
            )
        reference, own = load_subject(named, device=usable_device(self.settings.device))
        if own.get_vocab() != tokenizer.get_vocab():
            raise InvalidInput(
                f"the reference has another tokenizer, of {len(own)} tokens and not these {len(tokenizer)}; pass a "
                "model with the same one"
            )
        if _is_masked(reference) != masked:  # training may have made another use of it than its configuration says
            reference, _ = load_subject(
                named, task="masked" if masked else "causal", device=usable_device(self.settings.device)
            )
        return reference

    @cached_property
    def reference_id(self) -> str | None:
        """What the reference is: the digest of its folder, or its name."""
        named = self.inputs.reference
        return folder_digest(Path(named)) if named is not None and Path(named).is_dir() else named

    @cached_property
    def frames(self) -> dict[int, Frame | None]:
        """What stands around each canary, by its number in the plan."""
        planting, models = self.inputs.planting, self.models
        if planting is None:
            return {}
        return {
            self.run.secret(one.id): frame_of(one, planting.candidates, models.tokenizer, both_sides=models.masked)
            for one in planting.canaries
        }

    @property
    def canary_prior(self) -> float:
        """Of a canary, for a model that is asked to say it; 0 without canaries."""
        planting, models = self.inputs.planting, self.models
        if planting is None:
            return 0.0
        known = planting.candidates
        if not models.masked:
            return known.spoken_prior(models.fold)
        more = max((frame.more for frame in self.frames.values() if frame is not None), default=0)
        return known.masked_prior(models.fold, more=more)

    def refuse_reference(self, chance: float, *, least: float) -> None:
        """chance: that a model knows so much of the canaries which never saw them; they were drawn at random.

        least: that it knows all there is to know. Where that is not rare enough, nobody can tell, and the reader is
        told.
        """
        said = (
            "with so few canaries or candidates nobody can tell whether the reference was trained on them: if it was, "
            "what both models learnt passes for known anyway; plant more"
        )
        if least > NEVER and said not in self.notices:
            self.notices.append(said)
        if chance <= NEVER:
            raise InvalidInput(
                "the reference knows the canaries, which were drawn at random: it was trained on them too, and what "
                "both models learnt would pass for known anyway; pass one that never saw the data"
            )

    def bar(self, what: str) -> Progress:
        """Progress of one step."""
        return lambda done, total: self.told(what, done, total)

    def pieces(self, name: str, settings: Sequence[object], content: Iterable[bytes | str] = ()) -> Pieces:
        """What is done already of a step with these settings, on this model and plan."""
        plan = self.run.plan
        public = [self.run.digest, *plan.certificate.fingerprints.values()]
        numbers = [plan.rounds, plan.noise_multiplier, plan.noise_scale, self.settings.seed, *settings]
        return self.folder.pieces(name, [name, *public, repr(numbers), *content])

    def say_left_out(self, prompts: Sequence[int]) -> None:
        """Prompts that no text has room for are said, never dropped in silence."""
        missing = [str(one) for one in self.settings.prompts if one not in prompts]
        instead = [counted(one, "token") for one in prompts if one not in self.settings.prompts]
        said = f"no text has room for prompts of {', '.join(missing)} tokens; they were left out"
        said += f", and {', '.join(instead)} tried instead" if instead else ""
        if missing and said not in self.notices:
            self.notices.append(said)


def _is_masked(subject: Subject) -> bool:
    return default_loss(subject.model) is masked_lm_loss
