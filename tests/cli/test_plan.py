"""The planning commands say what the library says, teach when they fail, and leave nothing half done."""

import csv
import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hush
from command_line import refused, run, run_json
from hush.keys import DataKey
from hush.plan import noise_without_forcing
from hush.plan.make import held_out_examples
from limits import no_file_above

SIZES = [3, 25, 30, 1, 12]
PROMISE = ["--prior", "1e-8", "--ceiling", "1e-3"]
RUN = ["--batch-size", "10", "--rounds", "50"]


def incidence() -> hush.Incidence:
    rng = np.random.default_rng(5)
    example = np.concatenate([rng.choice(80, size, replace=False) for size in SIZES])
    secret = np.repeat(np.arange(len(SIZES)), SIZES)
    return hush.Incidence.from_pairs(example, secret, num_examples=80, num_secrets=len(SIZES))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "graph.parquet"
    incidence().to_parquet(path)
    return path


@pytest.fixture(scope="module")
def folder(graph: Path) -> Path:
    output = graph.parent / "plan"
    assert run("plan", graph, *PROMISE, *RUN, "--capacity", "none", "--output", output).exit_code == 0
    return output


def test_plan_writes_the_librarys_plan_and_says_what_it_is(graph: Path, tmp_path: Path) -> None:
    record = run_json("plan", graph, *PROMISE, *RUN, "--keep", 0.8, "--output", tmp_path / "plan")
    plan = hush.Plan.load(tmp_path / "plan")
    arguments: Any = {"prior": 1e-8, "ceiling": 1e-3, "batch_size": 10, "rounds": 50}
    expected = hush.make_plan(incidence(), **arguments, keep=0.8)
    assert np.array_equal(plan.weights, expected.weights)
    assert record["noise_multiplier"] == plan.noise_multiplier == expected.noise_multiplier
    assert record["kept_fraction"] == plan.kept_fraction
    assert record["total_weight"] == plan.total_weight
    assert {row["id"] for row in record["binding"]} == {plan.secret_ids[secret] for secret in plan.binding}
    assert Path(record["certificate"]).read_text() == plan.certificate.to_markdown()
    assert (record["forcing"] is None) == (noise_without_forcing(plan) is None)


def test_the_table_shows_noise_data_binding_secrets_and_what_relaxing_would_buy(graph: Path, tmp_path: Path) -> None:
    command = ["plan", graph, *PROMISE, *RUN, "--capacity", "none", "--output", tmp_path / "plan", "--force"]
    record = run_json(*command)
    shown = " ".join(run(*command).stdout.split())
    for words in ("noise multiplier", "100.0 % of 80", "effective size 80", "Binding secrets: 1", "certificate.md"):
        assert words in shown
    assert f"{record['forcing']['id']} alone forces this noise" in shown
    assert record["forcing"]["noise_without"] < record["noise_multiplier"]
    assert "Binding" not in run(*command, "--top", 0).stdout


def test_ids_points_and_options_reach_the_plan(graph: Path, tmp_path: Path) -> None:
    secrets = hush.Secrets([hush.Protection.of((1e-8, 1e-3), (1e-3, 0.3))] * 5, ids=[f"[red]{i}" for i in range(5)])
    secrets.to_parquet(tmp_path / "secrets.parquet")
    options = [
        "--capacity",
        "paper",
        "--strength",
        500,
        "--bound",
        "renyi",
        "--clip-norm",
        0.5,
        "--noise-multiplier",
        40,
    ]
    command = ["plan", graph, "--secrets", tmp_path / "secrets.parquet", *RUN, *options, "--output", tmp_path / "plan"]
    assert run(*command).exit_code == 0
    plan = hush.Plan.load(tmp_path / "plan")
    assert plan.secret_ids == secrets.ids
    assert plan.prior.shape == (5, 2)
    assert (plan.capacity, plan.bound, plan.clip_norm, plan.noise_multiplier) == ("paper", "renyi", 0.5, 40)


def test_examples_without_secrets_are_held_out_if_asked_for(graph: Path, tmp_path: Path) -> None:
    command = ["plan", graph, *PROMISE, *RUN, "--capacity", "none", "--output", tmp_path / "plan"]
    run_json(*command, "--hold-out", 0.5)
    free = np.flatnonzero(incidence().secrets_per_example == 0)
    held = held_out_examples(hush.Plan.load(tmp_path / "plan"))
    assert set(held.tolist()) <= set(free.tolist())
    assert len(held) == len(free) // 2 > 0
    run_json(*command, "--force")
    assert held_out_examples(hush.Plan.load(tmp_path / "plan")).size == 0
    assert (
        "--hold-out=0.9; pass the share of the examples without secrets to evaluate on, from 0 for none to 0.5"
        in refused(2, *command, "--force", "--hold-out", 0.9)
    )


def test_a_plan_is_tied_to_its_data_under_a_key_made_on_first_use(graph: Path, tmp_path: Path) -> None:
    texts = [f"example {index}, the vault code is QX-7401" for index in range(80)]
    data, key = tmp_path / "data.jsonl", tmp_path / "my.key"
    data.write_text("".join(json.dumps({"id": str(i), "body": text}) + "\n" for i, text in enumerate(texts)))
    command = ["plan", graph, *PROMISE, *RUN, "--capacity", "none", "--data", data, "--column", "body", "--key", key]
    record = run_json(*command, "--output", tmp_path / "plan")
    plan = hush.Plan.load(tmp_path / "plan")
    made = key.read_bytes()
    assert plan.data_fingerprint == DataKey.load(key).fingerprint_rows(texts)
    assert record["fingerprints"]["data (keyed)"] == plan.data_fingerprint
    assert run("verify", tmp_path / "plan").exit_code == 0
    assert run(*command, "--output", tmp_path / "again").exit_code == 0
    assert key.read_bytes() == made
    assert hush.Plan.load(tmp_path / "again").data_fingerprint == plan.data_fingerprint
    for file in (tmp_path / "plan").iterdir():
        assert b"QX-7401" not in file.read_bytes()
        assert hashlib.sha256("".join(texts).encode()).hexdigest().encode() not in file.read_bytes()


def test_data_without_a_key_and_data_of_another_length_are_refused(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("one\ntwo\n")
    command = ["plan", graph, *PROMISE, *RUN, "--output", tmp_path / "plan"]
    data = ["--data", tmp_path / "data.txt"]
    assert "may only hold a keyed fingerprint" in refused(2, *command, *data)
    key = ["--key", tmp_path / "my.key"]
    assert "has 2 rows, but the incidence has 80 examples" in refused(2, *command, *data, *key)
    assert "--key needs --data; pass --data, or drop --key" in refused(2, *command, *key)
    assert [path.name for path in tmp_path.iterdir()] == ["data.txt"]


def test_a_key_that_would_be_read_as_data_is_refused(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("one\n" * 80)
    data = ["--data", tmp_path, "--unit", "line", "--key", tmp_path / "key.txt"]
    assert "lies inside the data" in refused(
        2, "plan", graph, *PROMISE, *RUN, "--output", tmp_path.with_name("p"), *data
    )
    assert [path.name for path in tmp_path.iterdir()] == ["data.txt"]


def test_no_plan_ends_with_1_and_leaves_nothing(graph: Path, tmp_path: Path) -> None:
    command = ["plan", graph, *PROMISE, "--rounds", 50, "--output", tmp_path / "plan"]
    message = refused(1, *command, "--batch-size", 60, "--noise-multiplier", 0.5)
    assert "raise it to at least" in message
    assert "lower --batch-size to at most" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--batch-size", 10], "states no rounds; pass --rounds"),
        (["--batch-size", 0, "--rounds", 5], "--batch-size=0.0; pass"),
        (["--batch-size", "nan", "--rounds", 5], "--batch-size=nan; pass"),
        (["--batch-size", 81, "--rounds", 5], "--batch-size=81 is more than the 80 examples; lower it"),
        ([*RUN, "--capacity", "paper"], "--strength and --capacity paper need each other"),
        ([*RUN, "--capacity", "best"], "'best' is not one of"),
        ([*RUN, "--keep", 0.5, "--noise-multiplier", 3], "--keep computes the noise"),
        ([*RUN, "--keep", 2], "keep=2.0; pass the share"),
        (["--rounds", 5], "Missing option '--batch-size'"),
    ],
)
def test_bad_questions_end_with_2(graph: Path, tmp_path: Path, arguments: list[object], words: str) -> None:
    assert words in refused(2, "plan", graph, *PROMISE, *arguments, "--output", tmp_path / "plan")
    assert list(tmp_path.iterdir()) == []


def test_a_batch_of_more_than_is_not_held_out_is_refused_and_says_so(graph: Path, tmp_path: Path) -> None:
    bare = int(np.count_nonzero(incidence().secrets_per_example == 0))
    command = ["plan", graph, *PROMISE, "--rounds", 5, "--batch-size", 80, "--hold-out", 0.5]
    said = refused(2, *command, "--output", tmp_path / "plan")
    assert f"more than the {80 - bare // 2} examples that are not held out, of 80; lower it" in said
    assert "--batch-size=81 is more than" in refused(2, "frontier", graph, *PROMISE, "--rounds", 5, "--batch-size", 81)


def test_a_promise_that_leaves_no_room_is_refused_with_the_ids_of_its_secrets(graph: Path, tmp_path: Path) -> None:
    protections = [hush.Protection(0.01, 0.05)] * len(SIZES)
    protections[3] = hush.Protection(0.01, 0.01)
    ids = [f"client-{number}" for number in range(len(SIZES))]
    hush.Secrets(protections, ids=ids).to_parquet(tmp_path / "secrets.parquet")
    for command in (["plan", "--output", tmp_path / "plan"], ["frontier"], ["calibrate"]):
        said = refused(1, command[0], graph, "--secrets", tmp_path / "secrets.parquet", *RUN, *command[1:])
        assert "client-3 has prior = ceiling" in said


def test_a_full_disk_leaves_nothing_and_says_what_to_do(graph: Path, tmp_path: Path) -> None:
    with no_file_above(64):
        said = refused(2, "plan", graph, *PROMISE, *RUN, "--capacity", "none", "--output", tmp_path / "plan")
    assert "free some space, then run the same command again" in said
    assert not list(tmp_path.iterdir())


def test_a_folder_with_other_files_is_refused_before_any_work(graph: Path) -> None:
    assert "name a new folder" in refused(2, "plan", graph, *PROMISE, *RUN, "--output", graph.parent)


def test_frontier_says_which_settings_leave_no_plan(tmp_path: Path) -> None:
    graph = hush.Incidence.from_pairs(range(40), [0] * 40, num_examples=40, num_secrets=1)  # nothing else to train on
    graph.to_parquet(tmp_path / "graph.parquet")
    command = ["frontier", tmp_path / "graph.parquet", *PROMISE, *RUN, "--setting", 500, "--setting", 0.1]
    assert run_json(*command)["settings_without_plan"] == [0.1]
    assert "Omitted, because no plan with this batch size exists: 0.1." in run(*command).stdout
    assert run_json(*command[:-2])["settings_without_plan"] == []
    assert "Left out" not in run(*command[:-2]).stdout


def test_a_folder_in_place_of_a_graph_is_answered_with_the_file_in_it(graph: Path, tmp_path: Path) -> None:
    for command in (["plan", "--output", tmp_path / "plan"], ["frontier"], ["calibrate"]):
        said = refused(2, command[0], tmp_path, *PROMISE, *RUN, *command[1:])
        assert f"{tmp_path} is a folder; pass a file, such as public/incidence.parquet of a scan" in said
    (tmp_path / "public").mkdir()
    file = shutil.copy(graph, tmp_path / "public" / "incidence.parquet")
    assert f"is a folder; pass {file}" in refused(2, "calibrate", tmp_path, *PROMISE, *RUN)


def test_frontier_shows_and_writes_the_librarys_rows(graph: Path, tmp_path: Path) -> None:
    command = ["frontier", graph, *PROMISE, *RUN, "--setting", 6, "--setting", 4]
    record = run_json(*command, "--output", tmp_path / "rows.json", "--plot", tmp_path / "plot.svg")
    expected = hush.frontier(incidence(), prior=1e-8, ceiling=1e-3, batch_size=10, rounds=50, settings=[6, 4])
    assert [row["noise_multiplier"] for row in record["rows"]] == [row.noise_multiplier for row in expected.rows]
    assert [row["default"] for row in record["rows"]] == [row is expected.best for row in expected.rows]
    assert json.loads((tmp_path / "rows.json").read_text()) == record
    assert "<svg" in (tmp_path / "plot.svg").read_text()
    result = run(*command, "--output", tmp_path / "rows.csv", "--plot", tmp_path / "plot.html")
    assert "* the row with the least noise" in result.stdout
    rows = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert [float(row["kept_weight"]) for row in rows] == [row.kept_weight for row in expected.rows]


def test_all_capacities_are_compared_in_one_picture_that_asks_no_server(graph: Path, tmp_path: Path) -> None:
    command = ["frontier", graph, *PROMISE, *RUN, "--capacity", "all"]
    record = run_json(*command, "--plot", tmp_path / "plot.html")
    kinds = {(row["capacity"], row["bound"]) for row in record["rows"]}
    assert kinds == {("accounted", "blowup"), ("paper", "blowup"), ("paper", "kl")}
    assert record["rows"][0]["setting"] is None
    page = (tmp_path / "plot.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert not re.search(r"(src|href)=\"http|@import|url\(http", page)
    assert run("frontier", graph, *PROMISE, *RUN, "--capacity", "none", "--plot", tmp_path / "p.png").exit_code == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--plot", "x.gif"], "pass a name that ends in .png or .svg or .html"),
        (["--output", "x.txt"], "pass a name that ends in .json or .csv"),
        (["--plot", "/no/such/x.png"], "in an existing folder"),
        (["--setting", "x"], "--setting"),
        (["--setting", "0"], "finite number above 0"),
        (["--capacity", "all", "--setting", "3"], "drop --setting"),
    ],
)
def test_bad_sweeps_end_with_2(graph: Path, arguments: list[str], words: str) -> None:
    assert words in refused(2, "frontier", graph, *PROMISE, *RUN, *arguments)


def test_verify_shows_every_check_and_ends_with_0(folder: Path, graph: Path) -> None:
    shown = run("verify", folder, "--incidence", graph)
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    names = ["plan.json", "files", "graph", "rates", "certificate", "posteriors", "binding"]
    assert [line.split(":")[0] for line in lines[: len(names)]] == [f"✓ {name}" for name in names]
    record = run_json("verify", folder)
    assert record["passed"]
    assert record["certifies"]
    assert (record["release"], record["unchecked"]) == (None, [])
    assert record["fingerprints"]["incidence"] == incidence().fingerprint
    prints = [f"  fingerprint of the {name}: {value}" for name, value in record["fingerprints"].items()]
    of_graph = [line for line in record["unproven"] if line.startswith("incidence.parquet")]
    assert of_graph
    unproven = [f"  Not proven: {line}" for line in record["unproven"] if line not in of_graph]  # it was given
    assert lines[len(names) :] == [*prints, *unproven, "Every promise holds."]


def test_verify_ends_with_1_on_any_failure_and_names_it(graph: Path, tmp_path: Path) -> None:
    folder = tmp_path / "plan"
    hush.make_plan(incidence(), prior=1e-8, ceiling=1e-3, batch_size=10, rounds=50, capacity="none").save(folder)
    page = folder / "certificate.md"
    page.write_text(page.read_text() + "Trust me.")
    shown = run("verify", folder)
    assert shown.exit_code == 1
    assert "✗ files: changed after the plan was written: ['certificate.md']" in shown.stdout
    assert "do not rely on its certificate" in shown.stdout
    record = run_json("verify", folder, code=1)
    assert not record["passed"]
    assert {check["name"] for check in record["checks"] if not check["passed"]} == {"files", "certificate"}
    (folder / "plan.json").unlink()
    assert run("verify", folder).exit_code == 1
    assert "is not a folder" in refused(2, "verify", tmp_path / "missing")


def test_a_simulation_verifies_but_certifies_nothing(tmp_path: Path) -> None:
    arguments: Any = {"prior": 1e-8, "ceiling": 1e-3, "batch_size": 10, "rounds": 50, "capacity": "none"}
    hush.make_plan(incidence(), **arguments, noise_scale=0.5).save(tmp_path / "plan")
    assert "certifies nothing" in run("verify", tmp_path / "plan").stdout
    assert not run_json("verify", tmp_path / "plan")["certifies"]


def test_keys_are_made_plans_signed_and_signatures_checked(folder: Path, tmp_path: Path) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    assert "Keep" in run("sign", "--new-key", private, public).stdout
    assert private.stat().st_mode & 0o077 == 0
    assert run("verify", folder, "--public-key", public).exit_code == 1
    assert "plan.sig" in run("sign", folder, "--private-key", private).stdout
    assert (
        "✓ signature: valid for this key; it covers the plan, and no model"
        in run("verify", folder, "--public-key", public).stdout
    )
    assert "pass --public-key to check by whom" in run("verify", folder).stdout
    assert "keys are never overwritten" in refused(2, "sign", "--new-key", private, public)
    assert "is not a PEM public key" in refused(2, "verify", folder, "--public-key", folder / "plan.json")
    assert "pass PLAN|RUN with --private-key" in refused(2, "sign", folder)
    assert "pass PLAN|RUN with --private-key" in refused(2, "sign")
    (folder / "plan.sig").unlink()


def test_a_plan_inside_a_run_is_signed_where_it_lies_and_what_is_none_is_named(folder: Path, tmp_path: Path) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    run("sign", "--new-key", private, public)
    for place in ("run/release/plan", "run-of-0.1.0/share/plan"):
        shutil.copytree(folder, tmp_path / place)
        whole = tmp_path / place.split("/")[0]
        record = run_json("sign", whole, "--private-key", private)
        assert record["signature"] == str(tmp_path / place / "plan.sig")
        assert run("verify", whole, "--public-key", public).exit_code == 0
        assert f"{tmp_path / place} is already signed" in refused(2, "sign", whole, "--private-key", private)
    (tmp_path / "empty").mkdir()
    assert "is no plan" in refused(2, "sign", tmp_path / "empty", "--private-key", private)
    assert "is not a folder" in refused(2, "sign", tmp_path / "missing", "--private-key", private)


AUTO = ["--batch-size", "auto", "--rounds", "auto", "--keep", "auto"]


def test_numbers_that_hush_chooses_are_printed_recorded_and_the_librarys(graph: Path, tmp_path: Path) -> None:
    record = run_json("plan", graph, *PROMISE, *AUTO, "--output", tmp_path / "plan")
    plan = hush.Plan.load(tmp_path / "plan")
    numbers: Any = {"batch_size": "auto", "rounds": "auto", "keep": "auto"}
    expected = hush.make_plan(incidence(), prior=1e-8, ceiling=1e-3, **numbers)
    assert (plan.batch_size, plan.rounds) == (expected.batch_size, expected.rounds)
    assert np.array_equal(plan.weights, expected.weights)
    assert record["auto"] == {"batch_size": plan.batch_size, "rounds": plan.rounds, "keep": record["kept_weight"]}
    shown = " ".join(run("plan", graph, *PROMISE, *AUTO, "--output", tmp_path / "plan", "--force").stdout.split())
    assert f"Chosen automatically: batch size {plan.batch_size:g}, {plan.rounds} rounds" in shown
    stated = run_json("plan", graph, *PROMISE, *RUN, "--output", tmp_path / "stated")
    assert stated["auto"] == {}
    wrong = ["--batch-size", "many", "--rounds", 5, "--output", tmp_path / "x"]
    assert "'many' is neither a number nor auto" in refused(2, "plan", graph, *PROMISE, *wrong)


def test_a_plan_says_its_signal_and_what_is_left_without_one(graph: Path, tmp_path: Path) -> None:
    command = ["plan", graph, *PROMISE, *RUN, "--output", tmp_path / "plan", "--force"]
    outlook = run_json(*command)["outlook"]
    plan = hush.Plan.load(tmp_path / "plan")
    bearing = plan.incidence.secrets_per_example > 0
    signal = plan.rates[bearing].sum() * plan.rounds**0.5 / plan.noise_multiplier
    assert outlook["signal"] == pytest.approx(signal)
    assert outlook["prediction"] is None
    free = int((~bearing).sum())
    (dropping,) = outlook["without_noise"]
    assert (dropping["method"], dropping["examples"], dropping["noise_multiplier"]) == ("dropping", free, 0)
    shown = " ".join(run(*command).stdout.split())
    assert f"dropping instead, without noise, leaves {free} examples" in shown
    assert "a forecast, not a bound" in shown
    hopeless = run_json(*command, "--model", "7e9")["outlook"]
    assert hopeless["prediction"]["ceiling"] == pytest.approx(signal / 7e9**0.5)
    assert hopeless["hopeless"]
    assert len(hopeless["remedies"]) >= 3
    assert "Hopeless: the expected signal is well below the noise" in run(*command, "--model", "7e9").stdout
    assert "--model=0; pass a model, or its number" in refused(2, *command, "--model", 0)
    assert "--model=./none is not a folder" in refused(2, *command, "--model", "./none")


def test_a_plan_with_data_says_how_much_text_is_left(graph: Path, tmp_path: Path) -> None:
    texts = ["x" * (5 + number) for number in range(80)]
    (tmp_path / "data.txt").write_text("\n".join(texts) + "\n")
    command = ["plan", graph, *PROMISE, *RUN, "--data", tmp_path / "data.txt", "--key", tmp_path / "my.key"]
    (dropping,) = run_json(*command, "--output", tmp_path / "plan")["outlook"]["without_noise"]
    free = np.flatnonzero(incidence().secrets_per_example == 0)
    assert dropping["text_share"] == pytest.approx(sum(5 + int(i) for i in free) / sum(map(len, texts)))


def test_frontier_compares_batches_and_rounds_and_marks_the_elbow(graph: Path, tmp_path: Path) -> None:
    sizes = ["--batch-size", 1, "--batch-size", 20, "--rounds", 50, "--rounds", 100]
    command = ["frontier", graph, *PROMISE, *sizes, "--capacity", "none"]
    record = run_json(*command)
    pairs = [(row["rounds"], row["batch_size"]) for row in record["rows"]]
    assert pairs == [(50, 1), (50, 20), (100, 1), (100, 20)]
    arguments: Any = {"prior": 1e-8, "ceiling": 1e-3, "capacity": "none"}
    expected = hush.frontiers(incidence(), batch_size=[1, 20], rounds=[50, 100], **arguments)
    assert [row["signal"] for row in record["rows"]] == [made.rows[0].signal for made in expected]
    assert [row["elbow"] for row in record["rows"]] == [made.rows[0].elbow for made in expected]
    assert [row["method"] for row in record["without_noise"]] == ["dropping"]
    shown = run(*command, "--plot", tmp_path / "f.svg", "--output", tmp_path / "f.csv").stdout
    assert shown.count("beyond the elbow") == 3  # the note, and a batch of 20 at both rounds
    assert shown.count("dropping") == 5  # in each table, and in the one that compares them
    assert "elbow, beyond which a larger batch buys nothing" in (tmp_path / "f.svg").read_text()
    with (tmp_path / "f.csv").open() as file:
        assert [float(row["batch_size"]) for row in csv.DictReader(file)] == [1, 20, 1, 20]
