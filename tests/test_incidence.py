"""The incidence graph against scipy.sparse, through Parquet, and the laws of its fingerprint."""

import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from hypothesis import assume, given
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.incidence import Incidence

Graph = tuple[int, int, list[tuple[int, int]]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Sizes and pairs, with duplicates, empty rows and columns, and empty graphs."""
    n, m = draw(st.integers(0, 8)), draw(st.integers(0, 6))
    if n * m == 0:
        return n, m, []
    return n, m, draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, m - 1)), max_size=30))


def build(n: int, m: int, pairs: list[tuple[int, int]]) -> Incidence:
    return Incidence.from_pairs([i for i, _ in pairs], [j for _, j in pairs], num_examples=n, num_secrets=m)


def dense(n: int, m: int, pairs: list[tuple[int, int]]) -> np.ndarray:
    matrix = np.zeros((n, m), dtype=np.int8)
    for i, j in pairs:
        matrix[i, j] = 1
    return matrix


@given(graphs())
def test_the_graph_is_the_matrix_of_its_pairs(graph: Graph) -> None:
    incidence, matrix = build(*graph), dense(*graph)
    assert (incidence.to_scipy().toarray() == matrix).all()
    assert incidence.num_entries == matrix.sum()
    assert (incidence.examples_per_secret == matrix.sum(axis=0)).all()
    assert (incidence.secrets_per_example == matrix.sum(axis=1)).all()
    assert incidence.density == pytest.approx(matrix.mean() if matrix.size else 0.0)
    for j in range(incidence.num_secrets):
        assert incidence.examples_of(j).tolist() == np.flatnonzero(matrix[:, j]).tolist()


@given(graphs(), st.sampled_from([sp.coo_array, sp.csr_array, sp.csc_array, sp.csr_matrix, sp.lil_array]))
def test_scipy_and_back_is_the_same_graph(graph: Graph, kind: type) -> None:
    incidence = build(*graph)
    assert Incidence.from_scipy(kind(dense(*graph))) == incidence
    assert Incidence.from_scipy(incidence.to_scipy()) == incidence


def test_scipy_counts_mean_containing_and_stored_zeros_do_not() -> None:
    rows, columns = np.array([0, 0, 1, 2]), np.array([0, 0, 1, 1])
    matrix = sp.coo_array((np.array([1.0, 2.0, 0.0, 0.5]), (rows, columns)), shape=(3, 2))
    assert Incidence.from_scipy(matrix) == build(3, 2, [(0, 0), (2, 1)])
    assert matrix.nnz == 4


def _unmerged(content: Any, shape: tuple[int, int]) -> sp.csr_array:
    """One row in which every occurrence is an entry of its own."""
    ones, (_, columns) = content
    return sp.csr_array((ones, columns, np.array([0, len(ones)])), shape=shape)


@pytest.mark.parametrize("kind", [sp.coo_array, sp.coo_matrix, _unmerged])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.bool_, np.float32])
def test_no_number_of_occurrences_adds_up_to_none(kind: Any, dtype: type) -> None:
    for times in (2, 128, 256, 65_536):
        places = np.zeros(times, dtype=np.int64), np.zeros(times, dtype=np.int64)
        assert Incidence.from_scipy(kind((np.ones(times, dtype=dtype), places), shape=(1, 1))).num_entries == 1


def test_a_negative_value_is_not_hidden_by_a_positive_one() -> None:
    matrix = sp.coo_array((np.array([1.0, -1.0]), ([0, 0], [0, 0])), shape=(1, 1))
    with pytest.raises(InvalidInput, match="negative"):
        Incidence.from_scipy(matrix)


@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf, 1j])
def test_a_matrix_of_anything_but_counts_is_refused(value: complex) -> None:
    with pytest.raises(InvalidInput, match="negative or non-finite"):
        Incidence.from_scipy(sp.csr_array([[value]]))
    with pytest.raises(InvalidInput, match="got ndarray"):
        Incidence.from_scipy(np.eye(2))
    with pytest.raises(InvalidInput, match="2-D"):
        Incidence.from_scipy(sp.coo_array(np.array([1, 0])))


@given(graphs())
def test_parquet_and_back_is_the_same_graph(graph: Graph) -> None:
    incidence = build(*graph)
    with tempfile.TemporaryDirectory() as folder:
        incidence.to_parquet(f"{folder}/graph.parquet")
        loaded = Incidence.from_parquet(f"{folder}/graph.parquet")
        assert [entry.name for entry in Path(folder).iterdir()] == ["graph.parquet"]
    assert loaded == incidence
    assert loaded.fingerprint == incidence.fingerprint


@given(graphs(), st.randoms())
def test_order_of_pairs_never_changes_the_fingerprint(graph: Graph, random) -> None:
    n, m, pairs = graph
    shuffled = random.sample(pairs, len(pairs))
    assert build(n, m, shuffled) == build(n, m, pairs)
    assert build(n, m, shuffled).fingerprint == build(n, m, pairs).fingerprint


@given(graphs())
def test_duplicates_of_pairs_never_change_the_fingerprint(graph: Graph) -> None:
    n, m, pairs = graph
    assert build(n, m, pairs + pairs).fingerprint == build(n, m, sorted(set(pairs))).fingerprint


@given(graphs(), st.data())
def test_any_changed_pair_changes_the_fingerprint(graph: Graph, data: st.DataObject) -> None:
    n, m, pairs = graph
    assume(n * m > 0)
    flipped = data.draw(st.tuples(st.integers(0, n - 1), st.integers(0, m - 1)))
    changed = sorted(set(pairs) ^ {flipped})
    assert build(n, m, changed) != build(n, m, pairs)
    assert build(n, m, changed).fingerprint != build(n, m, pairs).fingerprint


@given(graphs())
def test_any_changed_size_changes_the_fingerprint(graph: Graph) -> None:
    n, m, pairs = graph
    prints = {build(*sizes, pairs).fingerprint for sizes in [(n, m), (n + 1, m), (n, m + 1), (n + 1, m + 1)]}
    assert len(prints) == 4


def test_the_fingerprint_is_the_same_on_every_machine_and_in_every_release() -> None:
    expected = "2d37782ce5fa72e6fe1cfea1f5efc928756d4b3c7f6b63d0049df38f5d49088d"
    assert build(3, 2, [(0, 0), (2, 0), (2, 1)]).fingerprint == expected


@given(graphs(), st.data())
def test_selection_is_matrix_indexing(graph: Graph, data: st.DataObject) -> None:
    n, m, _ = graph
    incidence, matrix = build(*graph), dense(*graph)
    examples = data.draw(st.permutations(range(n)))[: data.draw(st.integers(0, n))]
    secrets = data.draw(st.permutations(range(m)))[: data.draw(st.integers(0, m))]
    examples, secrets = np.array(examples, dtype=int), np.array(secrets, dtype=int)
    assert (incidence.select(examples=examples).to_scipy().toarray() == matrix[examples]).all()
    assert (incidence.select(secrets=secrets).to_scipy().toarray() == matrix[:, secrets]).all()
    both = incidence.select(examples=examples, secrets=secrets)
    assert (both.to_scipy().toarray() == matrix[np.ix_(examples, secrets)]).all()
    mask = np.isin(np.arange(n), examples)
    assert incidence.select(examples=mask) == incidence.select(examples=np.sort(examples))
    assert incidence.select() == incidence


def test_a_graph_cannot_be_changed_not_even_through_what_built_it() -> None:
    offset, example = np.array([0, 1, 2]), np.array([1, 0], dtype=np.int32)
    incidence = Incidence(3, offset, example)
    restored = pickle.loads(pickle.dumps(incidence))
    before = incidence.fingerprint
    offset[:], example[:] = 0, 2
    assert Incidence(3, incidence.offset_S, incidence.example_of_entry).fingerprint == before
    for graph in (incidence, restored):
        for array in (graph.offset_S, graph.example_of_entry, graph.examples_of(0)):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


def test_equal_graphs_are_one_key() -> None:
    assert len({build(3, 2, [(0, 0)]), build(3, 2, [(0, 0), (0, 0)]), build(3, 2, [(0, 1)])}) == 2
    assert build(3, 2, []) != "a graph"


def test_the_repr_holds_sizes_only() -> None:
    assert repr(build(3, 2, [(2, 1)])) == "Incidence(3 examples, 2 secrets, 1 entries)"


@pytest.mark.parametrize(
    ("example", "secret", "message"),
    [
        ([0, 3], [0, 0], r"example_index\[1\]=3 is outside \[0, 3\)"),
        ([0, 1], [0, -1], r"secret_index\[1\]=-1 is outside \[0, 2\)"),
        ([0.5], [0], "example_index holds float64 values"),
        ([0, 1], [0], "2 entries and secret_index 1"),
    ],
)
def test_bad_pairs_are_refused_with_their_values(example: list, secret: list, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Incidence.from_pairs(example, secret, num_examples=3, num_secrets=2)


@pytest.mark.parametrize("secret", [-1, 2])
def test_a_secret_that_does_not_exist_is_refused(secret: int) -> None:
    with pytest.raises(InvalidInput, match=f"secret={secret}"):
        build(3, 2, []).examples_of(secret)


def test_sizes_beyond_the_key_range_are_refused_rather_than_wrapped() -> None:
    with pytest.raises(InvalidInput, match=r"exceed 2\*\*63"):
        Incidence.from_pairs([], [], num_examples=2**40, num_secrets=2**40)


@pytest.mark.parametrize(
    ("offset", "example"),
    [([], []), ([1, 2], [0, 1]), ([0, 1], [0, 1]), ([0, 2, 1, 2], [0, 1]), ([0, 2], [1, 0]), ([0, 2], [1, 1])],
)
def test_arrays_that_break_the_invariant_never_become_a_graph(offset: list, example: list) -> None:
    with pytest.raises(InvalidInput, match="build with Incidence"):
        Incidence(3, np.array(offset, dtype=int), np.array(example, dtype=int))


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    build(3, 2, [(0, 0), (2, 1)]).to_parquet(tmp_path / "graph.parquet")
    return tmp_path / "graph.parquet"


def test_a_file_whose_pairs_were_changed_is_refused(stored: Path) -> None:
    metadata = pq.read_schema(stored).metadata
    pq.write_table(pa.table({"example": [0, 1], "secret": [0, 1]}).replace_schema_metadata(metadata), stored)
    with pytest.raises(InvalidInput, match="it was changed after it was written"):
        Incidence.from_parquet(stored)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({b"hush.num_examples": b"4"}, "it was changed after"),
        ({b"hush.num_examples": b"many"}, "does not state its sizes"),
        ({b"hush.num_secrets": b"1"}, r"secret_index\[1\]=1 is outside"),
        ({b"hush.num_secrets": b"1000000000000"}, "num_secrets=1000000000000, but there are only 2 pairs"),
        ({b"hush.fingerprint": b"0"}, "it was changed after"),
        ({b"hush.kind": b"secrets"}, "its kind is 'secrets'"),
    ],
)
def test_a_file_whose_labels_were_changed_is_refused(stored: Path, changes: dict, message: str) -> None:
    table = pq.read_table(stored)
    pq.write_table(table.replace_schema_metadata(table.schema.metadata | changes), stored)
    with pytest.raises(InvalidInput, match=message):
        Incidence.from_parquet(stored)


def test_a_file_of_another_origin_is_refused(stored: Path) -> None:
    metadata = pq.read_schema(stored).metadata
    pq.write_table(pa.table({"example": [0], "secret": [0]}), stored)
    with pytest.raises(InvalidInput, match="not a hush incidence file"):
        Incidence.from_parquet(stored)
    pq.write_table(pa.table({"example": [0]}).replace_schema_metadata(metadata), stored)
    with pytest.raises(InvalidInput, match=r"lacks the columns \['secret'\]"):
        Incidence.from_parquet(stored)
    pq.write_table(pa.table({"example": [0, None], "secret": [0, 1]}).replace_schema_metadata(metadata), stored)
    with pytest.raises(InvalidInput, match=r"empty cells in the columns \['example'\]"):
        Incidence.from_parquet(stored)


def test_a_damaged_file_is_refused(stored: Path) -> None:
    stored.write_bytes(stored.read_bytes()[:-20])
    with pytest.raises(InvalidInput, match="not a readable Parquet file"):
        Incidence.from_parquet(stored)
    stored.write_text("example,secret\n0,0\n")
    with pytest.raises(InvalidInput, match="not a readable Parquet file"):
        Incidence.from_parquet(stored)
    with pytest.raises(FileNotFoundError):
        Incidence.from_parquet(stored.with_name("missing.parquet"))


def test_a_failed_write_leaves_the_old_file_whole(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = stored.read_bytes()

    def run_out_of_disk(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(pq, "write_table", run_out_of_disk)
    with pytest.raises(OSError, match="no space left"):
        build(5, 5, []).to_parquet(stored)
    assert stored.read_bytes() == before
    assert list(stored.parent.iterdir()) == [stored]


def test_a_stored_graph_is_read_without_sorting_and_pairs_in_another_order_are_sorted(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    incidence = build(3, 2, [(0, 0), (2, 0), (1, 1), (2, 1)])
    incidence.to_parquet(stored)
    table = pq.read_table(stored)
    pq.write_table(table.take([3, 0, 2, 1]), stored.with_name("shuffled.parquet"))
    assert Incidence.from_parquet(stored.with_name("shuffled.parquet")) == incidence

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("sorted once more")

    monkeypatch.setattr(Incidence, "from_pairs", refuse)
    assert Incidence.from_parquet(stored) == incidence


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_reading_a_graph_leaves_no_memory_behind_in_arrow(tmp_path: Path) -> None:
    entries = 2_000_000
    secret = np.repeat(np.arange(entries // 100), 100)
    example = np.random.default_rng(0).integers(0, 1_000_000, entries)
    graph = Incidence.from_pairs(example, secret, num_examples=1_000_000, num_secrets=entries // 100)
    graph.to_parquet(tmp_path / "graph.parquet")
    Incidence.from_pairs([0], [0], num_examples=1, num_secrets=1).to_parquet(tmp_path / "small.parquet")
    code = """
import sys, hush
def resident(): return 4096 * int(open("/proc/self/statm").read().split()[1])
small = hush.Incidence.from_parquet(sys.argv[1] + "/small.parquet")
before = resident()
graph = hush.Incidence.from_parquet(sys.argv[1] + "/graph.parquet")
print(resident() - before)
"""
    shown = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, text=True)
    assert int(shown.stdout) < 5 * (graph.example_of_entry.nbytes + graph.offset_S.nbytes)  # 7 with what Arrow keeps
