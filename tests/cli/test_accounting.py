"""The command line says what the library says, and tells bad input from a promise that cannot be kept."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import hush
from command_line import refused, run, run_json
from hush.console import ProgressBar, plain, rounded_down, rounded_up, show_rows
from hush.storage import read_table

PAIRS = [[0, 0], [1, 0], [1, 1], [2, 2]]
GRAPH = {"num_examples": 4, "num_secrets": 3, "pairs": PAIRS}
PROMISE = ["--prior", "1e-6", "--ceiling", "0.01"]
RUN = ["--rate", "0.1", "--rounds", "50"]
ONE = ["--rate", "0.01", "--examples", "20", "--noise-multiplier", "1.5", "--rounds", "100"]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return written(tmp_path / "graph.json", GRAPH)


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def incidence() -> hush.Incidence:
    return hush.Incidence.from_pairs(*zip(*PAIRS, strict=True), num_examples=4, num_secrets=3)


@pytest.mark.parametrize("bound", ["blowup", "renyi", "kl"])
def test_posterior_json_is_what_the_library_says(bound: Any) -> None:
    record = run_json("posterior", *ONE, "--prior", 1e-6, "--prior", 0.01, "--bound", bound)
    expected = hush.posterior([0.01] * 20, noise_multiplier=1.5, rounds=100, prior=[1e-6, 0.01], bound=bound)
    assert [row[bound] for row in record["posterior"]] == np.asarray(expected).tolist()
    assert record["examples"] == 20


def test_posterior_shows_all_bounds_and_the_attack_rounded_to_the_safe_side() -> None:
    row = run_json("posterior", *ONE, "--prior", 1e-6, "--bound", "all", "--lower")["posterior"][0]
    assert 1e-6 <= row["lower"] <= row["blowup"] <= min(row["renyi"], row["kl"]) * (1 + 1e-3)
    shown = run("posterior", *ONE, "--prior", 1e-6, "--bound", "all", "--lower").stdout
    for name in ("blowup", "renyi", "kl"):
        assert rounded_up(row[name]) in shown
    assert rounded_down(row["lower"]) in shown
    assert f"names the right one with probability above {rounded_up(row['blowup'])}" in " ".join(shown.split())


def test_priors_are_shown_rounded_down_and_the_noise_up(graph: Path, tmp_path: Path) -> None:
    # From a larger prior, or under less noise, nobody computed what holds.
    asked = ["--rate", 0.01, "--examples", 20, "--rounds", 100, "--noise-multiplier", "1.50000049"]
    shown = " ".join(run("posterior", *asked, "--prior", "1.23456789e-6").stdout.split())
    assert "noise multiplier 1.50001, 100 rounds" in shown
    assert "at most 1.23456e-06 names the right one" in shown
    assert "1.23457" not in shown
    promise = ["--prior", "1.23456789e-6", "--ceiling", 0.01]
    made = [run("calibrate", graph, *promise, *RUN)]
    made.append(run("plan", graph, *promise, "--rounds", 50, "--batch-size", 1, "--output", tmp_path / "plan"))
    assert all("1.23456e-06" in one.stdout and "1.23457" not in one.stdout for one in made)


def test_rates_may_come_from_json_or_parquet(tmp_path: Path) -> None:
    rates = [0.01, 0.02, 0.5]
    pq.write_table(pa.table({"rate": rates}), tmp_path / "rates.parquet")
    files = [
        written(tmp_path / "list.json", rates),
        written(tmp_path / "object.json", {"rates": rates}),
        tmp_path / "rates.parquet",
    ]
    expected = hush.posterior(rates, noise_multiplier=2.0, rounds=10, prior=1e-3)
    for file in files:
        record = run_json("posterior", "--rates", file, "--noise-multiplier", 2.0, "--rounds", 10, "--prior", 1e-3)
        assert record["posterior"] == [{"prior": 1e-3, "blowup": expected}]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([0.1, 1.5], r"rates\[1\]=1.5 .* \[0, 1\]"),
        ([0.1, "hunter2"], "number 1 of 2 is a string; pass plain numbers"),
        ([0.1, True], "number 1 of 2 is a boolean"),
        ([0.1, 10**400], "beyond 1e308"),
        ({"rate": [0.1]}, "rates is missing or null; pass plain numbers"),
        ([[0.1]], "number 0 of 1 is a list"),
    ],
)
def test_bad_rates_are_refused_by_name_and_without_their_text(tmp_path: Path, content: object, words: str) -> None:
    path = written(tmp_path / "rates.json", content)
    message = refused(2, "posterior", "--rates", path, "--noise-multiplier", 1, "--rounds", 1, "--prior", 0.1)
    assert re.search(words, message)
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--rate 0.1 --noise-multiplier 1 --rounds 1 --prior 0.1", "--examples=None: give both"),
        ("--rate 0.1 --examples 0 --noise-multiplier 1 --rounds 1 --prior 0.1", "--examples=0; pass a whole number"),
        ("--rate -0.1 --examples 1 --noise-multiplier 1 --rounds 1 --prior 0.1", "-0.1 is not a probability"),
        ("--rate nan --examples 1 --noise-multiplier 1 --rounds 1 --prior 0.1", "nan is not a probability"),
        (
            "--rate 0.1 --examples 1 --noise-multiplier -1 --rounds 1 --prior 0.1",
            "--noise-multiplier=-1.0; pass a finite",
        ),
        ("--rate 0.1 --examples 1 --noise-multiplier 1 --rounds 0 --prior 0.1", "rounds=0; pass a whole number"),
        ("--rate 0.1 --examples 1 --noise-multiplier 1 --rounds 1 --prior 1", "prior=1.0; pass priors from 1e-300"),
        ("--rate 0.1 --examples 1 --noise-multiplier 1 --rounds 1 --prior 0.1 --rates x", "pass one or the other"),
        ("--rates /no/such/file --noise-multiplier 1 --rounds 1 --prior 0.1", "/no/such/file: No such file"),
        ("--rates . --noise-multiplier 1 --rounds 1 --prior 0.1", "check the path"),
        ("--rate 0.1 --examples 1 --noise-multiplier 1 --rounds 1", "Missing option '--prior'"),
        ("--rate 0.1 --examples 1 --noise-multiplier 1 --rounds 1 --prior 0.1 --bound best", "'best' is not one of"),
    ],
)
def test_bad_questions_end_with_2_and_say_what_to_do(arguments: str, words: str) -> None:
    assert words in refused(2, "posterior", *arguments.split())


@pytest.mark.parametrize("bound", ["blowup", "renyi", "kl"])
def test_calibrate_json_is_what_the_library_says(graph: Path, bound: Any) -> None:
    record = run_json("calibrate", graph, *PROMISE, *RUN, "--bound", bound)
    expected = hush.calibrate(incidence(), prior=1e-6, ceiling=0.01, rates=0.1, rounds=50, bound=bound)
    assert record["noise_multiplier"] == record["noise_by_bound"][bound] == expected.noise_multiplier
    assert {row["secret"] for row in record["binding"]} == set(expected.binding.tolist())
    assert all(row["posterior"] == expected.posterior[row["secret"]] for row in record["binding"])
    assert record["posterior_over_ceiling"]["max"] == (expected.posterior / 0.01).max() <= 1
    assert record["fingerprint"] == incidence().fingerprint
    curve = record["curve"]
    rates = [0.1] * incidence().examples_per_secret[curve["secret"]]
    settings = {"noise_multiplier": expected.noise_multiplier, "rounds": 50, "bound": bound}
    assert curve["posterior"] == np.asarray(hush.posterior(rates, prior=curve["prior"], **settings)).tolist()


def test_a_json_graph_may_bring_everything_and_options_count_before_it(tmp_path: Path) -> None:
    path = written(
        tmp_path / "graph.json",
        GRAPH | {"rates": [0.1, 0.2, 0.3, 0.4], "prior": 1e-6, "ceiling": [0.01, 0.02, 0.03], "rounds": 20},
    )
    rates, ceiling = [0.1, 0.2, 0.3, 0.4], [0.01, 0.02, 0.03]
    expected = hush.calibrate(incidence(), prior=1e-6, ceiling=ceiling, rates=rates, rounds=20)
    assert run_json("calibrate", path)["noise_multiplier"] == expected.noise_multiplier
    shorter = hush.calibrate(incidence(), prior=1e-6, ceiling=0.05, rates=0.5, rounds=10)
    record = run_json("calibrate", path, "--rounds", 10, "--ceiling", 0.05, "--batch-size", 2)
    assert record["noise_multiplier"] == shorter.noise_multiplier


def test_several_points_and_ids_come_from_the_table_of_secrets(tmp_path: Path) -> None:
    points = [(1e-6, 0.01), (1e-3, 0.2)]
    secrets = hush.Secrets([hush.Protection.of(*points)] * 3, ids=["[red]a", "b", "c"], texts=["x1", "x2", "x3"])
    incidence().to_parquet(tmp_path / "graph.parquet")
    secrets.to_parquet(tmp_path / "secrets.parquet")
    command = ["calibrate", tmp_path / "graph.parquet", "--secrets", tmp_path / "secrets.parquet", *RUN]
    expected = hush.calibrate(incidence(), prior=secrets.prior, ceiling=secrets.ceiling, rates=0.1, rounds=50)
    record = run_json(*command, "--output", tmp_path / "out.parquet")
    assert record["noise_multiplier"] == expected.noise_multiplier
    assert record["binding"][0]["id"] == "[red]a"
    assert "[red]a" in run(*command).stdout
    table, labels = read_table(tmp_path / "out.parquet", kind="posteriors", columns=("id", "posterior"))
    assert table.column("posterior").to_pylist() == expected.posterior.tolist()
    assert table.column("id").to_pylist() == list(secrets.ids)
    assert float(labels["noise_multiplier"]) == expected.noise_multiplier


def test_the_output_holds_every_posterior_and_all_bounds_keep_the_tightest(graph: Path, tmp_path: Path) -> None:
    output = tmp_path / "posteriors.parquet"
    record = run_json("calibrate", graph, *PROMISE, *RUN, "--bound", "all", "--output", output)
    assert list(record["noise_by_bound"]) == ["kl", "renyi", "blowup"]
    assert record["noise_multiplier"] == min(record["noise_by_bound"].values())
    expected = hush.calibrate(incidence(), prior=1e-6, ceiling=0.01, rates=0.1, rounds=50, bound=record["bound"])
    table, _ = read_table(output, kind="posteriors", columns=("secret", "prior", "ceiling", "posterior"))
    assert table.column("posterior").to_pylist() == expected.posterior.tolist()
    assert table.column("secret").to_pylist() == [0, 1, 2]


def test_the_table_names_noise_and_binding_secrets(graph: Path) -> None:
    shown = run("calibrate", graph, *PROMISE, *RUN, "--bound", "all").stdout
    record = run_json("calibrate", graph, *PROMISE, *RUN, "--bound", "all")
    assert f"Noise multiplier {rounded_up(record['noise_multiplier'], 5)}" in shown
    assert f"Binding secrets: {len(record['binding'])}" in shown
    assert "Binding" not in run("calibrate", graph, *PROMISE, *RUN, "--top", 0).stdout


def test_no_noise_is_said_in_words(tmp_path: Path) -> None:
    empty = written(tmp_path / "empty.json", {"num_examples": 3, "num_secrets": 0, "pairs": []})
    assert "No noise is needed" in run("calibrate", empty, *PROMISE, *RUN).stdout
    record = run_json("calibrate", empty, *PROMISE, *RUN)
    assert (record["noise_multiplier"], record["binding"], record["curve"]) == (0.0, [], None)


def test_a_promise_that_no_noise_keeps_ends_with_1_and_writes_nothing(graph: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    same = ["--prior", 0.01, "--ceiling", 0.01]
    message = refused(1, "calibrate", graph, *same, *RUN, "--output", output)
    assert "no finite noise suffices; raise its ceiling" in message
    message = refused(2, "calibrate", graph, *PROMISE, "--batch-size", 5, "--rounds", 50, "--output", output)
    assert "--batch-size=5 is more than the 4 examples; lower it" in message
    assert list(tmp_path.iterdir()) == [graph]


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        ({}, [*RUN], "states no prior; pass --prior and --ceiling"),
        ({}, [*PROMISE, "--rounds", 5], "states no rates; pass --batch-size"),
        ({}, [*PROMISE, "--rate", 0.1], "states no rounds; pass --rounds"),
        ({}, [*PROMISE, *RUN, "--batch-size", 2], "--rate and --batch-size all set"),
        ({}, [*PROMISE, "--rounds", 5, "--batch-size", 0], "--batch-size=0; pass a number above 0"),
        ({}, ["--prior", 0.1, "--ceiling", 0.01, *RUN], "needs 0 < prior <= ceiling < 1"),
        ({"pairs": [[0, 7]]}, [*PROMISE, *RUN], "secret_index"),
        ({"pairs": [[0, "hunter2"]]}, [*PROMISE, *RUN], "number 0 of 1 is not"),
        ({"pairs": {}}, [*PROMISE, *RUN], "it is an object"),
        ({"pairs": [[0, 2**70]]}, [*PROMISE, *RUN], "beyond 2**63"),
        ({"num_secrets": "hunter2"}, [*PROMISE, *RUN], "num_secrets is a string"),
        ({"num_examples": -1}, [*PROMISE, *RUN], "num_examples=-1"),
        ({"hunter2": 1}, [*PROMISE, *RUN], "1 unknown field; it may hold only"),
        ({"rates": [0.1]}, [*PROMISE, "--rounds", 5], "one for each example"),
        ({"rates": "hunter2"}, [*PROMISE, "--rounds", 5], "is a string; pass plain numbers"),
        ({"prior": ["hunter2"] * 3, "ceiling": 0.1}, [*RUN], "not real numbers"),
        ({"rounds": 2.5}, [*PROMISE, "--rate", 0.1], "rounds is a number; pass a whole number"),
    ],
)
def test_bad_graphs_end_with_2_without_text_or_half_a_file(
    tmp_path: Path, change: dict[str, object], arguments: list[object], words: str
) -> None:
    graph = written(tmp_path / "graph.json", GRAPH | change)
    message = refused(2, "calibrate", graph, *arguments, "--output", tmp_path / "out.parquet")
    assert words in message
    assert "hunter2" not in message
    assert list(tmp_path.iterdir()) == [graph]


@pytest.mark.parametrize("content", [b"not json", b"\xff\xfe", b"PAR1 but not Parquet", b"", b"{}", b"[" * 100_000])
def test_files_of_another_kind_end_with_2(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "strange"
    path.write_bytes(content)
    assert "strange" in refused(2, "calibrate", path, *PROMISE, *RUN)
    assert "strange" in refused(2, "posterior", "--rates", path, "--noise-multiplier", 1, "--rounds", 1, "--prior", 0.1)


def test_files_that_do_not_belong_together_are_refused(graph: Path, tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.parquet"
    hush.Secrets([hush.Protection(1e-6, 0.01)]).to_parquet(secrets)
    assert "holds 1 secret but" in refused(2, "calibrate", graph, "--secrets", secrets, *RUN)
    assert "drop --prior" in refused(2, "calibrate", graph, "--secrets", secrets, *PROMISE, *RUN)
    assert "not a hush incidence file" in refused(2, "calibrate", secrets, *PROMISE, *RUN)
    assert "none named 'rate'" in refused(2, "calibrate", graph, *PROMISE, "--rounds", 5, "--rates", secrets)
    pq.write_table(pa.table({"rate": ["hunter2"]}), tmp_path / "rates.parquet")
    message = refused(2, "calibrate", graph, *PROMISE, "--rounds", 5, "--rates", tmp_path / "rates.parquet")
    assert "has type string" in message
    assert "hunter2" not in message


def test_a_list_is_no_graph(tmp_path: Path) -> None:
    path = written(tmp_path / "list.json", PAIRS)
    assert "holds a list; pass an object with num_examples" in refused(2, "calibrate", path, *PROMISE, *RUN)


def test_an_output_that_cannot_be_is_refused_before_any_work(graph: Path, tmp_path: Path) -> None:
    for output in (tmp_path, tmp_path / "missing" / "out.parquet"):
        assert "in a folder that exists" in refused(2, "calibrate", graph, *PROMISE, *RUN, "--output", output)
    assert "would replace an input" in refused(2, "calibrate", graph, *PROMISE, *RUN, "--output", graph)
    assert json.loads(graph.read_text()) == GRAPH


def test_without_a_command_the_help_shows_and_the_version_is_the_packages() -> None:
    assert "calibrate" in run().output
    assert run("--version").stdout == f"hush {hush.__version__}\n"
    assert "No such command 'nothing'" in refused(2, "nothing")


def test_the_progress_bar_shows_on_a_terminal_only_and_never_moves_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hush.console.BAR_DELAY_SECONDS", -1.0)
    for terminal in (True, False):
        console = Console(force_terminal=terminal, width=80, record=True)
        with console.capture() as captured, ProgressBar(console, "Calibrating") as progress:
            progress(3, 4)
            progress(1, 4)
        assert ("75%" in captured.get()) == terminal
        assert "25%" not in captured.get()


CELLS = st.lists(st.text("abc0123456789.e- ", min_size=1, max_size=60), min_size=3, max_size=3)


@given(st.integers(min_value=30, max_value=120), st.lists(CELLS, min_size=1, max_size=4))
def test_a_narrow_terminal_breaks_cells_and_loses_nothing_of_them(width: int, rows: list[list[str]]) -> None:
    console = Console(width=width)
    with console.capture() as captured:
        show_rows(console, ["secret", "limits", "result"], rows)
    shown = captured.get()
    assert not Counter("".join("".join(row) for row in rows).replace(" ", "")) - Counter(shown)
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= width


def test_printed_text_obeys_nothing() -> None:
    assert plain("a\x1b[31m[red]").plain == "a\N{REPLACEMENT CHARACTER}[31m[red]"
