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
    """A machine, its engine, its disk and its cable. Its state is in files, so any process may have one."""

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
        """Run a command as one who is logged in there: the node's hostname, network, processes and docker."""
        argv = shlex.split(words) if isinstance(words, str) else words
        done = self.machine.run(*argv, environment=self.engine.environment(), within_s=within_s)
        if check and done.returncode:
            output = (done.stderr or done.stdout).strip()
            raise LabError(
                f"{self.name}: `{shlex.join(map(str, argv))}` ended with {done.returncode}: {output}"
            )
        return done

    def power_on(self) -> None:
        """Switch the machine on: a cable, a fresh /run, the engine on the data of before."""
        if not self.machine.is_on:
            self.machine.power_on()
            self.switch.connect(self.number, self.machine.first())
        self.disk.mount()
        self.engine.start()

    def kill(self) -> None:
        """Pull the power cord: every process dies, and nobody at the other end of a connection is told."""
        if self.machine.is_on:
            self.switch.set_cable(self.number, False)
        self._take_away()

    def restart_daemon(self) -> None:
        """Restart the engine as an update does; its containers end."""
        self.engine.stop()
        self.engine.start()

    def kill_daemon(self) -> None:
        """Kill the engine, not what it runs, and start it again, as the machine's init does."""
        self.engine.kill()
        self.engine.start()

    def cut(self) -> None:
        """Pull the network cable."""
        self.switch.set_cable(self.number, False)

    def plug(self) -> None:
        """Put the network cable back."""
        self.switch.set_cable(self.number, True)

    def freeze(self) -> None:
        """Freeze all processes, the engine's and the containers'."""
        self.machine.group.freeze()

    def thaw(self) -> None:
        """Let all processes go on."""
        self.machine.group.thaw()

    def limit_rate(self, mbit: float) -> None:
        """Make the cable this slow, in both directions; a machine switched on anew has a fast one."""
        self.switch.set_rate(self.number, self.machine.first(), mbit)

    def unlimit(self) -> None:
        self.switch.set_rate(self.number, self.machine.first(), None)

    def bytes_sent(self) -> int:
        """Return how many bytes left through the cable since the machine was switched on."""
        return self.switch.counted(self.machine.first())[0]

    def bytes_received(self) -> int:
        """Return how many bytes came through the cable since the machine was switched on."""
        return self.switch.counted(self.machine.first())[1]

    def fill_disk(self, leave_bytes: int = 0) -> None:
        """Fill the engine's disk but for `leave_bytes`; for labs made with `disk_mb`."""
        self.disk.fill(leave_bytes)

    def free_disk(self) -> None:
        self.disk.free()

    def reset(self) -> None:
        """Have nothing on the engine but images."""
        self.run(["docker", "swarm", "leave", "--force"], check=False)
        wait_for(self._without_containers, f"{self.name} to lose its containers", 60, 0.2)
        self.run(["docker", "volume", "prune", "--all", "--force"])
        self.run(["docker", "network", "prune", "--force"])

    def _without_containers(self) -> bool:
        # Those of a Swarm go by themselves, some of them while this looks.
        listed = "docker ps --all --quiet"
        self.run(["sh", "-c", f"{listed} | xargs --no-run-if-empty docker rm --force --volumes"], check=False)
        return not self.run(listed).stdout

    def remove(self) -> None:
        self._take_away()
        self.disk.remove()

    def _take_away(self) -> None:
        self.machine.power_off()
        self.engine.forget()
