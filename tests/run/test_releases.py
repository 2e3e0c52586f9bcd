"""A run as a release of a chain: the ledger, what a new release asks for, and what is refused."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import CANARIES, NO_CANARIES, check_whole, small_config, small_texts

import hush
from hush.audit.canaries import read_canaries
from hush.data.corpus import read_corpus
from hush.errors import InvalidInput
from hush.ledger import Ledger
from hush.plan import Plan
from hush.run import run_pipeline
from hush.run.forecast import dry_run
from hush.run.job import Watch
from hush.run.pipeline import planned_run
from hush.run.stage_train import Interrupted
from hush.secret_table import Secrets
from hush.storage import read_json

SERIES = {"ledger": "ledger", "series": {"count": 3, "growth": 2.0}}
FILTER = {"ledger": "ledger", "filter": {"share": 0.3}}
NEW_MONTH = ["fine QX-1001 again", "new weather QX-7777", "cold in town"]


def chained(desk: Path, *, releases: dict[str, Any] = SERIES, **sections: Any) -> Any:
    """A config whose runs are releases of a chain, without an audit."""
    content: dict[str, Any] = {"data": {"key": None}, "plan": {"keep": 0.5}, "releases": releases, "audit": None}
    for name, section in sections.items():
        content[name] = content[name] | section if isinstance(content.get(name), dict) else section
    return small_config(desk, **content)


def run(desk: Path, output: str = "run", *, new_release: bool = False, notices: Any = None, **sections: Any) -> Any:
    watch = Watch(notice=notices.append) if notices is not None else None
    return run_pipeline(chained(desk, **sections), output=desk / output, new_release=new_release, watch=watch)


def next_month(desk: Path, more: list[str] = NEW_MONTH) -> None:
    data = desk / "data.txt"
    data.write_text(data.read_text() + "\n".join(more) + "\n")


def ledger_of(desk: Path) -> Ledger:
    return Ledger.load(desk / "ledger")


STAGES = [name for name in NO_CANARIES if name != "audit"]


@pytest.fixture(scope="module")
def first_month(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A desk with one release; never changed."""
    desk = tmp_path_factory.mktemp("months")
    assert list(run(desk).ran) == STAGES
    return desk


@pytest.fixture
def desk(first_month: Path, tmp_path: Path) -> Path:
    """The same to change. The training's folder is at another place now, as after a move: the old one is gone."""
    shutil.copytree(first_month, tmp_path / "desk")
    entry = tmp_path / "desk" / "ledger" / "releases" / "0001" / "entry.json"
    entry.write_text(entry.read_text().replace(str(first_month), str(tmp_path / "desk")))
    return tmp_path / "desk"


def test_a_first_release_is_entered_and_running_again_does_nothing(desk: Path) -> None:
    assert [(entry.number, entry.state) for entry in ledger_of(desk).entries] == [(1, "released")]
    assert run(desk).ran == ()
    assert run(desk, new_release=True).ran == ()  # nothing changed, so nothing is trained
    assert len(ledger_of(desk).entries) == 1
    assert (desk / "ledger" / "data.key").is_file()
    assert not (desk / "run" / "owner" / "data.key").exists()
    assert hush.verify(desk / "run" / "release").passed


def test_a_new_month_in_the_same_folder_is_planned_after_the_first(desk: Path) -> None:
    next_month(desk)
    with pytest.raises(InvalidInput, match=r"another release.*new_release"):
        run(desk)
    assert len(ledger_of(desk).entries) == 1
    assert list(run(desk, new_release=True).ran) == ["plan", "train", "report"]
    ledger = ledger_of(desk)
    assert [entry.state for entry in ledger.entries] == ["released", "released"]
    first, second = (ledger.plan(entry) for entry in ledger.entries)
    shared = set(first.secret_ids) & set(second.secret_ids)
    assert len(shared) == 3
    assert len(second.secret_ids) == 4
    release = desk / "run" / "release"
    assert [path.name for path in sorted((release / "earlier").iterdir())] == ["0001"]
    assert hush.verify(release).passed
    check_whole(desk / "run")
    assert "Release 2 of 3" in (release / "report.html").read_text()
    assert "Release 2 of 3" in (desk / "run" / "owner" / "report.html").read_text()
    assert 'id="plot-left"' in (desk / "run" / "owner" / "report.html").read_text()
    shutil.rmtree(release / "earlier")
    assert not hush.verify(release).passed  # a link is missing
    assert run(desk).ran == ()


def test_undoing_a_change_keeps_the_release_that_is_there(desk: Path) -> None:
    before = (desk / "data.txt").read_text()
    next_month(desk)
    with pytest.raises(InvalidInput, match="Undo the change"):
        run(desk)
    (desk / "data.txt").write_text(before)
    assert "train" not in run(desk).ran
    assert len(ledger_of(desk).entries) == 1


def test_a_new_folder_takes_key_ids_and_predecessors_from_the_ledger(desk: Path) -> None:
    next_month(desk)
    with pytest.raises(InvalidInput, match="has 1 release, and this would be another one"):
        run(desk, "second")
    assert list(run(desk, "second", new_release=True).ran) == STAGES
    assert run(desk, "second").ran == ()
    known, now = (
        dict(zip(Secrets.from_parquet(path).ids, Secrets.from_parquet(path).ids, strict=True))
        for path in (desk / name / "owner" / "scan" / "public" / "secrets.parquet" for name in ("run", "second"))
    )
    assert known.keys() < now.keys()
    assert [path.name for path in (desk / "second" / "release" / "earlier").iterdir()] == ["0001"]
    assert hush.verify(desk / "second" / "release").passed
    assert hush.verify(desk / "run" / "release").passed  # the first release stays what it was


def test_a_secret_keeps_its_id_when_rows_are_added_changed_deleted_and_moved(desk: Path) -> None:
    def ids(run_folder: str) -> dict[str, str]:
        owner = desk / run_folder / "owner" / "scan"
        secrets = Secrets.from_parquet(
            owner / "public" / "secrets.parquet", texts_path=owner / "owner" / "texts.parquet"
        )
        assert secrets.texts is not None
        return dict(zip(secrets.texts, secrets.ids, strict=True))

    texts = [text for text in small_texts() if "QX-1002" not in text]
    texts = ["QX-0001 is first", *reversed(texts), "and QX-1001 is here too"]
    texts[5] += " changed"
    (desk / "data.txt").write_text("\n".join(texts) + "\n")
    notices: list[str] = []
    run(desk, "second", new_release=True, notices=notices)
    before, after = ids("run"), ids("second")
    assert before.keys() - after.keys() == {"QX-1002"}
    assert all(after[text] == name for text, name in before.items() if text in after)
    assert after["QX-0001"] not in before.values()
    assert not any("not found any more" in notice for notice in notices)  # its rows are gone with it


def test_the_announced_number_is_the_end_of_a_series(desk: Path) -> None:
    for number in (2, 3):
        next_month(desk, [f"month {number}"])
        run(desk, f"month-{number}", new_release=True)
    next_month(desk, ["month 4"])
    with pytest.raises(InvalidInput, match="all 3 announced releases"):
        run(desk, "month-4", new_release=True)
    assert len(ledger_of(desk).entries) == 3


def test_other_settings_are_another_release_and_so_is_training_again(desk: Path) -> None:
    with pytest.raises(InvalidInput, match="new_release"):
        run(desk, training={"learning_rate": 0.01})
    assert "train" in run(desk, training={"learning_rate": 0.01}, new_release=True).ran
    assert len(ledger_of(desk).entries) == 2
    config = chained(desk, training={"learning_rate": 0.01})
    with pytest.raises(InvalidInput, match="new_release"):
        run_pipeline(config, output=desk / "run", since="train")
    run_pipeline(config, output=desk / "run", since="train", new_release=True)
    plans = [entry.plan for entry in ledger_of(desk).entries]
    assert len(set(plans)) == 3  # no plan is trained twice


def test_a_stopped_training_goes_on_and_nothing_else_begins_beside_it(desk: Path) -> None:
    next_month(desk)
    rounds: list[int] = []

    def stopped(folder: str) -> None:
        from contextlib import nullcontext

        watch = Watch(live=lambda live: rounds.append(live.round), stoppable=lambda: nullcontext(lambda: True))
        run_pipeline(chained(desk), output=desk / folder, new_release=True, watch=watch)

    with pytest.raises(Interrupted):
        stopped("second")
    entry = ledger_of(desk).entries[-1]
    assert (entry.number, entry.state, entry.rounds, rounds) == (2, "started", True, [1])
    with pytest.raises(InvalidInput, match=r"release 2 .* is not finished"):
        run(desk, "third", new_release=True)
    assert "train" in run(desk, "second").ran  # without being asked again
    assert [entry.state for entry in ledger_of(desk).entries] == ["released", "released"]


def test_a_training_whose_folder_is_gone_counts_and_is_not_made_again(desk: Path) -> None:
    next_month(desk)
    run(desk, new_release=True)
    (training,) = (
        path
        for path in (desk / "run" / "owner" / "training").iterdir()
        if path.name in ledger_of(desk).entries[1].training
    )
    shutil.rmtree(training)
    with pytest.raises(InvalidInput, match="whose record is gone"):
        run(desk)
    run(desk, "second", new_release=True)
    assert len(ledger_of(desk).entries) == 3


def test_a_folder_trained_before_there_was_a_ledger_is_refused(tmp_path: Path) -> None:
    content = {"audit": None, "plan": {"keep": 0.5}}
    run_pipeline(small_config(tmp_path, **content), output=tmp_path / "run")
    key: dict[str, Any] = {"data": {"key": "my.key"}}
    with pytest.raises(InvalidInput, match=r"the ledger .* never saw"):
        run(tmp_path, new_release=True, **key)
    assert run(tmp_path, "fresh", **key).folder == tmp_path / "fresh"


def test_another_key_and_a_ledger_inside_data_or_run_are_refused(desk: Path) -> None:
    with pytest.raises(InvalidInput, match="under the key"):
        run(desk, "second", data={"key": "my.key"})
    for place in ("run/owner/ledger", "second/ledger"):
        (desk / "second").mkdir(exist_ok=True)
        with pytest.raises(InvalidInput, match="lies inside the folder of the run"):
            run(desk, place.split("/")[0], releases=SERIES | {"ledger": place})


def test_a_secret_that_an_earlier_release_learnt_in_the_clear_is_refused_or_stated(desk: Path) -> None:
    wider = {"rules": [{"name": "codes", "find": "patterns", "patterns": [r"QX-\d{4}", r"\bwet\b"]}]}
    wider |= {"plan": {"keep": 0.2}}  # the new secret is in many rows
    with pytest.raises(InvalidInput, match=r"1 secret \(codes-000003\) stood, unprotected, in \d+ rows of release 1"):
        run(desk, "second", new_release=True, **wider)
    assert len(ledger_of(desk).entries) == 1
    notices: list[str] = []
    stated = {"releases": SERIES | {"uncovered": "state"}, **wider}
    outcome = run(desk, "second", new_release=True, notices=notices, **stated)
    assert any("codes-000003" in notice and "unprotected" in notice for notice in notices)
    assert "codes-000003" in outcome.outputs["plan"]["history"][0]
    plan = Plan.load(desk / "second" / "release" / "plan")
    assert plan.chain is not None
    assert plan.chain.uncovered == ("codes-000003",)
    assert "1 secret was not protected in some examples" in (desk / "second/release/certificate.md").read_text()
    own, shared = (desk / "second" / name / "report.html" for name in ("owner", "release"))
    assert "stood, unprotected, in" in own.read_text()
    assert "stood, unprotected, in" not in shared.read_text()


def test_a_secret_that_a_rule_no_longer_finds_in_old_rows_is_told(desk: Path) -> None:
    narrower = {"rules": [{"name": "codes", "find": "patterns", "patterns": [r"QX-100[01]"]}]}
    notices: list[str] = []
    run(desk, "second", new_release=True, notices=notices, **narrower)
    (told,) = [notice for notice in notices if "not found any more" in notice]
    assert "1 secret" in told
    assert "1 row of release 1 (1 with no secret at all now)" in told


def test_the_next_release_may_be_planned_without_being_entered(desk: Path) -> None:
    next_month(desk)
    with planned_run(chained(desk), output=desk / "second") as job:
        chain = Plan.load(job.paths.plan).chain
    assert chain is not None
    assert chain.number == 2
    assert len(ledger_of(desk).entries) == 1


def test_a_filter_takes_releases_as_they_come(tmp_path: Path) -> None:
    run(tmp_path, releases=FILTER)
    next_month(tmp_path)
    run(tmp_path, releases=FILTER, new_release=True)
    assert hush.verify(tmp_path / "run" / "release").passed
    plan = Plan.load(tmp_path / "run" / "release" / "plan")
    assert plan.chain is not None
    assert plan.chain.number == 2


def test_a_dry_run_says_what_is_left_and_what_would_be_refused(desk: Path, tmp_path: Path) -> None:
    config = chained(desk)
    shown = dry_run(config, output=desk / "run")
    assert shown.releases is not None
    assert (shown.releases["begun"], shown.releases["count"]) == (1, 3)
    assert {stage.state for stage in shown.stages} == {"done"}
    next_month(desk)
    states = {stage.stage: stage.state for stage in dry_run(config, output=desk / "run").stages}
    assert states["plan"] == states["train"] == "depends, refused"
    with pytest.raises(InvalidInput, match="another one"):
        dry_run(config, output=desk / "second")
    allowed = dry_run(config, output=desk / "second", new_release=True)
    assert {stage.state for stage in allowed.stages} == {"runs"}
    assert not (desk / "second").exists()
    fresh = dry_run(chained(tmp_path / "fresh"), output=tmp_path / "fresh" / "run").releases
    assert fresh is not None
    assert fresh["begun"] == 0


def test_the_canaries_of_a_chain_are_the_same_in_every_release(tmp_path: Path) -> None:
    audit = {"attacks": ["mechanism", "exposure"], "trials": 500, "candidates": 20, "canaries": CANARIES}
    run(tmp_path, audit=audit)
    next_month(tmp_path)
    run(tmp_path, "second", audit=audit, new_release=True)
    first, second = (read_canaries(tmp_path / name / "owner" / "canaries") for name in ("run", "second"))
    assert first.id == second.id
    texts = []
    for name, planted in (("run", first), ("second", second)):
        rows = [*read_corpus(tmp_path / name / "owner" / "canaries" / "owner" / "data.parquet").texts()]
        texts.append([rows[example] for canary in planted.canaries for example in canary.examples])
    assert texts[0] == texts[1]
    assert len(texts[0]) == CANARIES["count"]  # pyright: ignore[reportArgumentType]
    plans = [ledger_of(tmp_path).plan(entry) for entry in ledger_of(tmp_path).entries]
    assert all({"canary-000000", "canary-000001"} <= set(plan.secret_ids) for plan in plans)
    audited = [read_json(tmp_path / name / "owner" / "audit" / "audit.json") for name in ("run", "second")]
    assert [record["chain"]["number"] for record in audited] == [1, 2]
    assert [record["exposure"]["releases"] for record in audited] == [1, 2]
    both = [row for row in audited[1]["rows"] if row["releases"] == 2]
    assert {row["attack"] for row in both} == {"mechanism", "naming"}  # the models and mechanisms of both together
    more = audit | {"canaries": CANARIES | {"count": 3}}
    with pytest.raises(InvalidInput, match="the same canaries"):
        run(tmp_path, "third", audit=more, new_release=True)


def test_a_run_without_releases_is_as_it_always_was(tmp_path: Path) -> None:
    run_pipeline(small_config(tmp_path, audit=None), output=tmp_path / "run")
    plan = Plan.load(tmp_path / "run" / "owner" / "plan")
    assert plan.chain is None
    assert not (tmp_path / "run" / "release" / "earlier").exists()
    assert "releases" not in read_json(tmp_path / "run" / "stages.json")
    assert np.all(plan.posterior <= plan.ceiling)
