"""Three hosts on a switch whose cables have a limited rate: network namespaces of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HOSTS = 3
_PORT = 29511


@dataclass(frozen=True)
class Hosts:
    """The namespaces `NAME-0` to `NAME-2`, and the switch's, `NAME`."""

    name: str

    def set_rate(self, mbit: float | None) -> None:
        """Limit each cable in both directions; None: no limit."""
        for number in range(HOSTS):
            for space, device in ((self.space(number), "eth0"), (self.name, f"port{number}")):
                shape = ("tbf", "rate", f"{mbit or 0:g}mbit", "burst", "256kb", "latency", "50ms")
                words = shape if mbit else ("pfifo",)
                _run("ip", "netns", "exec", space, "tc", "qdisc", "replace", "dev", device, "root", *words)

    def sent_bytes(self, number: int) -> int:
        found = _run("ip", "-n", self.space(number), "-s", "-j", "link", "show", "dev", "eth0")
        return json.loads(found)[0]["stats64"]["tx"]["bytes"]

    def run(
        self,
        script: Path,
        words: Sequence[str],
        environ: Mapping[str, str] | None = None,
        count: int = HOSTS,
    ) -> list[str]:
        """Run a script as one rank on each of the first `count` hosts; return what each printed to stdout."""
        more = {"WORLD_SIZE": str(count), **(environ or {})}
        ranks = [self._start(number, script, words, more) for number in range(count)]
        try:
            printed = [rank.communicate(timeout=1800)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        if any(rank.returncode for rank in ranks):
            raise SystemExit(f"{script.name} {' '.join(words)} failed:\n" + "\n".join(printed))
        return printed

    def _start(
        self, number: int, script: Path, words: Sequence[str], environ: Mapping[str, str]
    ) -> subprocess.Popen[str]:
        places = {
            "RANK": str(number),
            "LOCAL_RANK": "0",
            "GROUP_RANK": str(number),
            "WORLD_SIZE": str(HOSTS),
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(_PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
        }
        environment = {**os.environ, **places, **environ}
        command = self.command(number, script, words)
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def command(self, number: int, script: Path, words: Sequence[str]) -> list[str]:
        """Return the command that runs a script on a host."""
        return ["ip", "netns", "exec", self.space(number), sys.executable, str(script), *words]

    def make(self) -> None:
        _run("ip", "netns", "add", self.name)
        _run("ip", "-n", self.name, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self.name, "link", "set", "bridge", "up")
        for number in range(HOSTS):
            host, port = self.space(number), f"port{number}"
            _run("ip", "netns", "add", host)
            _run("ip", "-n", self.name, "link", "add", port, "type", "veth", "peer", "eth0", "netns", host)
            _run("ip", "-n", self.name, "link", "set", port, "master", "bridge", "up")
            _run("ip", "-n", host, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            _run("ip", "-n", host, "link", "set", "eth0", "up")
            _run("ip", "-n", host, "link", "set", "lo", "up")

    def remove(self) -> None:
        for space in (self.name, *map(self.space, range(HOSTS))):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def space(self, number: int) -> str:
        """Return the name of a host's namespace."""
        return f"{self.name}-{number}"

    @staticmethod
    def address(number: int) -> str:
        return f"10.99.7.{number + 1}"


@contextmanager
def three_hosts() -> Iterator[Hosts]:
    """Make three hosts, and remove them at the end. Needs root."""
    hosts = Hosts(f"mcbench{os.getpid()}")
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
