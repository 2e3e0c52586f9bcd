"""``hush plan``, ``hush frontier`` and ``hush verify`` take the slots beside a graph, and say what is secret."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import hush
from command_line import refused, run, run_json
from hush.keys import DataKey
from hush.plan.make import choose_held_out, held_out_examples
from hush.scan.result import FORMAT
from hush.slots import Slots, Spans, save_spans, slots_of_spans
from hush.storage import file_digest, record_digest

PROMISE = ["--prior", "1e-4", "--ceiling", "0.1", "--rounds", "20"]
TEXTS = [f"Ann met {'Bob' if n % 3 else 'nobody'} on day {n}." for n in range(40)]


def spans_of_texts() -> tuple[hush.Incidence, Spans]:
    """Ann is a span of the first 10 texts; Bob, in some of the first 30, is one in texts that also hold Ann."""
    pairs = [(n, 0) for n in range(10)] + [(n, 1) for n in range(30) if n % 3]
    example, secret = np.array(pairs).T
    graph = hush.Incidence.from_pairs(example, secret, num_examples=40, num_secrets=2)
    begin = np.where(secret == 0, 0, 8)
    shown = example < 10
    spans = slots_of_spans(
        graph, ["names"], example=example[shown], begin=begin[shown], end=begin[shown] + 3,
        rule=np.zeros(shown.sum(), dtype=int), secret=secret[shown],
    )  # fmt: skip
    return graph, spans


@pytest.fixture
def found(tmp_path: Path) -> Path:
    """The folder of canaries planted after a scan: as a scan, without a summary."""
    graph, spans = spans_of_texts()
    for side in ("public", "owner"):
        (tmp_path / "found" / side).mkdir(parents=True)
    graph.to_parquet(tmp_path / "found" / "public" / "incidence.parquet")
    save_spans(spans, tmp_path / "found")
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return tmp_path / "found"


def summarise(found: Path, **stated: object) -> None:
    public = found / "public"
    names = [path.name for path in public.iterdir() if path.suffix == ".parquet"]
    record = {"format": FORMAT, "data_fingerprint": None, **stated}
    record |= {"digests": {name: file_digest(public / name) for name in names}}
    record |= {"digest": record_digest(record)}
    (public / "summary.json").write_text(json.dumps(record))


def test_a_plan_takes_the_slots_beside_its_graph_and_says_what_is_secret(found: Path, tmp_path: Path) -> None:
    graph, spans = spans_of_texts()
    path, output = found / "public" / "incidence.parquet", tmp_path / "plan"
    command = ["plan", path, *PROMISE, "--batch-size", 4, "--hold-out", 0.3, "--output", output]
    record = run_json(*command)
    plan = hush.Plan.load(output)
    assert plan.slots == spans.slots
    np.testing.assert_array_equal(held_out_examples(plan), choose_held_out(graph, 0.3))
    bearing = int((graph.secrets_per_example > 0).sum())
    assert record["scope"] == dict(plan.certificate.scope or {})
    assert record["num_drawable"] == bearing
    shown = " ".join(run(*command, "--force").stdout.split())
    for words in (
        f"of the {bearing} with a secret",
        f"16 slots in 10 examples, {bearing - 10} whole examples",
        "1 in slots, 0 as whole examples, 1 both",
        f"10 skeletons, {40 - bearing - held_out_examples(plan).size} examples without a secret",
    ):
        assert words in shown
    said = run("verify", output, "--incidence", path)
    assert said.exit_code == 0
    assert "✓ slots: those given" in said.stdout


def test_a_batch_counts_examples_with_a_secret_alone(found: Path, tmp_path: Path) -> None:
    path = found / "public" / "incidence.parquet"
    for command in (["plan", "--output", tmp_path / "plan"], ["frontier"]):
        said = refused(2, command[0], path, *PROMISE, "--batch-size", 30, *command[1:])
        assert "--batch-size=30 is more than the 24 examples with a secret, of 40" in said


def test_the_frontier_is_that_of_the_examples_with_a_secret(found: Path, tmp_path: Path) -> None:
    graph, _ = spans_of_texts()
    path = found / "public" / "incidence.parquet"
    record = run_json("frontier", path, *PROMISE, "--batch-size", 4, "--capacity", "none")
    alone = graph.select(examples=graph.secrets_per_example > 0)
    expected = hush.frontier(alone, prior=1e-4, ceiling=0.1, rounds=20, batch_size=4, capacity="none")
    assert [row["noise_multiplier"] for row in record["rows"]] == [row.noise_multiplier for row in expected.rows]
    assert record["num_examples"] == alone.num_examples


@pytest.mark.parametrize("scanned", [False, True])
def test_a_plan_names_the_skeletons_of_its_data(found: Path, tmp_path: Path, scanned: bool) -> None:
    graph, spans = spans_of_texts()
    key, path, output = DataKey.create(tmp_path / "my.key"), found / "public" / "incidence.parquet", tmp_path / "plan"
    skeletons = key.fingerprint_rows(spans.public_rows(graph, TEXTS))
    if scanned:
        summarise(found, data_fingerprint=key.fingerprint_rows(TEXTS), skeleton_fingerprint=skeletons)
    data = ["--data", tmp_path / "data.jsonl", "--key", tmp_path / "my.key", "--column", "text"]
    run_json("plan", path, *PROMISE, "--batch-size", 4, *data, "--output", output)
    plan = hush.Plan.load(output)
    assert plan.skeleton_fingerprint == skeletons
    assert plan.data_fingerprint == key.fingerprint_rows(TEXTS)


def test_slots_that_a_scan_did_not_write_are_refused(found: Path, tmp_path: Path) -> None:
    summarise(found)
    path, slots = found / "public" / "incidence.parquet", found / "public" / "slots.parquet"
    command = ["plan", path, *PROMISE, "--batch-size", 4, "--output", tmp_path / "plan"]
    run_json(*command)
    content = Slots.from_parquet(slots)
    dataclasses.replace(content, place_L=content.place_L + 1).to_parquet(slots)
    assert "slots.parquet changed after the scan was written, or is missing" in refused(2, *command, "--force")
    slots.unlink()
    assert "slots.parquet changed after the scan was written, or is missing" in refused(2, *command, "--force")


def test_a_plan_with_slots_is_not_that_of_a_scan_without(found: Path, tmp_path: Path) -> None:
    path = found / "public" / "incidence.parquet"
    run_json("plan", path, *PROMISE, "--batch-size", 4, "--output", tmp_path / "plan")
    (found / "public" / "slots.parquet").unlink()
    summarise(found)
    said = run("verify", tmp_path / "plan", "--incidence", path)
    assert said.exit_code == 1
    assert "✗ slots: the plan has other slots than those given" in said.stdout
    run_json("plan", path, *PROMISE, "--batch-size", 4, "--output", tmp_path / "whole")
    assert hush.Plan.load(tmp_path / "whole").slots is None
    assert "✓ slots: none, as given" in run("verify", tmp_path / "whole", "--incidence", path).stdout
