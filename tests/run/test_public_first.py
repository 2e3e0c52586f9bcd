"""A run learns what is public first, by default where there is enough of it, and says what that reached."""

import json
import random
from pathlib import Path

import pytest
import yaml
from small_runs import SECRETS, WORDS, small_config

import hush
from hush.certificate import Certificate
from hush.errors import InvalidInput
from hush.run import run_pipeline
from hush.run.config import Config, template
from hush.run.forecast import forecast
from hush.storage import read_json
from hush.train.scores import LOSS_BEFORE, StageLosses
from hush.train.settings import PublicFirst

pytestmark = pytest.mark.usefixtures("warm_public_process")

SMALL = {"small": {"layers": 1, "width": 32, "heads": 2, "length": 48}}


def notes(folder: Path, *, free: int, secret: int = 12) -> None:
    """Notes about the weather, the first ones with a secret."""
    rng = random.Random(0)
    lines = [" ".join(rng.choices(WORDS, k=6)) for _ in range(free + secret)]
    for number in range(secret):
        lines[number] += f" {SECRETS[number % 3]}"
    (folder / "data.txt").write_text("\n".join(lines) + "\n")


def losses_of(run: Path) -> StageLosses:
    rows = [json.loads(line) for line in (run / "release" / "evaluations.jsonl").read_text().splitlines()]
    losses = StageLosses.of(rows)
    assert losses is not None
    return losses


def test_the_template_ends_at_least_as_good_as_ordinary_training_on_what_is_public(tmp_path: Path) -> None:
    """With whole examples as secrets, of which the template would otherwise drown all in noise."""
    notes(tmp_path, free=500)
    content = yaml.safe_load(template("text"))
    content["data"]["source"] = "data.txt"
    content["rules"] = [
        {"name": "codes", "find": "patterns", "patterns": [r"QX-\d{4}"], "promise": {"prior": 1e-6, "ceiling": 1e-2}}
    ]
    content["plan"] |= {"batch_size": 8, "rounds": 20}
    content["model"] = SMALL
    content["training"] = {"device": "cpu", "public_first": {"epochs": 6, "learning_rate": 3e-3}}
    content.pop("audit", None)
    content.pop("chunks")  # so that examples are texts
    outcome = run_pipeline(Config.of(content, folder=tmp_path), output=tmp_path / "run")
    losses = losses_of(tmp_path / "run")
    assert losses.public is not None
    assert losses.public < 0.5 * losses.before
    assert losses.private is not None
    assert losses.private < 1.02 * losses.public
    assert StageLosses(**outcome.outputs["train"]["losses"]) == losses

    plan = hush.Plan.load(tmp_path / "run" / "owner" / "plan")
    assert plan.draws_secrets_only
    certificate = Certificate.from_dict(read_json(tmp_path / "run" / "release" / "certificate.json"))
    assert certificate.public_part == {"examples": 475, "skeletons": 0}
    assert hush.verify(tmp_path / "run" / "release").passed
    for report in ("release", "owner"):
        page = (tmp_path / "run" / report / "report.html").read_text()
        assert "What was learnt" in page
        assert f"{losses.before:.3f}" in page
        assert LOSS_BEFORE not in page


def drawn_by(folder: Path, **sections: object) -> hush.Plan:
    """The plan of a run that stops before training."""

    def stop_at_training(stage: str, state: str) -> None:
        if stage == "train" and state == "begins":
            raise KeyboardInterrupt

    from hush.run.job import Watch

    with pytest.raises(KeyboardInterrupt):
        run_pipeline(small_config(folder, **sections), output=folder / "run", watch=Watch(stage=stop_at_training))
    return hush.Plan.load(folder / "run" / "owner" / "plan")


@pytest.mark.parametrize(
    ("free", "sections", "secrets_only"),
    [
        (140, {}, True),
        (60, {}, False),  # too little that is public
        (60, {"training": {"public_first": True}}, True),
        (140, {"training": {"public_first": False}}, False),
        (140, {"plan": {"draw": "all"}}, False),
        (60, {"plan": {"draw": "secrets"}}, True),
        (140, {"plan": {"batch_size": 20}}, False),  # more than there are with a secret
    ],
)
def test_only_secrets_are_drawn_where_the_rest_is_learnt_first(
    tmp_path: Path, free: int, sections: dict[str, object], secrets_only: bool
) -> None:
    small_config(tmp_path)  # makes the key
    notes(tmp_path, free=free)
    assert drawn_by(tmp_path, **sections).draws_secrets_only == secrets_only


def test_a_plan_changes_with_the_draw_and_not_with_settings_of_the_public_part(tmp_path: Path) -> None:
    from hush.run.job import RunJob
    from hush.run.stage_plan import PlanStage

    def settings(**sections: object) -> object:
        config = small_config(tmp_path, **sections)
        return PlanStage().settings(RunJob(config=config, paths=None, key=None, record=None))  # pyright: ignore[reportArgumentType]

    usual = settings()
    assert isinstance(usual, dict)
    assert "draw" not in usual  # a finished run of 0.1.0 stays finished
    assert settings(training={"public_first": {"epochs": 3}}) == usual
    assert settings(training={"public_first": False}) != usual
    assert settings(plan={"draw": "secrets"}) != usual


def test_a_dry_run_counts_the_passes_over_public_examples(tmp_path: Path) -> None:
    small_config(tmp_path)
    notes(tmp_path, free=140)
    drawn_by(tmp_path)

    def size(**training: object) -> str:
        config = small_config(tmp_path, training=training)
        return next(row.size for row in forecast(config, output=tmp_path / "run") if row.stage == "train")

    assert "after at most 20 passes over 140 public examples" in size()
    assert "after at most 3 passes" in size(public_first={"epochs": 3})
    assert "passes" not in size(public_first=False)


@pytest.mark.parametrize("value", ["maybe", 3, {"epochs": 0}, {"passes": 2}])
def test_settings_that_nobody_can_mean_are_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(InvalidInput, match="public_first"):
        small_config(tmp_path, training={"public_first": value})


def test_its_settings_can_be_stated(tmp_path: Path) -> None:
    config = small_config(tmp_path, training={"public_first": {"epochs": 3, "patience": 2}})
    assert config.training.public_first == PublicFirst(epochs=3, patience=2)
