"""The agent's side of the zygote: starts it, requests forks, receives the exits of ranks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import site
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minicluster.runtime.settings import TOKEN_FILE

_MESSAGE_BYTES = 64 * 1024

log = logging.getLogger("minicluster.agent")


@dataclass
class ForkedChild:
    """A process forked by the zygote. `status`: as of waitpid; None if it was never forked.

    unwanted: to be killed as soon as it is forked.
    """

    name: str
    pid: int | None = None
    status: int | None = None
    refusal: str = ""
    unwanted: bool = False
    made: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class ZygoteClient:
    """The agent's handle of one zygote.

    `ready` is set once it can fork, `lost` when it has ended. `broken`: why it cannot fork, or "".
    """

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.pid = process.pid
        self.broken = ""
        self.ready = asyncio.Event()
        self.lost = asyncio.Event()
        self._process = process
        self._channel = channel
        self._children: dict[str, ForkedChild] = {}
        self._on_change: Callable[[], None] = lambda: None

    @classmethod
    def start(cls) -> ZygoteClient:
        """Start the zygote: the first thing to do, since it takes the longest."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = [str(theirs.fileno()), str(os.getpid())]
        # -P: a file of the user called torch.py must not be imported in torch's place.
        command = [sys.executable, "-P", "-m", "minicluster.runtime.rank.zygote", *arguments]
        environ = {name: value for name, value in os.environ.items() if name != TOKEN_FILE}
        with theirs:
            process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environ
            )
        return cls(process, ours)

    def listen(self, on_change: Callable[[], None]) -> None:
        """Read the zygote's messages in the running loop."""
        self._on_change = on_change
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel, self._receive)

    async def usable(self) -> None:
        """Wait until it can fork, or has ended (`broken`)."""
        waits = [asyncio.create_task(event.wait()) for event in (self.ready, self.lost)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def fork(self, name: str, order: dict[str, Any], fds: Sequence[int]) -> ForkedChild:
        """Request a child. Each request needs a new `name`."""
        child = self._children[name] = ForkedChild(name)
        message = json.dumps({"name": name, **order}).encode()
        try:
            socket.send_fds(self._channel, [message], fds)
        except OSError as error:
            self._refuse(child, f"the zygote (parent process of the ranks) does not answer: {error.strerror}")
        return child

    def kill(self, child: ForkedChild) -> None:
        """Kill a child; one that is not forked yet is killed once it is."""
        child.unwanted = True
        if child.pid and not child.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

    def wake(self) -> None:
        """Continue it if somebody stopped it: otherwise the agent gets no exits of ranks."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the zygote; the kernel ends its children with it."""
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()
        self._process.kill()
        self._process.wait()

    def _receive(self) -> None:
        try:
            data = self._channel.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._take(json.loads(data))
        else:
            self._end()
        self._on_change()

    def _take(self, message: dict[str, Any]) -> None:
        match message:
            case {"event": "ready"}:
                self.ready.set()
            case {"event": "broken", "reason": reason}:
                self.broken = reason
            case {"event": "forked", "name": name, "pid": pid}:
                child = self._children[name]
                child.pid = pid
                child.made.set()
                if child.unwanted:
                    self.kill(child)
            case {"event": "refused", "name": name, "reason": reason}:
                self._refuse(self._children[name], reason)
            case {"event": "exited", "pid": pid, "status": status}:
                child = next(child for child in self._children.values() if child.pid == pid)
                self._finish(child, status)

    def _refuse(self, child: ForkedChild, reason: str) -> None:
        child.refusal = reason
        self._finish(child, None)

    def _finish(self, child: ForkedChild, status: int | None) -> None:
        child.status = status
        child.made.set()
        child.ended.set()
        self._children.pop(child.name, None)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel)
        status = self._process.wait()
        self.broken = self.broken or f"the zygote (parent process of the ranks) ended (exit code {status})"
        for child in list(self._children.values()):
            # The kernel has killed them with the zygote.
            self._finish(child, signal.SIGKILL)
        self.lost.set()


# A warm task outlives `pip install`, and its zygote keeps the modules that it once imported. So before an
# attempt the agent compares the installed packages, and starts another zygote if they have changed.


def installed() -> frozenset[tuple[str, int]]:
    """Return the packages that pip has installed, and the time of each installation."""
    found: set[tuple[str, int]] = set()
    for folder in {*sys.path, site.getusersitepackages()}:
        # A zip file, a missing folder, or a package that is being removed.
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".dist-info", ".egg-info")):
                    found.add((entry.path, entry.stat().st_mtime_ns))
    return frozenset(found)


class ZygotePool:
    """`newest` forks new ranks and stores. An older zygote lives as long as its store."""

    def __init__(self, first: ZygoteClient) -> None:
        self.newest = first
        self._before: list[ZygoteClient] = []
        self._installed = installed()
        self._on_change: Callable[[], None] = lambda: None

    def listen(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.newest.listen(on_change)

    @property
    def pids(self) -> set[int]:
        return {zygote.pid for zygote in (self.newest, *self._before)}

    @property
    def broken(self) -> str:
        """Why ranks cannot start."""
        return next((zygote.broken for zygote in (self.newest, *self._before) if zygote.broken), "")

    def renew(self) -> bool:
        """Start another zygote if the installed packages have changed; return whether they have."""
        found = installed()
        if found == self._installed:
            return False
        log.info("the installed packages have changed: starting a new zygote")
        self._installed = found
        self._before.append(self.newest)
        self.newest = ZygoteClient.start()
        self.newest.listen(self._on_change)
        return True

    def close_unused(self, used: set[ZygoteClient]) -> None:
        """End the zygotes before the newest one that have no store any more."""
        for zygote in [zygote for zygote in self._before if zygote not in used]:
            self._before.remove(zygote)
            zygote.close()

    def close(self) -> None:
        self.close_unused(set())
        self.newest.close()
