"""A cluster: the work of a scan on Ray Data, with the same results as on one machine.

Needs the extra ``hush[ray]``, here and on every machine of the cluster, and the corpus under the same paths on all of
them. Task, shards and results pass through Ray's object store, which may spill to the disks of the cluster: a cluster
that scans is as private as the data. The task's errors and results reach none of Ray's logs.
"""

import logging
import os
import pickle
import socket
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, final
from urllib.parse import urlsplit

from hush.errors import HushError, InvalidInput
from hush.scan.engines import available_cores

__all__ = ["RayEngine"]


Result = TypeVar("Result")

MOST_BLOCKS = 1000  # units of Ray's scheduling; more shards than that go several to a unit
TRIES = 3  # of a shard whose process dies
PATIENCE = 5.0  # seconds for a cluster to answer at all


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RayEngine:
    """A Ray cluster.

    address: "local" starts one on this machine for as long as it is used; "auto" finds the one that runs on this
    machine; "HOST:PORT" or "ray://HOST:PORT" name another. By default the one of ``RAY_ADDRESS``, or else a local one.
    A cluster that the program is connected to already is used whatever the address, and left as it is. The token of
    a cluster that asks for one is read by Ray, from where it always looks. workers: how many shards at a time; by
    default as many as there are cores.
    """

    address: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise InvalidInput(f"workers={self.workers!r} is not a number of processes; pass 1 or more")
        if self.address is not None:
            _host_and_port(self.address)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connected to the cluster for as long as the context lasts; ``map`` does it by itself for as long as it runs.

        A local cluster takes seconds to start, so enter this once around several maps.
        """
        ray = _library()
        if ray.is_initialized():
            yield
            return
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        place = _host_and_port(address)
        if place is not None:  # Ray itself would go on trying
            try:
                socket.create_connection(place, timeout=PATIENCE).close()
            except OSError as error:
                raise InvalidInput(
                    f"no Ray cluster answers at {address} ({error}); check address, or start one"
                ) from None
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            options |= {"num_cpus": self.workers or available_cores(), "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what is scanned, and how much, is nobody's business
        try:
            ray.init(address, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            ray.shutdown()
            raise InvalidInput(
                f"Ray could not connect to {address} ({type(error).__name__}); check that a cluster runs there, with "
                "the same versions of Python and Ray, and that this process has its token if it asks for one"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()

    def map(self, task: Callable[[Any], Result], shards: Sequence[Any]) -> Iterator[Result]:
        """See ``Engine.map``. What waits to be taken is bounded by Ray's object store."""
        ray = _library()
        if not shards:
            return
        payload = pickle.dumps((task, tuple(shards)))
        with self.connected(), _quiet("ray.data"):
            # Ray Data does not run at the far end of a client's connection, so there the cluster does it for us.
            rows = _outcomes_from_afar if ray.util.client.ray.is_connected() else _outcomes
            with closing(rows(payload, len(shards), self.workers)) as outcomes:
                try:
                    yield from _results(outcomes, len(shards))
                except (ray.exceptions.RayError, ray.data.exceptions.SystemException) as error:
                    raise HushError(
                        f"the Ray cluster could not finish the scan ({type(error).__name__}); check that it runs, and "
                        "that the same version of hush is installed on all its machines"
                    ) from None


def _results(outcomes: Iterator[dict[str, Any]], count: int) -> Iterator[Any]:
    """The results in the outcomes; an error is raised as the task raised it."""
    for expected in range(count):
        outcome = next(outcomes, None)
        if outcome is None or outcome["shard"] != expected:
            raise HushError(f"Ray lost the result of shard {expected} of {count}; scan again")
        done, value = pickle.loads(outcome["outcome"])
        if not done:
            raise value
        yield value


def _outcomes(payload: bytes, count: int, workers: int | None) -> Generator[dict[str, Any], None, None]:
    """Each shard's number and outcome, in order, as the cluster gets on with them."""
    ray = _library()
    beginnings = ray.remote(num_cpus=0)(_Beginnings).remote()
    blocks = min(count, MOST_BLOCKS)
    numbers = ray.data.from_items([{"shard": k} for k in range(count)], override_num_blocks=blocks)
    numbers.context.execution_options.preserve_order = True
    numbers.context.enable_progress_bars = False
    outcomes = numbers.map_batches(
        _work,
        batch_size=1,
        fn_args=(ray.put(payload), beginnings),
        num_cpus=1,
        compute=ray.data.TaskPoolStrategy(size=None if workers is None else min(workers, blocks)),
    )
    yield from outcomes.iter_rows()


def _outcomes_from_afar(payload: bytes, count: int, workers: int | None) -> Generator[dict[str, Any], None, None]:
    """The same, with a process of the cluster in charge; it hands the outcomes over one by one."""
    ray = _library()
    deputy = ray.remote(num_cpus=0)(_Deputy).remote(payload, count, workers)
    try:
        while (outcome := ray.get(deputy.next.remote())) is not None:
            yield outcome
    finally:
        ray.kill(deputy)


@final
class _Deputy:
    def __init__(self, payload: bytes, count: int, workers: int | None) -> None:
        self.outcomes = _outcomes(payload, count, workers)

    def next(self) -> dict[str, Any] | None:
        with _quiet("ray.data"):
            return next(self.outcomes, None)


@final
class _Beginnings:
    """Counts how often each shard was begun: Ray Data would try one that kills its process for ever."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        self.times[number] += 1
        return self.times[number]


_received: dict[Any, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {}  # in a process of the cluster: its last task


def _work(batch: Any, payload: Any, beginnings: Any) -> Any:
    """One shard, in a process of the cluster; the task comes once to each of them.

    The outcome goes back as bytes, an error too: Ray would print its message and its lines of source.
    """
    import pyarrow as pa

    ray = _library()
    number = int(batch["shard"][0])
    try:
        if ray.get(beginnings.begin.remote(number)) > TRIES:
            raise HushError(
                f"shard {number} of the scan ended its process {TRIES} times, for lack of memory perhaps; take fewer "
                "workers, or machines with more memory"
            )
        if payload not in _received:
            _received.clear()
            _received[payload] = pickle.loads(ray.get(payload))
        task, shards = _received[payload]
        outcome = pickle.dumps((True, task(shards[number])))
    except Exception as error:
        outcome = _error_as_bytes(error)
    return pa.table({"shard": [number], "outcome": pa.array([outcome], pa.large_binary())})


def _error_as_bytes(error: Exception) -> bytes:
    try:
        written = pickle.dumps((False, error))
        pickle.loads(written)  # some errors can be written, but not read
    except Exception:
        kind = type(error).__name__
        return pickle.dumps((False, HushError(f"the task failed with {kind}, which cannot go between processes")))
    return written


def _library() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InvalidInput('scanning on a cluster needs Ray; pip install "hush[ray]"') from error
    return ray


def _host_and_port(address: str) -> tuple[str, int] | None:
    """Where the cluster listens; None for one on this machine."""
    if address in ("local", "auto"):
        return None
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        if parts.scheme in ("", "ray") and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:  # a port that is no number
        pass
    raise InvalidInput(f'address={address!r} is not "local", "auto", "HOST:PORT" or "ray://HOST:PORT"')


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Without the library's account of every step; what goes wrong is raised."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
