"""The engine for a Ray cluster: Ray Data applies the tasks of a scan, with the same results as on one machine.

Needs the extra ``hush[ray]``, here and on every machine of the cluster, and the corpus under the same paths on all of
them. Task, shards and results pass through Ray's object store, which may spill to the disks of the cluster, so the
cluster must be as private as the data. Errors and results of tasks do not reach Ray's logs.
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

from hush.errors import HushError, InvalidInput, Setting
from hush.scan.engines import available_cores

__all__ = ["RayEngine"]


Result = TypeVar("Result")

MAX_BLOCKS = 1000  # units of Ray's scheduling; with more shards, a unit holds several
MAX_ATTEMPTS = 3  # for a shard whose process dies
CONNECT_TIMEOUT_SECONDS = 5.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RayEngine:
    """A Ray cluster.

    address: "local" starts a cluster on this machine for the duration of the scan; "auto" connects to the one that runs
    on this machine; "HOST:PORT" or "ray://HOST:PORT" name another. By default the address in ``RAY_ADDRESS``, otherwise
    "local". If the program is already connected to a cluster, that one is used and stays connected. If the cluster
    requires a token, Ray reads it from its usual place. workers: shards processed at a time; by default one per core.
    uses_gpu: whether each shard is given a GPU, where the cluster has any.
    """

    address: str | None = None
    workers: int | None = None
    uses_gpu: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise InvalidInput("pass a number of processes, 1 or more", setting="workers", value=self.workers)
        if self.address is not None:
            _host_and_port(self.address)

    @contextmanager
    def connected(self) -> Iterator[None]:
        """Connects to the cluster for the duration of the context; without it, ``map`` connects by itself.

        A local cluster takes seconds to start, so use one context for several maps.
        """
        ray = _import_ray()
        if ray.is_initialized():
            yield
            return
        address = self.address or os.environ.get("RAY_ADDRESS") or "local"
        place = _host_and_port(address)
        if place is not None:  # Ray itself would retry for a long time
            try:
                socket.create_connection(place, timeout=CONNECT_TIMEOUT_SECONDS).close()
            except OSError as error:
                raise InvalidInput(
                    f"no Ray cluster answers at {address} ({error}); check the address, or start a cluster"
                ) from None
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address == "local":
            options |= {"num_cpus": self.workers or available_cores(), "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports about scans
        try:
            ray.init(address, **options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            ray.shutdown()
            raise InvalidInput(
                f"Ray could not connect to {address} ({type(error).__name__}); check that a cluster with the same "
                "versions of Python and Ray runs there, and that this process has its token if it requires one"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()

    def map(self, task: Callable[[Any], Result], shards: Sequence[Any]) -> Iterator[Result]:
        """See ``Engine.map``. Ray's object store bounds the number of buffered results."""
        ray = _import_ray()
        if not shards:
            return
        payload = pickle.dumps((task, tuple(shards)))
        with self.connected(), _quiet("ray.data"):
            # Ray Data does not run through a Ray client connection, so a process of the cluster runs it instead.
            run = _outcomes_through_client if ray.util.client.ray.is_connected() else _outcomes
            with closing(run(payload, len(shards), self.workers, self.uses_gpu)) as outcomes:
                try:
                    yield from _results(outcomes, len(shards))
                except (ray.exceptions.RayError, ray.data.exceptions.SystemException) as error:
                    raise HushError(
                        f"the Ray cluster could not finish the work ({type(error).__name__}); check that it runs, and "
                        "that the same version of hush is installed on all its machines"
                    ) from None


def _results(outcomes: Iterator[dict[str, Any]], count: int) -> Iterator[Any]:
    """The results of the outcomes; an error is raised as the task raised it."""
    for expected in range(count):
        outcome = next(outcomes, None)
        if outcome is None or outcome["shard"] != expected:
            raise HushError(f"Ray lost the result of shard {expected} of {count}; scan again")
        done, value = pickle.loads(outcome["outcome"])
        if not done:
            raise value
        yield value


def _outcomes(payload: bytes, count: int, workers: int | None, uses_gpu: bool) -> Generator[dict[str, Any], None, None]:
    """The number and pickled outcome of each shard, in order, as the cluster finishes them."""
    ray = _import_ray()
    attempts = ray.remote(num_cpus=0)(_AttemptCounter).remote()
    blocks = min(count, MAX_BLOCKS)
    numbers = ray.data.from_items([{"shard": k} for k in range(count)], override_num_blocks=blocks)
    numbers.context.execution_options.preserve_order = True
    numbers.context.enable_progress_bars = False
    outcomes = numbers.map_batches(
        _run_shard,
        batch_size=1,
        fn_args=(ray.put(payload), attempts),
        num_cpus=1,
        num_gpus=1 if uses_gpu and ray.cluster_resources().get("GPU", 0) >= 1 else None,
        compute=ray.data.TaskPoolStrategy(size=None if workers is None else min(workers, blocks)),
    )
    yield from outcomes.iter_rows()


def _outcomes_through_client(
    payload: bytes, count: int, workers: int | None, uses_gpu: bool
) -> Generator[dict[str, Any], None, None]:
    """The same, run by a process of the cluster that returns the outcomes one by one."""
    ray = _import_ray()
    driver = ray.remote(num_cpus=0)(_ClusterDriver).remote(payload, count, workers, uses_gpu)
    try:
        while (outcome := ray.get(driver.next.remote())) is not None:
            yield outcome
    finally:
        ray.kill(driver)


@final
class _ClusterDriver:
    """Runs Ray Data inside the cluster for a Ray client."""

    def __init__(self, payload: bytes, count: int, workers: int | None, uses_gpu: bool) -> None:
        self.outcomes = _outcomes(payload, count, workers, uses_gpu)

    def next(self) -> dict[str, Any] | None:
        with _quiet("ray.data"):
            return next(self.outcomes, None)


@final
class _AttemptCounter:
    """Counts the attempts of each shard: Ray Data would retry a shard that kills its process forever."""

    def __init__(self) -> None:
        self._attempts: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """Counts an attempt of this shard, and returns how many there were."""
        self._attempts[number] += 1
        return self._attempts[number]


_received: dict[Any, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {}  # of a worker process: its last task


def _run_shard(batch: Any, payload: Any, attempts: Any) -> Any:
    """Runs the task on one shard, in a worker process of the cluster, which loads the task once.

    The outcome is returned as bytes, also if it is an error: Ray would print its message and source lines.
    """
    import pyarrow as pa

    ray = _import_ray()
    number = int(batch["shard"][0])
    try:
        if ray.get(attempts.begin.remote(number)) > MAX_ATTEMPTS:
            raise HushError(
                f"the process of task {number} died {MAX_ATTEMPTS} times, perhaps because memory ran out; lower ",
                Setting("workers"),
                ", or use machines with more memory",
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
        pickle.loads(written)  # some errors can be pickled but not unpickled
    except Exception:
        kind = type(error).__name__
        return pickle.dumps((False, HushError(f"the task failed with {kind}, which cannot be sent between processes")))
    return written


def _import_ray() -> Any:
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise InvalidInput('a cluster needs Ray; pip install "hush[ray]"') from error
    return ray


def _host_and_port(address: str) -> tuple[str, int] | None:
    """Host and port of the cluster; None for one on this machine."""
    if address in ("local", "auto"):
        return None
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        if parts.scheme in ("", "ray") and parts.hostname and parts.port:
            return parts.hostname, parts.port
    except ValueError:  # a port that is not a number
        pass
    raise InvalidInput(
        'pass "local", "auto", "HOST:PORT" or "ray://HOST:PORT" as the address of a cluster',
        setting="ray_address",
        value=address,
    )


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Silences a logger; errors are raised anyway."""
    log = logging.getLogger(logger)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
