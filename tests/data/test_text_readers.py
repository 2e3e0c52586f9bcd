"""A misspelt path is refused at once; a name is looked up on the hub."""

from pathlib import Path

import pytest

from hush.data import read_corpus
from hush.errors import InvalidInput


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the hub was asked for, by whoever works in a folder with one folder in it."""
    names: list[str] = []

    def ask(source: str) -> None:
        names.append(source)
        raise InvalidInput("the hub was asked")

    monkeypatch.setattr("hush.data.arrow_readers.load_part", ask)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    return names


FORMS = ["./nosuch", "../nosuch", "~/nosuch", "/nosuch", "nosuch/", ".\\nosuch", "a/b/nosuch", "here/nosuch"]
FILES = ["nosuch.csv", "a/nosuch.jsonl.gz"]
PARTS = ["here/nosuch:train", "./nosuch:main:train"]


@pytest.mark.parametrize("path", [*FORMS, *FILES, *PARTS])
def test_what_looks_like_a_path_is_refused_without_asking_the_hub(asked: list[str], path: str) -> None:
    with pytest.raises(InvalidInput, match="does not exist; pass a file or a folder"):
        read_corpus(path)
    assert not asked


@pytest.mark.parametrize(
    "name", ["imdb", "imdb:test", "stanfordnlp/imdb", "nyu-mll/glue:sst2:train", "v1.0", "a-b.c_d"]
)
def test_a_name_goes_to_the_hub(asked: list[str], name: str) -> None:
    with pytest.raises(InvalidInput, match="the hub was asked"):
        read_corpus(name)
    assert asked == [name]


def test_a_saved_data_set_is_loaded_whatever_its_path_looks_like(asked: list[str]) -> None:
    Path("here/saved").mkdir()
    Path("here/saved/dataset_info.json").write_text("{}")
    for source in ("here/saved", "./here/saved:train"):
        with pytest.raises(InvalidInput, match="the hub was asked"):
            read_corpus(source)
