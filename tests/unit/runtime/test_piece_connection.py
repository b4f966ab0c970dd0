"""A data set agent's connections to a real server: cut, damaged, late, or cancelled transfers."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import certifi
import httpx
import pytest

from minicluster.runtime.agent.client import ServiceRefused, ServiceUnavailable
from minicluster.runtime.node.client import DataAgentClient
from minicluster.runtime.node.piece_connection import piece_connection
from minicluster.wire import VERSION_HEADER
from minicluster_hub.cluster.plan.certificates import Certificates

from ...patience import eventually
from ..client.scripted import Service, answer

PIECE_BYTES = 3 << 20
PIECE, OTHER = os.urandom(PIECE_BYTES), os.urandom(1000)
SHA256 = hashlib.sha256(PIECE).hexdigest()
URL = f"api/keepers/pieces/{SHA256}"
SOUND = answer(PIECE)
HALF = answer(PIECE[: PIECE_BYTES // 2], length=PIECE_BYTES)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A service; at the end, check that no connection and no thread is left."""
    made = Service()
    await made.start()
    yield made
    await made.stop()
    await eventually(lambda: not piece_threads())


@pytest.fixture
def line(service: Service):
    with piece_connection(PIECE_BYTES) as made:
        yield made


@pytest.fixture
async def link(service: Service) -> AsyncIterator[DataAgentClient]:
    made = DataAgentClient([service.url], "the word")
    yield made
    await made.close()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=60) as made:
        yield made


def piece_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("piece")]


def first_line(request: str) -> str:
    return request.partition("\r\n")[0]


async def test_pieces_come_over_one_connection_into_one_memory(service, link, line, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    service.answers = [SOUND, SOUND]
    first = await link.piece(SHA256, line)
    assert first == PIECE
    second = await link.piece(SHA256, line)
    assert (second == PIECE, second.obj is first.obj, service.opened) == (True, True, 1)
    headers = service.requests[1].lower().split("\r\n")
    assert headers[0] == f"get /{URL} http/1.1"
    assert {"authorization: keeper the word", "accept-encoding: identity"} <= set(headers)
    assert any(header.startswith(VERSION_HEADER.lower()) for header in headers)
    assert len([header for header in headers if header.startswith("host:")]) == 1


@pytest.mark.parametrize("cut", [HALF, SOUND[: len(SOUND) - PIECE_BYTES], b"HTTP/1.1 200", b""])
async def test_a_piece_cut_in_its_middle_is_no_damaged_one(service, link, line, cut):
    service.answers, service.closes = [cut, SOUND], {0}
    with pytest.raises(ServiceUnavailable, match="does not answer"):
        await link.piece(SHA256, line)
    assert len(service.requests) == 1, "asked as if its hash had been wrong"
    assert await link.piece(SHA256, line) == PIECE
    assert service.opened == 2


async def test_a_cut_chunked_piece_is_told(service, client, line):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    service.answers, service.closes = [head + b"5\r\nhello\r\n0\r\n\r\n", head + b"5\r\nhel"], {1}
    assert (await line.get(client, URL))[0] == b"hello"
    with pytest.raises(ServiceUnavailable):
        await line.get(client, URL)


async def test_the_other_service_is_asked_for_what_the_first_one_cut(service, line):
    other = Service()
    await other.start()
    service.answers, service.closes, other.answers = [HALF], {0}, [SOUND, SOUND]
    link = DataAgentClient([service.url, other.url], "the word")
    assert await link.piece(SHA256, line) == PIECE
    assert await link.piece(SHA256, line) == PIECE
    assert (len(service.requests), len(other.requests), other.opened) == (1, 2, 1)
    line.close()
    await link.close()
    await other.stop()


async def test_a_connection_that_the_other_end_closed_is_opened_anew(service, link, line):
    service.answers, service.closes = [SOUND, SOUND], {0}
    first = await link.piece(SHA256, line)
    await eventually(lambda: service.ended == 1)
    assert (await link.piece(SHA256, line)).obj is first.obj
    assert service.opened == 2


async def test_a_service_that_says_nothing_is_away(service, line):
    service.answers, service.hangs = [HALF, SOUND], {0}
    async with httpx.AsyncClient(base_url=service.url, trust_env=False, timeout=0.1) as hasty:
        with pytest.raises(ServiceUnavailable, match="timed out"):
            await line.get(hasty, URL)
    await eventually(lambda: service.ended == 1)


# --- damaged, refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [OTHER, PIECE[:-1] + b"x", PIECE + OTHER, PIECE + PIECE])
async def test_a_piece_with_another_hash_is_doubted_then_told(service, link, line, wrong):
    wrong_hash = hashlib.sha256(b"of nothing").hexdigest()
    service.answers = [answer(wrong)] * 2 + [SOUND]
    with pytest.raises(ServiceUnavailable, match=f"{wrong_hash[:12]} arrived damaged"):
        await link.piece(wrong_hash, line)
    asked = [first_line(request).split()[1] for request in service.requests]
    assert asked == [f"/api/keepers/pieces/{wrong_hash}", f"/api/keepers/pieces/{wrong_hash}?doubted=1"]
    assert await link.piece(SHA256, line) == PIECE, "what was too long stands before the next answer"


async def test_what_the_service_says_no_to_is_told_as_its_words(service, link, line):
    body = b'{"error": {"code": "gone", "message": "there is no such piece", "hint": ""}}'
    service.answers = [answer(body, status="404 No"), answer(body, status="503 Later"), SOUND]
    with pytest.raises(ServiceRefused, match="no such piece"):
        await link.piece(SHA256, line)
    with pytest.raises(ServiceUnavailable, match="503"):
        await link.piece(SHA256, line)
    assert await link.piece(SHA256, line) == PIECE


# --- no longer wanted -----------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [(), ("Connection: close",)])
async def test_a_cancelled_fetch_leaves_its_memory_and_its_socket(service, client, line, headers):
    half = answer(PIECE[: PIECE_BYTES // 2], *headers, length=PIECE_BYTES)
    service.answers, service.hangs = [SOUND, half, SOUND], {1}
    first, _ = await line.get(client, URL)
    asking = asyncio.create_task(line.get(client, URL))
    await eventually(lambda: len(service.requests) == 2)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await eventually(lambda: service.ended == 1)
    await eventually(lambda: not piece_threads())
    second, digest = await line.get(client, URL)
    assert (digest, second.obj is first.obj) == (SHA256, False)


async def test_one_cancelled_while_it_connects_asks_nothing(service, client, line, monkeypatch):
    connects, may = threading.Event(), threading.Event()
    monkeypatch.setattr(socket, "create_connection", held(socket.create_connection, connects, may))
    asking = asyncio.create_task(line.get(client, URL))
    await asyncio.to_thread(connects.wait)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    may.set()
    await eventually(lambda: service.ended == 1)
    assert service.requests == []


def held(do: Callable[..., object], begins: threading.Event, may: threading.Event) -> Callable[..., object]:
    def held_do(*args: object) -> object:
        begins.set()
        assert may.wait(60)
        return do(*args)

    return held_do


async def test_what_hangs_holds_no_thread_that_others_need(service, client, line):
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    service.answers, service.hangs = [HALF], {0}
    asking = asyncio.create_task(line.get(client, URL))
    await eventually(lambda: service.requests)
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(len, "abc") == 3
    line.close()
    with pytest.raises(ServiceUnavailable):
        await asking


async def test_nothing_of_it_stays_open(service, client):
    service.answers, service.closes = [SOUND, HALF, SOUND, HALF, SOUND], {1, 3}
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no paths are needed
    with piece_connection(PIECE_BYTES) as line:
        for sound in (True, False, True, False, True):
            with suppress(ServiceUnavailable):
                assert (await line.get(client, URL))[1] == SHA256
                assert sound
    await eventually(lambda: service.opened == service.ended == 3)
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)  # noqa: PTH208


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture
async def secure(tmp_path: Path, certificates: Certificates) -> AsyncIterator[Service]:
    """A service with a certificate of the authority in tmp_path/ca."""
    for name, pem in (("ca", certificates.ca_pem), ("cert", certificates.cert_pem)):
        (tmp_path / name).write_text(pem)
    (tmp_path / "key").write_text(certificates.key_pem)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    made = Service()
    await made.start(tls)
    yield made
    await made.stop()
    await eventually(lambda: not piece_threads())


async def fetch(secure: Service) -> bool:
    """Fetch all its answers over one connection."""
    link = DataAgentClient([secure.url], "the word")
    try:
        with piece_connection(PIECE_BYTES) as line:
            return all([await link.piece(SHA256, line) == PIECE for _ in secure.answers])
    finally:
        await link.close()


async def test_a_certificate_of_a_trusted_authority_is_taken(secure, tmp_path, monkeypatch):
    monkeypatch.setattr(certifi, "where", lambda: str(tmp_path / "ca"))
    secure.answers, secure.closes = [SOUND, SOUND, SOUND], {1}
    assert await fetch(secure)
    assert secure.opened == 2


async def test_no_other_certificate_is_taken_whatever_the_environment_says(secure, tmp_path, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
    secure.answers = [SOUND]
    with pytest.raises(ServiceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await fetch(secure)
    monkeypatch.setattr(certifi, "where", lambda: str(tmp_path / "ca"))
    secure.url = secure.url.replace("127.0.0.1", "localhost")
    with pytest.raises(ServiceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await fetch(secure)
    assert secure.requests == []


async def test_a_cancelled_fetch_over_tls_leaves_its_socket(secure, tmp_path, monkeypatch):
    monkeypatch.setattr(certifi, "where", lambda: str(tmp_path / "ca"))
    secure.answers, secure.hangs = [HALF], {0}
    asking = asyncio.create_task(fetch(secure))
    await eventually(lambda: secure.requests)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await eventually(lambda: secure.ended == 1)
