"""The table of secrets, and above all: its texts never show."""

import copy
import pickle
import stat
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.errors import InvalidInput
from hush.protection import Protection, promise_arrays
from hush.secret_table import Secrets

ONE, TWO = Protection(1e-10, 1e-3), Protection.of((1e-10, 1e-3), (1e-4, 0.1))
TEXT = "correct-horse-battery"


def table() -> Secrets:
    return Secrets([ONE, TWO, ONE], ids=["a", "b", "c"], texts=[f"{TEXT}-{index}" for index in range(3)])


def test_no_text_shows_in_repr_str_or_format() -> None:
    secrets = table()
    for shown in (repr(secrets), str(secrets), f"{secrets}", f"{[secrets]}"):
        assert TEXT not in shown
    assert repr(secrets) == "Secrets(3 secrets)"


@pytest.mark.parametrize(
    "arguments",
    [
        {"texts": [TEXT, 7]},
        {"texts": [TEXT]},
        {"texts": [TEXT, TEXT + "\ud800"]},
        {"texts": [TEXT, "x"], "ids": [TEXT, "b"]},
        {"ids": [TEXT, TEXT]},
        {"ids": ["a", ""], "texts": [TEXT, TEXT]},
        {"protections": [ONE, TEXT]},
    ],
)
def test_no_text_shows_in_an_error_or_its_traceback(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput) as caught:
        Secrets(**{"protections": [ONE, ONE], **arguments})
    assert TEXT not in "".join(traceback.format_exception(caught.value))


def test_no_text_enters_a_pickle_but_a_copy_keeps_it() -> None:
    secrets = table()
    pickled = pickle.dumps(secrets)
    assert TEXT.encode() not in pickled
    assert pickle.loads(pickled) == secrets
    assert pickle.loads(pickled).texts is None
    assert copy.deepcopy(secrets).texts == copy.copy(secrets).texts == secrets.texts


def test_no_text_enters_the_public_file(tmp_path: Path) -> None:
    secrets = table()
    secrets.to_parquet(tmp_path / "secrets.parquet", texts_path=tmp_path / "texts.parquet")
    assert TEXT.encode() not in (tmp_path / "secrets.parquet").read_bytes()
    assert Secrets.from_parquet(tmp_path / "secrets.parquet").texts is None


def test_texts_come_back_only_from_their_own_file_which_is_the_owners_alone(tmp_path: Path) -> None:
    public, private = tmp_path / "secrets.parquet", tmp_path / "texts.parquet"
    table().to_parquet(public, texts_path=private)
    assert Secrets.from_parquet(public, texts_path=private).texts == table().texts
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    table().to_parquet(public)
    assert sorted(tmp_path.iterdir()) == [public, private]


@given(st.lists(st.sampled_from([ONE, TWO, Protection(0.1, 0.1)]), max_size=6))
def test_a_table_survives_parquet(protections: list[Protection]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Secrets(protections).to_parquet(f"{folder}/secrets.parquet")
        assert Secrets.from_parquet(f"{folder}/secrets.parquet") == Secrets(protections)


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    public, private = tmp_path / "secrets.parquet", tmp_path / "texts.parquet"
    table().to_parquet(public, texts_path=private)
    table().select([0, 1]).to_parquet(public)
    with pytest.raises(InvalidInput, match="does not name the same secrets"):
        Secrets.from_parquet(public, texts_path=private)
    with pytest.raises(InvalidInput, match="its kind is 'secret-texts'"):
        Secrets.from_parquet(private)


def test_texts_never_go_where_they_were_not_asked_to(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="a file of their own"):
        table().to_parquet(tmp_path / "one.parquet", texts_path=tmp_path / "." / "one.parquet")
    with pytest.raises(InvalidInput, match="holds no texts"):
        Secrets([ONE]).to_parquet(tmp_path / "one.parquet", texts_path=tmp_path / "two.parquet")
    assert list(tmp_path.iterdir()) == []


def test_default_ids_count_and_do_not_depend_on_the_texts() -> None:
    secrets = Secrets([ONE] * 3, texts=["x", "y", "z"])
    assert secrets.ids == ("secret-000000", "secret-000001", "secret-000002")
    assert secrets == Secrets([ONE] * 3)


def test_one_point_each_gives_flat_arrays_and_several_give_rows() -> None:
    flat = Secrets([ONE, ONE])
    assert flat.prior.shape == flat.ceiling.shape == (2,)
    wide = Secrets([ONE, TWO])
    assert wide.prior.tolist() == [[1e-10, 1e-10], [1e-10, 1e-4]]
    assert wide.ceiling.tolist() == [[1e-3, 1e-3], [1e-3, 0.1]]
    assert Secrets([]).prior.shape == (0,)


@given(st.lists(st.sampled_from([ONE, TWO]), max_size=6))
def test_padding_asks_for_nothing_new(protections: list[Protection]) -> None:
    secrets = Secrets(protections)
    prior_SQ, ceiling_SQ = promise_arrays(secrets.prior, secrets.ceiling, len(secrets))
    rows = [Protection.of(*zip(*row, strict=True)) for row in zip(prior_SQ.tolist(), ceiling_SQ.tolist(), strict=True)]
    assert rows == protections


def test_selection_keeps_ids_protections_and_texts_together() -> None:
    chosen = table().select(np.array([2, 1]))
    assert (chosen.ids, chosen.protections) == (("c", "b"), (ONE, TWO))
    assert chosen.texts == (f"{TEXT}-2", f"{TEXT}-1")
    assert table().select([True, False, False]).ids == ("a",)
    with pytest.raises(InvalidInput, match="outside"):
        table().select([3])


@pytest.mark.parametrize(
    ("ids", "message"),
    [(["a"], "2 protections but 1 ids"), (["a", "a"], "are the same"), (["a", ""], "empty"), (["a", 5], "a int")],
)
def test_ids_are_unique_non_empty_strings(ids: list, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Secrets([ONE, ONE], ids=ids)
