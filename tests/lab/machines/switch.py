"""The lab's network: a switch with a cable to each machine and one to the root namespace."""

from __future__ import annotations

import json
from pathlib import Path

from .processes import LabError, end, process_of, run, start, wait_for

_ROOT_HOST = 254


class Switch:
    """A bridge in a network namespace; machine N is at SUBNET.N, the root namespace at SUBNET.254.

    Processes hold the namespaces, not names in /run/netns: when a machine dies, its network goes with it.
    """

    def __init__(self, name: str, subnet: str, folder: Path) -> None:
        self._root_device = f"minilab-{name}"
        self._record = folder / "switch"
        self._subnet = subnet
        self.root_address = self.address(_ROOT_HOST)

    def address(self, number: int) -> str:
        return f"{self._subnet}.{number}"

    def make(self) -> None:
        """Make the switch and its cable to the root namespace."""
        start(["unshare", "--net", "--", "sleep", "infinity"], self._record, self._record.with_suffix(".log"))
        switch = self._process()
        own = Path("/proc/self/ns/net").readlink()
        wait_for(lambda: Path(f"/proc/{switch}/ns/net").readlink() != own, "the switch's namespace", 60)
        _ip(switch, "link", "add", "bridge", "type", "bridge")
        _ip(switch, "link", "set", "bridge", "up")
        run("ip", "link", "add", self._root_device, "type", "veth", "peer", "port-root", "netns", str(switch))
        _ip(switch, "link", "set", "port-root", "master", "bridge", "up")
        run("ip", "address", "add", f"{self.root_address}/24", "dev", self._root_device)
        run("ip", "link", "set", self._root_device, "up")

    def connect(self, number: int, machine: int) -> None:
        """Connect a machine, given by its first process, and set its address."""
        switch, port = self._process(), _port(number)
        self._unplug_for_good(number)
        _ip(machine, "link", "set", "lo", "up")
        _ip(switch, "link", "add", port, "type", "veth", "peer", "eth0", "netns", str(machine))
        _ip(machine, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        _ip(machine, "link", "set", "eth0", "up")
        _ip(switch, "link", "set", port, "master", "bridge", "up")
        _in(machine, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")

    def set_cable(self, number: int, plugged: bool) -> None:
        _ip(self._process(), "link", "set", _port(number), "up" if plugged else "down")

    def set_rate(self, number: int, machine: int, mbit: float | None) -> None:
        """Limit a cable's rate in both directions; None: remove the limits."""
        for process, device in ((machine, "eth0"), (self._process(), _port(number))):
            if mbit is not None:
                shape = ("tbf", "rate", f"{mbit:g}mbit", "burst", "256kb", "latency", "50ms")
                _in(process, "tc", "qdisc", "replace", "dev", device, "root", *shape)
            elif "tbf" in _in(process, "tc", "qdisc", "show", "dev", device):
                _in(process, "tc", "qdisc", "del", "dev", device, "root")

    def counted(self, machine: int) -> tuple[int, int]:
        """Return the bytes that a machine sent and received since it was switched on."""
        data = json.loads(_ip(machine, "-s", "-j", "link", "show", "dev", "eth0"))[0]["stats64"]
        return data["tx"]["bytes"], data["rx"]["bytes"]

    def remove(self) -> None:
        """Remove the switch and its cables."""
        if Path("/sys/class/net", self._root_device).exists():
            run("ip", "link", "del", self._root_device)
        end(self._record)

    def _unplug_for_good(self, number: int) -> None:
        """Remove the cable of a dead machine, whose namespace lasts a little longer than its last process."""
        if _port(number) in _ip(self._process(), "-o", "link"):
            _in(self._process(), "sh", "-c", f"ip link del {_port(number)} 2>/dev/null || true")

    def _process(self) -> int:
        pid = process_of(self._record)
        if pid is None:
            raise LabError(f"the switch of {self._root_device} is gone; make the lab anew")
        return pid


def _port(number: int) -> str:
    return f"port{number}"


def _in(process: int, *words: str) -> str:
    return run("nsenter", f"--net=/proc/{process}/ns/net", *words)


def _ip(process: int, *words: str) -> str:
    return _in(process, "ip", *words)
