"""Each setting is stated once: the config's section is the stage's model, the command line states the same."""

import inspect
import json
import pickle
from enum import EnumType
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from annotated_types import Ge, Le
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from command_line import refused
from hush.audit.settings import AuditSettings, CanarySettings
from hush.cli import app
from hush.cli.options import option_of, settings_from
from hush.errors import InvalidInput
from hush.plan import make_plan
from hush.plan.settings import PlanSettings, SeriesSettings
from hush.rehearse.settings import RehearsalSettings
from hush.report.settings import ReportSettings
from hush.run.config import Config, config_key
from hush.run.sections import AuditSection, DataSection, TrainingSection
from hush.settings import Settings
from hush.train.settings import Learning, Lora, PublicPart, Recipe, Runtime

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]

# What each command states settings of, and the section of a config that states the same.
DOORS: dict[str, tuple[type[Settings], type[Settings]]] = {
    "plan": (PlanSettings, PlanSettings),
    "train": (TrainingSection, TrainingSection),
    "audit": (AuditSettings, AuditSection),
    "canaries": (CanarySettings, CanarySettings),
    "report": (ReportSettings, ReportSettings),
    "rehearse": (RehearsalSettings, RehearsalSettings),
    "scan": (DataSection, DataSection),
}

# Settings without an option, with the reason.
NO_OPTION = {
    "audit": {"seed": "for tests alone", "canaries": "hush canaries plants them; --canaries names their folder"},
    "train": {
        "public": "its weight and batch have options",
        "lora": "a flag, and options of its own",
        "metric": "a word, and options of its own",
        "private_part": "hush train is for the rounds; hush run knows whether they can teach anything",
    },
    "scan": {"source": "the argument DATA, which may be a path that is not Unicode"},
}

# Options without a setting, with the reason. Those that say what to read and where to write are in FILES.
FILES = {
    "output",
    "data",
    "source",
    "key",
    "column",
    "unit",
    "incidence",
    "secrets",
    "scan",
    "spans",
    "canaries",
    "plan",
    "ledger",  # of the section releases, which states the folder
}
PRINTED = {"json", "quiet", "verbose", "debug", "top", "force", "help"}
NO_SETTING = {
    "plan": {
        "prior",
        "ceiling",  # promises: the rules of a config state them
        "model",  # a section of its own
        *("series", "growth", "filter_share"),  # settings of a chain: a section of their own
        *("after", "ancestors"),  # a run knows its earlier releases, and which secrets were merged
    },
    "train": {
        "lora",  # whether there are adapters: a config states their settings, or none
        "metric",  # likewise
        "model",  # a section of its own
        "resume",  # a run of a config always resumes
        "unchecked_data",  # a config always checks its data
        "insecure_seed",  # for tests; certifies nothing
    },
    "audit": {"run", "add", "earlier", "reference", "held_out"},
    "canaries": {"from_data", "candidates", "again"},  # instead of templates, of alphabet and length, of all
    "report": {"frontier", "audit"},  # files of earlier commands, which a run makes by itself
    "rehearse": {
        *("config", "write"),  # the file that states the settings, and one to write
        *("workers", "ray_address"),  # of the machines that rehearse, not of the training
    },
    "scan": {
        *("rules", "html", "engine", "ray_address", "show_text"),  # a run scans on this machine
        *("model", "max_length"),  # the sections model and training of a config
    },
}

# Defaults that differ between the command and the config, with the reason.
OTHER_DEFAULT = {
    ("plan", "hold_out"): "a plan may be used with any trainer; hush run evaluates by itself",
    ("report", "frontier"): "the command is given a file",
    ("report", "methods"): "the command decides by the number of secrets",
    ("scan", "workers"): "the command decides by the engine",
    **{
        ("rehearse", setting): "an option that is not given leaves what the config says"
        for setting in RehearsalSettings.model_fields
    },
    ("report", "title"): "none stated on the command line: settings_from leaves the setting's default",
}


def flat(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Settings of a model, those of nested ones as outer.inner."""
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        found[prefix + name] = field
        kinds = (field.annotation, *get_args(field.annotation))
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= flat(kind, f"{prefix}{name}.")
    return found


def parameters(command: str) -> dict[str, Any]:
    return {one.name: one for one in COMMANDS[command].params}


@pytest.mark.parametrize("command", DOORS)
def test_every_setting_of_a_stage_has_an_option_and_the_config_states_it_too(command: str) -> None:
    stage, section = DOORS[command]
    options = parameters(command)
    without = NO_OPTION.get(command, {})
    for setting in flat(stage):
        if setting in without or setting.split(".")[0] in {"canaries"}:
            continue
        assert option_of(setting, options) is not None, f"hush {command} has no option for {setting}"
    assert set(stage.model_fields) - {"seed"} <= set(section.model_fields)


@pytest.mark.parametrize("command", DOORS)
def test_every_option_states_a_setting_or_is_listed(command: str) -> None:
    options = parameters(command)
    stated = {option_of(setting, options) for setting in flat(DOORS[command][1])}
    stray = options.keys() - stated - FILES - PRINTED - NO_SETTING.get(command, set())
    assert not stray, f"hush {command} has options that no config states; add them there, or list them here"


@pytest.mark.parametrize("command", DOORS)
def test_options_have_the_defaults_choices_and_limits_of_their_settings(command: str) -> None:
    options = parameters(command)
    for setting, field in flat(DOORS[command][0]).items():
        name = option_of(setting, options)
        if name is None or setting in NO_OPTION.get(command, {}):
            continue
        option = options[name]
        if field.is_required() or (command, setting) in OTHER_DEFAULT:
            continue
        default, stated = option.default, field.default
        if isinstance(default, list | tuple):
            default = tuple(getattr(one, "value", one) for one in default) or None
        default = getattr(default, "value", default)
        filled = {"alphabet", "length"} if command == "canaries" else set()
        assert default == stated or (setting in filled and default is None), (setting, default, stated)
        note, kinds = declared(command, name)
        for limit, marks in ((note.min, (Ge, "ge")), (note.max, (Le, "le"))):
            if limit is not None:
                stated_limits = [getattr(mark, marks[1]) for mark in limits(field) if isinstance(mark, marks[0])]
                assert stated_limits[-1:] == [limit], (setting, limit)
        choices: list[Any] = [kind for kind in kinds if isinstance(kind, EnumType)]
        if choices:
            assert {member.value for member in choices[0]} == words(field.annotation), setting


def declared(command: str, name: str) -> tuple[Any, list[Any]]:
    """An option as its command declares it: what typer is told, and the types inside."""
    functions = {one.callback.__name__: one.callback for one in app.registered_commands if one.callback is not None}
    annotation = inspect.signature(functions[command]).parameters[name].annotation
    kind, note = get_args(annotation)[:2]
    return note, [kind, *parts(kind)]


def parts(kind: Any) -> list[Any]:
    return [each for part in get_args(kind) for each in (part, *parts(part))]


def words(annotation: Any) -> set[str]:
    return {part for part in parts(annotation) if isinstance(part, str)}


def limits(field: FieldInfo) -> list[Any]:
    """Limits of the innermost type first, then those of the field."""
    notes = [part for part in parts(field.annotation) if hasattr(part, "metadata")]
    return [mark for note in (*notes, field) for mark in note.metadata]


def test_arguments_of_make_plan_are_the_settings_of_a_plan() -> None:
    arguments = inspect.signature(make_plan).parameters
    for name, field in PlanSettings.model_fields.items():
        if name == "hold_out":  # make_plan_holding_out is given the very examples
            continue
        assert name in arguments
        if not field.is_required() and name != "keep":  # None in the model: no share was asked for
            assert arguments[name].default == field.default, name


def test_what_a_training_keeps_and_what_only_changes_its_speed_are_the_section_training() -> None:
    of_the_run = {"private_part"}  # whether they are trained at all
    assert set(TrainingSection.model_fields) == set(Learning.model_fields) | set(Runtime.model_fields) | of_the_run
    assert not set(Learning.model_fields) & set(Runtime.model_fields)
    section = TrainingSection(learning_rate=1e-3, lora=Lora(rank=2), micro_batch=7)
    assert section.recipe("gpt2") == Recipe(model="gpt2", learning_rate=1e-3, lora=Lora(rank=2))
    assert section.runtime == Runtime(micro_batch=7)


def test_every_setting_of_a_section_has_a_key_of_the_config() -> None:
    sections = {"data": DataSection, "plan": PlanSettings, "training": TrainingSection, "report": ReportSettings}
    sections["rehearsal"] = RehearsalSettings
    for section, model in sections.items():
        for setting in flat(model):
            assert config_key(setting) == f"{section}.{setting}"
    assert config_key("insecure_seed") is None


def test_a_config_names_a_wrong_setting_by_its_key() -> None:
    content = {
        "data": {"source": "imdb"},
        "rules": [{"name": "words", "find": "words", "documents": [50, 100]}],
        "promises": {"prior": 1e-10, "ceiling": 1e-3},
        "model": {"name": "gpt2"},
    }
    with pytest.raises(InvalidInput, match=r"plan\.batch_size is -1"):
        Config.of({**content, "plan": {"batch_size": -1, "rounds": 5}})


@pytest.mark.parametrize(
    ("make", "setting", "message"),
    [
        (lambda: Recipe(model="m", learning_rate=-1), "learning_rate", "learning_rate=-1; pass a number above 0"),
        (lambda: Recipe(model="m", lora={"rank": 0}), "lora.rank", "lora.rank=0; pass a whole number of at least 1"),  # type: ignore[arg-type]
        (lambda: Recipe(model="m", optimizer="adam"), "optimizer", "optimizer='adam'; pass 'adamw' or 'sgd'"),  # type: ignore[arg-type]
        (lambda: Recipe(model="m", public={"weight": 1}), "public.batch", "public.batch: pass the number of examples"),  # type: ignore[arg-type]
        (lambda: AuditSettings(prompts=()), "prompts", "prompts: pass a list of numbers"),
        (lambda: PlanSettings(batch_size=True, rounds=1), "batch_size", "batch_size=True; pass the expected"),
        (lambda: Runtime(speed=3), "speed", "speed: Runtime has no such setting"),  # type: ignore[call-arg]
    ],
)
def test_python_gets_an_error_that_names_the_setting_and_what_it_takes(make: Any, setting: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        make()
    assert caught.value.setting == setting
    assert str(caught.value).startswith(message)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@given(
    st.builds(Lora, rank=st.integers(1, 64), alpha=st.floats(0.1, 100)) | st.none(),
    st.builds(PublicPart, weight=st.floats(0.1, 2), batch=st.integers(1, 99)) | st.none(),
    st.integers(0, 9),
)
def test_a_recipe_is_its_dump(lora: Lora | None, public: PublicPart | None, warmup: int) -> None:
    recipe = Recipe(model="m", lora=lora, public=public, warmup=warmup)
    assert Recipe.from_record(recipe.model_dump(mode="json")) == recipe


def test_an_option_that_is_not_given_leaves_the_default_of_its_setting() -> None:
    options = {"title": None, "compare": None, "frontier": "a file", "show_text": True}
    assert settings_from(ReportSettings, options, frontier=True) == ReportSettings(show_text=True)
    with pytest.raises(InvalidInput, match="ceiling: pass the ceiling of each canary"):
        settings_from(CanarySettings, {"ceiling": None})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("plan GRAPH --batch-size 0 --rounds 1 --output new", "--batch-size=0.0; pass the expected number"),
        ("frontier GRAPH --batch-size 0 --rounds 1", "--batch-size=0.0; pass the expected number"),
        ("frontier GRAPH --batch-size 1 --rounds 0", "--rounds=0; pass the number of training rounds"),
        ("train my-plan --model m --data d --lora --lora-dropout 1", "--lora-dropout=1.0; pass a number from 0"),
        ("audit run --level 0.7", "--level=0.7; pass a probability of error"),
        ("canaries d --from-data --output new --ceiling 0.5 --length 300", "--length=300; pass the number of char"),
        ("canaries d --from-data --output new --ceiling 2", "--ceiling=2.0; pass the ceiling of each canary"),
        ("report my-plan --output new.html --title=", "--title: pass a title"),
    ],
)
def test_every_command_refuses_a_wrong_setting_in_the_words_of_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = {"num_examples": 2, "num_secrets": 1, "pairs": [[0, 0]], "prior": 0.1, "ceiling": 0.2}
    Path("GRAPH").write_text(json.dumps(graph))
    assert message in refused(2, *words.split())


def test_options_of_a_chain_have_the_defaults_and_limits_of_its_settings() -> None:
    options = parameters("plan")
    assert options["growth"].default == SeriesSettings(count=2).growth
    assert options["series"].default is options["filter_share"].default is None  # no chain
    for words, message in (
        ("--series 1", "--series=1; pass the number of releases"),
        ("--series 2 --growth 0.5", "--growth=0.5; pass a factor"),
        ("--filter-share 2", "--filter-share=2.0; pass a share"),
        ("--growth 2", "--growth is how much a series may grow"),
    ):
        assert message in refused(2, *f"plan GRAPH --batch-size 1 --rounds 1 --output new {words}".split())
