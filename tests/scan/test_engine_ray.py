"""The Ray engine on a real local cluster: the results and errors of the in-process engine, and nothing left behind."""

import copy
import functools
import json
import logging
import os
import random
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hush.data import read_corpus
from hush.errors import HushError, InvalidInput
from hush.protection import Protection
from hush.scan import engine_ray as ray_engine
from hush.scan import scan
from hush.scan.engine_ray import RayEngine
from hush.scan.engines import LocalEngine

ray = pytest.importorskip("ray")

pytestmark = [
    # Ray warns about its own settings when it makes them for the first time.
    pytest.mark.filterwarnings(r"ignore:`use_\w+` is deprecated:DeprecationWarning:ray\.data\.context"),
]

IN_PROCESS = LocalEngine(workers=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A small cluster that belongs to whoever runs the tests, not to the engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            "local",
            num_cpus=2,
            object_store_memory=100 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        yield
        ray.shutdown()


def logs() -> list[Path]:
    context = ray.get_runtime_context()
    return [
        path for path in Path(context.get_temp_dir(), context.get_session_name(), "logs").rglob("*") if path.is_file()
    ]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("blocks", "from_afar"), [(1000, False), (3, False), (1000, True)])
def test_results_are_those_of_one_process_in_the_order_of_the_shards(
    blocks: int, from_afar: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a unit of Ray's work is one shard or several, and whether this process or a deputy is in charge."""
    monkeypatch.setattr(ray_engine, "MAX_BLOCKS", blocks)
    monkeypatch.setattr("ray.util.client.ray.is_connected", lambda: from_afar)
    task = functools.partial(pow, random.randrange(3, 99))
    shards = [random.randrange(200_000) >> (2 * place) for place in range(12)]  # the first ones take longest
    assert list(RayEngine(workers=2).map(task, shards)) == list(IN_PROCESS.map(task, shards))
    assert ray.is_initialized()


@pytest.mark.usefixtures("cluster")
def test_results_may_be_anything_and_large() -> None:
    shards: list[Any] = [None, b"", {"nested": [1, (2, 3)]}, random.randbytes(3_000_000), "é漢", Protection(0.1, 0.2)]
    engine = RayEngine()
    assert list(engine.map(copy.copy, shards)) == shards


@pytest.mark.usefixtures("cluster")
def test_the_first_error_in_order_comes_back_as_itself_and_reaches_no_log() -> None:
    hidden = f"hidden{secrets.token_hex(8)}"
    shards = ["1", "2", hidden, "other", "5"]
    seen: list[int] = []
    with pytest.raises(ValueError, match=hidden) as raised:
        seen.extend(RayEngine(workers=2).map(int, shards))
    with pytest.raises(ValueError, match=hidden) as expected:
        list(IN_PROCESS.map(int, shards))
    assert type(raised.value) is type(expected.value)
    assert raised.value.args == expected.value.args
    assert raised.value.__cause__ is None
    assert not [path.name for path in logs() if hidden.encode() in path.read_bytes()]
    with pytest.raises(InvalidInput, match=r"prior=0\.5, ceiling=0\.1"):
        list(RayEngine(workers=2).map(functools.partial(Protection, 0.5), [0.6, 0.1]))


@pytest.mark.usefixtures("cluster")
def test_closing_the_iterator_stops_the_work_and_leaves_the_cluster() -> None:
    results = RayEngine(workers=2).map(time.sleep, [0.5] * 120)
    next(results)
    results.close()  # pyright: ignore[reportAttributeAccessIssue]
    until = time.monotonic() + 25  # all of them would take longer
    while ray.available_resources().get("CPU") != 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert ray.is_initialized()


@pytest.mark.usefixtures("cluster")
def test_a_scan_finds_the_same_on_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hush.data.shards.MAX_FILES_PER_SHARD", 1)  # a shard for each file, however small
    rng = random.Random(0)
    words = [f"{a}{b}" for a in "bcdfghklmnpr" for b in ("ane", "ilo", "urt", "ess")]
    texts = [" ".join(rng.choices(words, k=40)) + f" key-{rng.randrange(30):04d}" for _ in range(60)]
    texts += [text.replace(words[0], "other", 1) for text in texts[:20]]
    for part in range(4):
        rows = [{"text": text, "team": rng.choice(["red", "blue", None])} for text in texts[part::4]]
        (tmp_path / f"part{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rules = {
        "defaults": {"prior": 1e-10, "ceiling": 1e-3},
        "rules": [
            {"name": "rare", "find": "words", "ranks": [10, 20]},
            {"name": "keys", "find": "patterns", "patterns": ["key-[0-9]{4}"]},
            {"name": "team", "find": "fields", "column": "team", "public_names": True},
            {"name": "near", "find": "copies", "similarity": 0.6},
        ],
    }
    data = read_corpus(tmp_path)
    assert len(data.shards()) == 4
    here, there = (scan(data, rules, engine=engine) for engine in (IN_PROCESS, RayEngine(workers=2)))
    assert there.incidence == here.incidence
    assert (there.secrets, there.secrets.texts, there.rules) == (here.secrets, here.secrets.texts, here.rules)
    assert list(there.why()) == list(here.why())
    assert any("near copy" in reason.reason for reason in here.why())


@pytest.mark.usefixtures("cluster")
def test_a_shard_that_kills_its_process_is_named_after_a_few_tries() -> None:
    with pytest.raises(HushError, match="the process of task 0 died 3 times"):
        list(RayEngine(workers=1).map(os._exit, [1]))


def test_a_cluster_that_the_engine_starts_is_quiet_and_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    calls: list[Any] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda address, **options: calls.append((address, options)))
    monkeypatch.setattr(ray, "shutdown", lambda: calls.append("shut down"))
    with pytest.raises(KeyError), RayEngine(workers=3).connected():
        raise KeyError
    (address, options), end = calls
    assert (address, end) == ("local", "shut down")
    assert options["num_cpus"] == 3
    assert options["log_to_driver"] is options["include_dashboard"] is False


def test_an_error_that_cannot_go_between_processes_is_named_by_its_kind_alone() -> None:
    import pickle

    class Local(Exception):
        pass

    class NeedsTwo(Exception):
        def __init__(self, one: str, two: str) -> None:
            super().__init__(one)

    for error in (Local("hidden"), NeedsTwo("hidden", "hidden")):
        done, read = pickle.loads(ray_engine._error_as_bytes(error))
        assert not done
        assert type(read) is HushError
        assert type(error).__name__ in str(read)
        assert "hidden" not in str(read)


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_a_cluster_that_does_not_answer_is_an_error_at_once(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    begin = time.monotonic()
    with pytest.raises(InvalidInput, match="no Ray cluster answers"):
        next(RayEngine(address=form.format(port)).map(abs, [1]))
    assert time.monotonic() - begin < 10


def test_no_shards_need_no_cluster() -> None:
    assert list(RayEngine(address="127.0.0.1:1").map(abs, [])) == []


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InvalidInput, match=r"hush\[ray\]"):
        next(RayEngine().map(abs, [1]))


@pytest.mark.parametrize("wrong", ["nowhere", "http://host:1", "ray://host", "ray://host:port", "", ":6379"])
def test_addresses_that_cannot_be_meant_are_refused(wrong: str) -> None:
    with pytest.raises(InvalidInput, match="address="):
        RayEngine(address=wrong)


def test_workers_are_at_least_one() -> None:
    with pytest.raises(InvalidInput, match="workers=0"):
        RayEngine(workers=0)
