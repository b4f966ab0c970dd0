"""One Docker host of the lab, and its faults."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import docker

from .disk import Disk
from .engine import Engine
from .machine import Machine
from .processes import LabError, wait_for
from .switch import Switch


@dataclass(frozen=True)
class Node:
    """A machine, its engine, its disk and its cable. State is in files, so any process can control a node."""

    number: int
    machine: Machine
    engine: Engine
    disk: Disk
    switch: Switch

    @property
    def name(self) -> str:
        return self.machine.hostname

    @property
    def address(self) -> str:
        return self.switch.address(self.number)

    @property
    def socket(self) -> Path:
        return self.engine.socket

    def docker(self, timeout_s: float = 120) -> docker.APIClient:
        """Return a connection to the engine; the caller closes it (`with node.docker() as client`)."""
        return self.engine.client(timeout_s)

    def run(
        self, words: Sequence[str | Path] | str, *, check: bool = True, within_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user logged in on the node: with its hostname, network, processes and docker."""
        argv = shlex.split(words) if isinstance(words, str) else words
        done = self.machine.run(*argv, environment=self.engine.environment(), within_s=within_s)
        if check and done.returncode:
            output = (done.stderr or done.stdout).strip()
            raise LabError(
                f"{self.name}: `{shlex.join(map(str, argv))}` ended with {done.returncode}: {output}"
            )
        return done

    def power_on(self) -> None:
        """Switch the machine on, with a cable, a new /run, and the engine on its former data."""
        if not self.machine.is_on:
            self.machine.power_on()
            self.switch.connect(self.number, self.machine.first())
        self.disk.mount()
        self.engine.start()

    def kill(self) -> None:
        """Pull the power cord: all processes die, and no connection is closed."""
        if self.machine.is_on:
            self.switch.set_cable(self.number, False)
        self._take_away()

    def restart_daemon(self) -> None:
        """Restart the engine, as an update does; its containers end."""
        self.engine.stop()
        self.engine.start()

    def kill_daemon(self) -> None:
        """Kill the engine, but not its containers, and start it again, as the machine's init does."""
        self.engine.kill()
        self.engine.start()

    def cut(self) -> None:
        """Pull the network cable."""
        self.switch.set_cable(self.number, False)

    def plug(self) -> None:
        """Put the network cable back."""
        self.switch.set_cable(self.number, True)

    def freeze(self) -> None:
        """Freeze all processes of the engine and of containers."""
        self.machine.group.freeze()

    def thaw(self) -> None:
        """Thaw all processes."""
        self.machine.group.thaw()

    def limit_rate(self, mbit: float) -> None:
        """Limit the cable's rate in both directions, until the machine is switched on again."""
        self.switch.set_rate(self.number, self.machine.first(), mbit)

    def unlimit(self) -> None:
        self.switch.set_rate(self.number, self.machine.first(), None)

    def bytes_sent(self) -> int:
        """Return the bytes sent over the cable since the machine was switched on."""
        return self.switch.counted(self.machine.first())[0]

    def bytes_received(self) -> int:
        """Return the bytes received over the cable since the machine was switched on."""
        return self.switch.counted(self.machine.first())[1]

    def fill_disk(self, leave_bytes: int = 0) -> None:
        """Fill the engine's disk except for `leave_bytes`; for labs made with `disk_mb`."""
        self.disk.fill(leave_bytes)

    def free_disk(self) -> None:
        self.disk.free()

    def reset(self) -> None:
        """Remove all but images from the engine."""
        self.run(["docker", "swarm", "leave", "--force"], check=False)
        wait_for(self._without_containers, f"{self.name} to lose its containers", 60, 0.2)
        self.run(["docker", "volume", "prune", "--all", "--force"])
        self.run(["docker", "network", "prune", "--force"])

    def _without_containers(self) -> bool:
        # Containers of a Swarm end by themselves, some of them during this call.
        listed = "docker ps --all --quiet"
        self.run(["sh", "-c", f"{listed} | xargs --no-run-if-empty docker rm --force --volumes"], check=False)
        return not self.run(listed).stdout

    def remove(self) -> None:
        self._take_away()
        self.disk.remove()

    def _take_away(self) -> None:
        self.machine.power_off()
        self.engine.forget()
