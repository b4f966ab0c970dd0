"""The relay: doors on each node's loopback that lead to the cluster's registry.

Docker engines accept a registry on 127.0.0.0/8 without TLS and without configuration. The relay takes
their requests there and goes to the registry with TLS, verified by our own authority, and with the
reader's password. It runs on every node for good, so it is small: streams of asyncio, heads by h11.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import ssl
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus

from minicluster_hub.cluster import relay_http
from minicluster_hub.cluster.relay_doors import HOST, PUBLISH_DOOR, Door, RelayError, doors, trust

_PIECE_BYTES = 256 * 1024
_HEAD_PATIENCE_S, _RETRY_S, _SILENT_S = 30.0, 0.3, 1.0
_LOG = logging.getLogger("minicluster.relay")


class UpstreamAway(Exception):
    """The registry did not take the connection; the text is for whoever pulls."""


class Relay:
    """Serves doors; patience_s: how long a request waits for a registry that is just starting again."""

    def __init__(self, doors: Sequence[Door], tls: ssl.SSLContext | None, patience_s: float = 4.0) -> None:
        self._doors, self._tls, self._patience_s = doors, tls, patience_s
        self._servers: list[asyncio.Server] = []
        self._last: dict[int, int] = {}
        """Which place of each door answered last."""

    async def open(self) -> list[int]:
        """Listen at all doors; return their ports."""
        for door in self._doors:
            try:
                server = await asyncio.start_server(
                    partial(self._serve, door), HOST, door.port, limit=_PIECE_BYTES
                )
            except OSError as error:
                raise RelayError(
                    f"Port {door.port} on {HOST} of {socket.gethostname()} cannot be listened on "
                    f"({error.strerror}). Stop the program that uses it; the relay tries again by itself."
                ) from error
            self._servers.append(server)
        return [server.sockets[0].getsockname()[1] for server in self._servers]

    def close(self) -> None:
        """Take no further requests."""
        for server in self._servers:
            server.close()

    async def _serve(self, door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve_request(door, reader, writer)
            writer.close()
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            _LOG.info("%s: a transfer broke: %s", door.what, error or type(error).__name__)
            writer.transport.abort()
        except asyncio.CancelledError:  # only at the end; asyncio 3.11 would log it as an error
            writer.transport.abort()

    async def _serve_request(
        self, door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            request = await _read_request(reader)
        except relay_http.RequestBroken as error:
            await _answer(writer, HTTPStatus.BAD_REQUEST, "UNSUPPORTED", f"no plain HTTP request ({error})")
            return
        if request is None:
            return
        if door.authorization is not None and request.method not in relay_http.READING:
            text = f"this door only reads; publish at {HOST}:{PUBLISH_DOOR} on the first manager"
            await _answer(writer, HTTPStatus.METHOD_NOT_ALLOWED, "UNSUPPORTED", text)
            return
        try:
            upstream = await self._connect(door)
        except UpstreamAway as error:
            head_only = request.method == b"HEAD"
            _LOG.warning("%s", error)
            status = HTTPStatus.SERVICE_UNAVAILABLE
            await _answer(writer, status, "UNAVAILABLE", str(error), head_only=head_only)
            return
        await _exchange(door, request, (reader, writer), upstream)

    async def _connect(self, door: Door) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        away: OSError | None = None
        places = deque(door.places)
        places.rotate(-self._last.get(door.port, 0))
        try:
            async with asyncio.timeout(self._patience_s):
                while True:
                    try:
                        streams = await self._open_one(*places[0], alone=len(places) == 1)
                    except ssl.SSLCertVerificationError as error:
                        away = error
                        break
                    except OSError as error:
                        away = error
                        places.rotate(-1)
                        await asyncio.sleep(_RETRY_S / len(places))
                    else:
                        self._last[door.port] = door.places.index(places[0])
                        _notice_a_dead_peer(streams[1].get_extra_info("socket"))
                        return streams
        except TimeoutError:
            pass
        reason = _reason(away)
        raise UpstreamAway(
            f"the cluster's {door.what} at {door.upstream} {reason}; the command doctor tells more"
        )

    async def _open_one(
        self, host: str, port: int, *, alone: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to one place; where there are others, one that says nothing is soon given up."""
        async with asyncio.timeout(None if alone else _SILENT_S):
            return await asyncio.open_connection(host, port, ssl=self._tls, limit=_PIECE_BYTES)


async def run(environ: Mapping[str, str]) -> None:
    """Serve until a signal asks for the end."""
    relay = Relay(doors(environ), trust(environ))
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    ports = await relay.open()
    _LOG.info("listening on %s, ports %s", HOST, ", ".join(map(str, ports)))
    await ended.wait()
    relay.close()


def main() -> int:
    """Run the relay of this node by the environment's settings."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(run(os.environ))
    except RelayError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


async def _read_request(reader: asyncio.StreamReader) -> relay_http.Request | None:
    head = relay_http.HeadReader()
    async with asyncio.timeout(_HEAD_PATIENCE_S):
        while data := await reader.read(_PIECE_BYTES):
            request = head.feed(data)
            if request is not None:
                return request
    return None


async def _answer(
    writer: asyncio.StreamWriter, status: HTTPStatus, code: str, text: str, *, head_only: bool = False
) -> None:
    writer.write(relay_http.answer(status, code, text, head_only=head_only))
    await writer.drain()


async def _exchange(
    door: Door,
    request: relay_http.Request,
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    """Send the request on, and pass bytes both ways until either side is done."""
    if door.authorization is None:
        upstream[1].write(relay_http.passing_head(request, door.upstream) + request.body_start)
        sending = _pump(client[0], upstream[1])
    else:
        upstream[1].write(relay_http.reading_head(request, door.upstream, door.authorization))
        sending = _pump(client[0], None)
    tasks = [asyncio.create_task(sending), asyncio.create_task(_pump(upstream[0], client[1]))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        upstream[1].transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter | None) -> None:
    """Pass bytes on until the source ends, as fast as the sink takes them. None: drop them."""
    while piece := await source.read(_PIECE_BYTES):
        if sink is not None:
            sink.write(piece)
            await sink.drain()


def _notice_a_dead_peer(sock: socket.socket) -> None:
    """A manager without power sends no last packet: find out within about 30 s."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


def _reason(error: OSError | None) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"shows a certificate that is not this cluster's ({error.verify_message})"
    if error is None:
        return "does not answer"
    return f"cannot be reached ({os.strerror(error.errno) if error.errno else str(error) or 'no answer'})"


if __name__ == "__main__":
    sys.exit(main())
