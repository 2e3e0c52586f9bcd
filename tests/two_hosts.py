"""Two hosts on this machine: network namespaces joined by a cable, each with its own address and loopback.

What runs in one reaches the other by its address alone. Needs root and the program ``ip`` of iproute2; where they are
missing, tests are skipped.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, final

import pytest

NETWORK = "10.77.0"


@final
@dataclass(frozen=True, kw_only=True)
class Host:
    """One of the two: the name of its namespace, its address, and its network device."""

    name: str
    address: str
    device: str

    def command(self, arguments: Sequence[object]) -> list[str]:
        """What runs these arguments on this host."""
        return ["ip", "netns", "exec", self.name, *map(str, arguments)]

    def start(self, arguments: Sequence[object], **options: Any) -> subprocess.Popen[str]:
        """Start a program on this host; it talks to the other one through the cable."""
        environment = os.environ | {"GLOO_SOCKET_IFNAME": self.device} | options.pop("env", {})
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(self.command(arguments), env=environment, start_new_session=True, **pipes | options)

    def kill_all(self) -> None:
        """Kill what runs on this host."""
        for number in _ip("netns", "pids", self.name).split():
            with suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Two hosts with a cable between them; skips the test where there can be none."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip (Debian: apt-get install iproute2)")
    mark = f"{os.getpid() % 100_000}"
    hosts = tuple(
        Host(name=f"hush-{side}-{mark}", address=f"{NETWORK}.{number}", device=f"hush{side}{mark}")
        for number, side in enumerate("ab", start=1)
    )
    first, second = hosts
    try:
        try:
            for host in hosts:
                _ip("netns", "add", host.name)
            _ip("link", "add", first.device, "type", "veth", "peer", "name", second.device)
            for host in hosts:
                _ip("link", "set", host.device, "netns", host.name)
                _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.device)
                for device in (host.device, "lo"):
                    _ip("-n", host.name, "link", "set", device, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here ({error.stderr.strip()})")
        yield first, second
    finally:
        for host in hosts:  # its end of the cable goes with it
            with suppress(subprocess.CalledProcessError):
                host.kill_all()
                _ip("netns", "delete", host.name)


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout
