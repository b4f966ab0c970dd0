"""One Docker Engine on a machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import docker
from docker.errors import DockerException

from .machine import Machine
from .paths import cache_folder, engine_folder, search_path
from .processes import LabError, end, process_of, run, start, wait_for

_RUNTIME = """#!/bin/sh
for word; do
    [ "$before" = --bundle ] && sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$word/config.json"
    before=$word
done
exec {runc} "$@"
"""


class Engine:
    """dockerd and the containerd that it starts."""

    def __init__(self, machine: Machine, data: Path, options: Sequence[str]) -> None:
        self.machine = machine
        self.data = data
        self.socket = machine.folder / "docker.sock"
        self.log = machine.folder / "dockerd.log"
        self._record = machine.folder / "dockerd"
        self._options = tuple(options)

    @property
    def runs(self) -> bool:
        return process_of(self._record) is not None

    def environment(self) -> dict[str, str]:
        """Return the environment variables for commands on this engine."""
        return {**os.environ, "PATH": search_path(), "DOCKER_HOST": f"unix://{self.socket}"}

    def client(self, timeout_s: float = 120) -> docker.APIClient:
        """Return a connection to the engine; the caller closes it."""
        return docker.APIClient(base_url=f"unix://{self.socket}", version="auto", timeout=int(timeout_s))

    def docker(self, *words: str | Path) -> str:
        """Run a command of Docker's own client on this engine."""
        return run("docker", *words, environment=self.environment())

    def start(self, within_s: float = 60) -> None:
        """Start the engine and wait until it answers."""
        if not self.runs:
            self.data.mkdir(parents=True, exist_ok=True)
            command = self.machine.inside("dockerd", *self._arguments())
            start(command, self._record, self.log, {**os.environ, "PATH": search_path()})
        try:
            wait_for(self._answers, f"the engine of {self.machine.hostname}", within_s)
        except LabError as error:
            raise LabError(f"{error}; {self.log} ends with: {self.log.read_text()[-2000:]}") from None

    def stop(self, within_s: float = 60) -> None:
        """Stop the engine, as a reboot or an update does; its containers end, too."""
        self._signal("TERM", within_s)

    def kill(self) -> None:
        """Kill only the engine's daemon, as the kernel does if memory is short; `start` starts it again."""
        self._signal("KILL", 30)

    def forget(self) -> None:
        """Remove what the engine left outside of its machine. The machine must be off."""
        end(self._record)
        self.socket.unlink(missing_ok=True)

    def _signal(self, name: str, within_s: float) -> None:
        """Signal the daemon and wait for its end. The recorded process is only its parent."""
        command = ("sh", "-c", f"kill -{name} $(cat /run/docker.pid)")
        result = self.machine.run(*command, environment=self.environment())
        if result.returncode:
            raise LabError(f"the engine of {self.machine.hostname} took no SIG{name}: {result.stderr}")
        wait_for(lambda: not self.runs, f"the engine of {self.machine.hostname} to end", within_s)

    def _arguments(self) -> list[str]:
        # Commands and mounts use the second socket, at the usual path; each machine has its own /run.
        return [
            f"--data-root={self.data}",
            f"--host=unix://{self.socket}",
            "--host=unix:///run/docker.sock",
            f"--cgroup-parent=/{self.machine.group.name}",
            f"--init-path={engine_folder()}/usr/bin/tini-static",
            *self._options,
        ]

    def _answers(self) -> bool:
        if not self.runs:
            raise LabError(f"the engine of {self.machine.hostname} ended")
        try:
            with self.client(timeout_s=5) as client:
                return bool(client.ping())
        except DockerException:
            return False


def for_kubelet(network: str) -> list[str]:
    """Return the options of an engine whose containers a kubelet starts, with addresses of this network.

    Pods reach each other without address translation. A sandbox wants a smaller OOM score than its parent,
    which takes a right that a lab's machine may not have: a wrapper leaves it as it is.
    """
    host = network.replace(".0/", ".1/")
    return [
        f"--bip={host}",
        "--iptables=false",
        "--ip-masq=false",
        "--default-runtime=patient",
        f"--add-runtime=patient={_runtime()}",
    ]


def _runtime() -> Path:
    path = cache_folder() / "runc-without-oom-score"
    runc = shutil.which("runc", path=search_path())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_RUNTIME.format(runc=runc or "runc"))
    path.chmod(0o755)
    return path
