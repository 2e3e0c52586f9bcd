"""The fields rule: the values of a column name the secrets."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from finder_cases import block_of, rows_of
from hypothesis import given
from hypothesis import strategies as st

import hush
import hush.scan
from hush.data import read_corpus
from hush.scan.finders import Fields

names = st.text(st.characters(exclude_categories=("Cs",)), max_size=5)


def keys_of(values: pa.Array, **settings) -> list[tuple[int, str]]:
    hits = Fields(column="team", **settings).find(block_of(["text"] * len(values), team=values))
    assert all(row[1:3] == (-1, -1) and row[4] == "column team" for row in rows_of(hits))
    return [(row[0], row[3]) for row in rows_of(hits)]


@given(st.lists(st.none() | names, max_size=8))
def test_each_value_that_is_not_empty_is_the_secret_of_its_example(values: list[str | None]) -> None:
    expected = [(example, value.strip()) for example, value in enumerate(values) if value and value.strip()]
    assert keys_of(pa.array(values, pa.string())) == expected


@given(st.lists(st.lists(names.filter(lambda name: ";" not in name), max_size=4), max_size=5))
def test_a_list_and_its_values_with_separators_name_the_same_secrets(lists: list[list[str]]) -> None:
    as_lists = pa.array(lists, pa.list_(pa.string()))
    assert keys_of(as_lists) == keys_of(pa.array([";".join(values) for values in lists], pa.string()), separator=";")
    assert set(keys_of(as_lists)) == {(i, v.strip()) for i, values in enumerate(lists) for v in values if v.strip()}


@pytest.mark.parametrize(
    ("values", "keys"),
    [
        (pa.array([7, None, -1]), [(0, "7"), (2, "-1")]),
        (pa.array([0.5, float("nan"), 7.0, float("inf")]), [(0, "0.5"), (2, "7"), (3, "inf")]),
        (pa.array([True, False]), [(0, "True"), (1, "False")]),
        (pa.array([datetime.date(2024, 1, 2)]), [(0, "2024-01-02")]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), [(0, "a"), (1, "b"), (2, "a")]),
        (pa.array([[1, 2], [], None]), [(0, "1"), (0, "2")]),
        (pa.nulls(2), []),
    ],
)
def test_numbers_dates_and_encodings_become_text(values: pa.Array, keys: list[tuple[int, str]]) -> None:
    assert keys_of(values) == keys


def test_public_names_are_an_attribute_that_the_scan_can_ask_for() -> None:
    assert Fields(column="team", public_names=True).public_names
    assert Fields(column="team").columns == ("team",)


def test_a_column_that_cannot_name_secrets_is_refused_without_its_values() -> None:
    for values in (pa.array([{"hidden": 1}]), pa.array([b"hidden"])):
        with pytest.raises(hush.InvalidInput, match="column 'team' contains a") as caught:
            keys_of(values)
        assert "hidden" not in str(caught.value)
    with pytest.raises(hush.InvalidInput, match="no column 'missing', only: team"):
        Fields(column="missing").find(block_of(["a"], team=pa.array(["x"])))
    for column, separator in (("", None), ("team", "")):
        with pytest.raises(hush.InvalidInput, match="is empty"):
            Fields(column=column, separator=separator)


def test_a_list_column_of_a_parquet_file_names_several_secrets_in_one_row(tmp_path: Path) -> None:
    authors = [["Ana", "Bo"], ["Bo"], [], None, ["Cy", "Ana", " Bo "]]
    table = pa.table({"abstract": [f"text {row}" for row in range(5)], "authors": pa.array(authors)})
    pq.write_table(table, tmp_path / "papers.parquet", row_group_size=2)
    rule = {"name": "author", "find": "fields", "column": "authors", "public_names": True}
    rules = {"version": 1, "defaults": {"prior": 1e-6, "ceiling": 1e-2}, "rules": [rule]}
    found = hush.scan.scan(read_corpus(tmp_path / "papers.parquet", column="abstract"), rules)
    examples = {name: found.incidence.examples_of(secret).tolist() for secret, name in enumerate(found.secrets.ids)}
    assert examples == {"author:Ana": [0, 4], "author:Bo": [0, 1, 4], "author:Cy": [4]}
