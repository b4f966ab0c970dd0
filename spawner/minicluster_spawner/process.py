"""Notebook servers as processes of this machine, for `./run`.

It needs no system users: every server runs as the hub's user, with its own home. This does not protect
users' files from each other; a shared lab needs a spawner with containers.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from subprocess import DEVNULL
from typing import IO, Any

import psutil
from jupyterhub.spawner import LocalProcessSpawner
from traitlets import Bool, Float, Unicode, default

from minicluster_hub.engines.local.homes import folder_name, home_of
from minicluster_hub.support.processes import DATA_LABEL, SERVER_LABEL, end_all, end_one, labelled, matches
from minicluster_spawner.failure import StartFailed
from minicluster_spawner.homes import examples_dir, make_home
from minicluster_spawner.server import SERVER_ARGUMENTS

_LOG_KEPT_BYTES = 2**22
_LOOK_AGAIN_S = 0.05

PACKAGE = "minicluster"
EXTRAS = ("hub", "notebook", "train", "fault-tolerant")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)['\"]")


class ProcessSpawner(LocalProcessSpawner):
    """One process group per notebook server, with a label in its environment to find it again."""

    data_dir = Unicode("data", help="The cluster's data folder; it has homes/ and hub/servers/.").tag(
        config=True
    )
    examples = Unicode(help="Folder whose notebooks are copied once into each home; empty: none.").tag(
        config=True
    )
    hide_gpus = Bool(
        True,
        help="Hide GPUs from notebooks, so that jobs find them free. False: a notebook can use a job's GPU.",
    ).tag(config=True)
    stop_grace_s = Float(
        5.0, help="Seconds that a server gets to save and end its kernels; more makes Stop slower."
    ).tag(config=True)

    @default("examples")
    def _examples_default(self) -> str:
        return str(examples_dir())

    @default("cmd")
    def _cmd_default(self) -> list[str]:
        # -P: otherwise a file random.py in the home would be imported instead of the module.
        return [sys.executable, "-P", "-m", "minicluster_spawner.server"]

    @default("args")
    def _args_default(self) -> list[str]:
        # Jupyter refuses to run as root without this option; the server has the hub's user.
        as_root = ["--ServerApp.allow_root=True"] if os.getuid() == 0 else []
        return [*as_root, *SERVER_ARGUMENTS]

    @property
    def home(self) -> Path:
        return home_of(Path(self.data_dir).absolute(), self.user.name)

    @property
    def server_log(self) -> Path:
        return Path(self.data_dir).absolute() / "hub" / "servers" / f"{folder_name(self.user.name)}.log"

    @property
    def constraints(self) -> Path:
        return Path(self.data_dir).absolute() / "hub" / "constraints.txt"

    @property
    def labels(self) -> dict[str, str]:
        return {
            DATA_LABEL: str(Path(self.data_dir).absolute()),
            SERVER_LABEL: f"{folder_name(self.user.name)}/{self.name}",
        }

    def user_env(self, env: dict[str, str]) -> dict[str, str]:
        """Give the server its user's home, this environment's programs, and the labels."""
        programs = str(Path(sys.executable).parent)
        env.update(USER=self.user.name, HOME=str(self.home), SHELL="/bin/bash", **self.labels)
        env["PATH"] = os.pathsep.join([programs, env.get("PATH", os.defpath)])
        env["PIP_CONSTRAINT"] = for_pip(self.constraints, env.get("PIP_CONSTRAINT", ""))
        if self.hide_gpus:
            env.setdefault("CUDA_VISIBLE_DEVICES", "")
        return env

    def make_preexec_fn(self, name: str) -> Any:
        """Return no function: the server runs as the hub's user."""
        return None

    async def move_certs(self, paths: dict[str, str]) -> dict[str, str]:
        """Return the same paths of internal certificates: the server is the same user, and can read them."""
        return paths

    async def start(self) -> tuple[str, int]:
        """Make the home and start the server in it; its output goes to its own file."""
        make_home(self.home, Path(self.examples) if self.examples else None)
        await asyncio.to_thread(write_constraints, self.constraints)
        configured = self.popen_kwargs
        with self._open_log() as log:
            ours = {"cwd": str(self.home), "umask": 0o077, "stdin": DEVNULL, "stdout": log, "stderr": log}
            self.popen_kwargs = ours | dict(configured or {})
            try:
                address = await super().start()
            finally:
                self.popen_kwargs = configured
        await self._wait_listening(*address)
        return address

    async def _wait_listening(self, host: str, port: int) -> None:
        """Return when the server accepts connections. Raises StartFailed if it ends before."""
        while not _listens(host, port):
            if (code := await self.poll()) is not None:
                raise StartFailed(
                    f"The notebook server ended at its start (exit code {code}). Its log: {self.server_log}",
                    reason="ended_at_start",
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _open_log(self) -> IO[bytes]:
        self.server_log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.server_log.exists() and self.server_log.stat().st_size > _LOG_KEPT_BYTES:
            self.server_log.replace(self.server_log.with_suffix(".log.1"))
        return self.server_log.open("ab")

    async def poll(self) -> int | None:
        """Return None while the server runs (after a hub restart: the process with our label)."""
        if self.proc is not None:
            return await super().poll()
        if self._found() is not None:
            return None
        self.clear_state()
        return 0

    def _found(self) -> psutil.Process | None:
        """Return the process with the server's id, unless another process has that id by now."""
        try:
            process = psutil.Process(self.pid) if self.pid else None
        except psutil.Error:
            return None
        return process if process and matches(process, labelled(**self.labels)) else None

    async def stop(self, now: bool = False) -> None:
        """End the server gracefully, then all processes that its kernels and terminals left."""
        grace_s = 0.5 if now else self.stop_grace_s
        if server := self._found():
            await asyncio.to_thread(end_one, server, grace_s)
        await asyncio.to_thread(end_all, labelled(**self.labels), 1.0)
        await self.poll()


def _listens(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        return probe.connect_ex((host, port)) == 0


# Notebooks and the hub share one Python, so `%pip install` must not replace the packages that they all use:
# `pip install torchvision` would install another torch for everybody on this cluster. pip reads the file as
# constraints: it installs versions that fit, or reports what does not.


def pins() -> Iterator[str]:
    """Yield the installed version of each package that Minicluster requires."""
    for requirement in metadata.requires(PACKAGE) or ():
        extra, name = _EXTRA.search(requirement), _NAME.match(requirement)
        if name is None or (extra is not None and extra[1] not in EXTRAS):
            continue
        try:
            yield f"{name[0]}=={metadata.version(name[0])}"
        except metadata.PackageNotFoundError:
            continue


def write_constraints(file: Path) -> None:
    """Write the constraints for pip. The file is replaced atomically, since a pip may be reading it."""
    # Each call has its own file name: a whole class starts its servers in the same second.
    new = file.with_suffix(f".{secrets.token_hex(8)}")
    new.write_text("\n".join(["# What the cluster itself runs on.", *sorted(set(pins())), ""]))
    new.replace(file)


def for_pip(file: Path, others: str = "") -> str:
    """Return PIP_CONSTRAINT. pip splits it at spaces, so the path is given as a URL."""
    return f"{others} {file.absolute().as_uri()}".strip()
