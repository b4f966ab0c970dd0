"""HAProxy as a child of the job service: started on the users' port, told of replicas, ended with the
service.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from minicluster_hub.serving.front.config import (
    MAPS,
    SERVERS,
    SLOTS,
    FrontFiles,
    config,
    server_name,
    slot_name,
)
from minicluster_hub.serving.routing import Endpoint, ModelRoute
from minicluster_hub.support.processes import die_with_parent

_STARTS_WITHIN_S = 5.0
_ENDS_WITHIN_S = 5.0
_ANSWERS_WITHIN_S = 10.0
"""HAProxy takes a command in less than a millisecond. One that does not answers no requests, either."""
_LOOK_S = 0.02
_MOST_THREADS = 4
_MOST_CONNECTIONS, _OTHER_FILES = 20_000, 500
_EXPECTED = ("IP changed", "port changed", "no need to change", "nothing changed")
"""How answers begin that report no mistake."""


class FrontBroken(Exception):
    """HAProxy does not run, or refuses a command."""


def installed() -> bool:
    """Whether HAProxy is on this machine."""
    return shutil.which("haproxy") is not None


class HaProxy:
    """One HAProxy. sockets: the users' port. prefix: the service's path. counted: takes its log, line by
    line.

    ended: called when it ends by itself.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        prefix: str,
        counted: Callable[[bytes], None],
        ended: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self.files = FrontFiles(Path(tempfile.mkdtemp(prefix="mc-front-")))
        self._sockets = sockets
        self._prefix = prefix
        self._counted = counted
        self._ended = ended
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._logging: asyncio.DatagramTransport | None = None
        self._slots: dict[int, int] = {}
        self._owners: dict[str, int] = {}
        self._servers: dict[int, dict[Endpoint, int]] = {}
        self._entries: dict[str, dict[str, str]] = {name: {} for name in MAPS}

    async def start(self) -> None:
        """Start it; return when it takes commands. Raises FrontBroken, OSError."""
        files = self.files
        for name in MAPS:
            files.map(name).touch(mode=0o600)
        fds = [one.fileno() for one in self._sockets]
        threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        text = config(files, fds, self._prefix, connections=_connections(), threads=threads)
        files.config.write_text(text)
        loop = asyncio.get_running_loop()
        self._logging, _ = await loop.create_datagram_endpoint(
            partial(_LogLines, self._counted), local_addr=str(files.log), family=socket.AF_UNIX
        )
        with (files.folder / "haproxy.log").open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                "haproxy",
                "-db",
                "-f",
                str(files.config),
                pass_fds=fds,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        self._watching = asyncio.create_task(self._watch(self._process))
        await self._until_it_answers(self._process)

    async def end(self) -> None:
        """End it: it answers the requests that it has. Its folder is removed."""
        process, self._process = self._process, None
        if self._watching is not None:
            self._watching.cancel()
        if process is not None and process.returncode is None:
            process.send_signal(signal.SIGUSR1)
            try:
                async with asyncio.timeout(_ENDS_WITHIN_S):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if self._logging is not None:
            self._logging.close()
        shutil.rmtree(self.files.folder, ignore_errors=True)

    # What it is told.

    async def lead(self, route: ModelRoute) -> bool:
        """Lead a model's requests to these replicas; return whether it does. Raises FrontBroken."""
        slot = self._slots.get(route.model_id) or self._free_slot()
        if slot is None or not route.endpoints:
            await self.drop(route.model_id, route.key)
            return False
        self._slots[route.model_id], self._owners[route.key] = slot, route.model_id
        await self._set("secrets", route.key, route.secret)
        await self._set("timeouts", route.key, str(int(route.options.timeout_s * 1000)))
        await self._set("limits", route.key, str(route.options.request_bytes))
        await self._place(slot, route)
        await self._set("open", route.key, "1" if route.is_open else None)
        await self._set("slots", route.key, slot_name(slot))
        return True

    async def drop(self, model_id: int, key: str) -> None:
        """Lead no more requests to a model. Raises FrontBroken."""
        if self._owners.get(key, model_id) == model_id:
            self._owners.pop(key, None)
            for name in MAPS:
                if name != "allowed":
                    await self._set(name, key, None)
        slot = self._slots.pop(model_id, None)
        if slot is not None:
            for endpoint in list(self._servers.get(slot, {})):
                await self._take_out(slot, endpoint)

    async def allow(self, who: str, right: str | None) -> None:
        """Set a token's right to ask a model; None: it has none. who: as the configuration compares it.

        Raises FrontBroken.
        """
        await self._set("allowed", who, right)

    def _free_slot(self) -> int | None:
        taken = {*self._slots.values()}
        return next((slot for slot in range(1, SLOTS + 1) if slot not in taken), None)

    async def _place(self, slot: int, route: ModelRoute) -> None:
        """Have exactly these replicas get requests: new ones first, so that there is always one."""
        known = self._servers.setdefault(slot, {})
        wanted = route.endpoints[:SERVERS]
        gone = [one for one in known if one not in wanted]
        for endpoint in wanted:
            if endpoint in known:
                continue
            if len(known) == SERVERS:
                await self._take_out(slot, gone.pop())
            await self._put_in(slot, endpoint, route.options.open_requests)
        for endpoint in gone:
            await self._take_out(slot, endpoint)

    async def _put_in(self, slot: int, endpoint: Endpoint, open_requests: int) -> None:
        known = self._servers[slot]
        number = next(one for one in range(1, SERVERS + 1) if one not in known.values())
        known[endpoint] = number
        server = f"{slot_name(slot)}/{server_name(number)}"
        await self._command(f"set server {server} addr {endpoint.address} port {endpoint.port}")
        await self._command(f"set maxconn server {server} {open_requests}")
        await self._command(f"set server {server} state ready")

    async def _take_out(self, slot: int, endpoint: Endpoint) -> None:
        server = f"{slot_name(slot)}/{server_name(self._servers[slot][endpoint])}"
        await self._command(f"set server {server} state maint")
        del self._servers[slot][endpoint]

    async def _set(self, name: str, key: str, value: str | None) -> None:
        """Set an entry of a map; None removes it."""
        entries, file = self._entries[name], self.files.map(name)
        if entries.get(key) == value:
            return
        if value is None:
            await self._command(f"del map {file} {key}")
            del entries[key]
        else:
            await self._command(f"{'set' if key in entries else 'add'} map {file} {key} {value}")
            entries[key] = value

    async def _command(self, command: str) -> None:
        """Send a command. Raises FrontBroken; a HAProxy that does not answer is killed."""
        try:
            async with asyncio.timeout(_ANSWERS_WITHIN_S):
                answer = await self._answer(command)
        except TimeoutError as error:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
            raise FrontBroken(f"HAProxy did not answer within {_ANSWERS_WITHIN_S:g} s") from error
        except OSError as error:
            raise FrontBroken(f"HAProxy does not take commands: {error}") from error
        if answer and not answer.startswith(_EXPECTED):
            raise FrontBroken(f"HAProxy refuses {command.partition(' ')[0]!r}: {answer[:200]}")

    async def _answer(self, command: str) -> str:
        reader, writer = await asyncio.open_unix_connection(str(self.files.admin))
        try:
            writer.write(f"{command}\n".encode())
            await writer.drain()
            return (await reader.read()).decode(errors="replace").strip()
        finally:
            writer.close()

    # Its process.

    async def _until_it_answers(self, process: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(_STARTS_WITHIN_S):
                # HAProxy says to nobody that it has started.
                while process.returncode is None and not await self._listens():  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            process.kill()
        if process.returncode is not None or not await self._listens():
            raise FrontBroken(f"HAProxy does not start: {self._said()}")

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(str(self.files.admin))
        except OSError:
            return False
        writer.close()
        return True

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        self._log.error("HAProxy ended with status %s: %s", status, self._said())
        self._ended()

    def _said(self) -> str:
        try:
            text = (self.files.folder / "haproxy.log").read_text(errors="replace")
        except OSError:
            return "it left no message"
        lines = [line for line in text.splitlines() if "[ALERT]" in line] or text.splitlines()
        return " ".join(lines)[-500:] or "it left no message"


def _connections() -> int:
    """Return how many connections HAProxy may take: each needs two files, one on each side."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_CONNECTIONS if files == resource.RLIM_INFINITY else (files - _OTHER_FILES) // 2
    return max(100, min(_MOST_CONNECTIONS, most))


class _LogLines(asyncio.DatagramProtocol):
    """Receives HAProxy's log: a line in each datagram."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._take(data)
