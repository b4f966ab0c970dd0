"""The relay in front of a real registry with TLS and passwords, over real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from minicluster_hub.cluster.plan.certificates import Certificates, make_ca_and_cert
from minicluster_hub.cluster.registry import config as settings
from minicluster_hub.cluster.registry.relay import command, frontends
from tests.conftest import Needs
from tests.patience import WITHIN_S, until

PUBLISHER = ("publisher", "publisher's word")
LAYER = bytes(range(256)) * 40_000


@dataclass
class Registry:
    """A registry process with our config.yml on a loopback port."""

    folder: Path
    port: int
    certificates: Certificates
    upstream: str | None = None
    process: subprocess.Popen[bytes] | None = None

    def write(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "registry_cert").write_text(self.certificates.cert_pem)
        (self.folder / "registry_key").write_text(self.certificates.key_pem)
        (self.folder / "registry_htpasswd").write_text(
            settings.htpasswd_line("reader", "reader's word") + settings.htpasswd_line(*PUBLISHER)
        )
        text = settings.registry_config(self.upstream).replace("/run/secrets", str(self.folder))
        text = text.replace(settings.DATA_DIR, str(self.folder / "data"))
        text = text.replace(f":{settings.LISTEN_PORT}", f"127.0.0.1:{self.port}")
        (self.folder / "config.yml").write_text(text)

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            command = ["docker-registry", "serve", str(self.folder / "config.yml")]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            until(partial(listens, self.port))
        except AssertionError:
            raise AssertionError((self.folder / "log").read_text()) from None

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def program(needs: Needs) -> None:
    needs(shutil.which("docker-registry"), "no docker-registry (Debian: apt-get install docker-registry)")


@pytest.fixture
def registry(program: None, tmp_path: Path, certificates: Certificates) -> Iterator[Registry]:
    made = Registry(tmp_path / "registry", free_port(), certificates)
    made.write()
    made.start()
    yield made
    made.stop()


class Relay:
    """The relay's process, on free ports."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        found = [replace(one, port=free_port()) for one in frontends(environ)]
        folder.mkdir()
        arguments, environment = command(found, environ, folder)
        self.urls = {one.name: f"http://127.0.0.1:{one.port}" for one in found}
        self._process = subprocess.Popen(arguments, env={**os.environ, **environment})
        for one in found:
            until(partial(listens, one.port))

    @property
    def reading(self) -> str:
        return self.urls["registry"]

    @property
    def publishing(self) -> str:
        return self.urls["publish"]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.fixture
def start(needs: Needs, environ: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., Relay]]:
    """A function that starts relays, with further environment variables."""
    needs(shutil.which("haproxy"), "no haproxy (Debian: apt-get install haproxy)")
    made: list[Relay] = []

    def one(**more: str) -> Relay:
        environment = {f"MINICLUSTER_RELAY_{name}": value for name, value in more.items()}
        made.append(Relay(environ | environment, tmp_path / f"relay{len(made)}"))
        return made[-1]

    yield one
    for relay in made:
        relay.stop()


@pytest.fixture
def relay(registry: Registry, start: Callable[..., Relay]) -> Relay:
    return start(REGISTRY=f"127.0.0.1:{registry.port}")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as made:
        yield made


async def publish(client: httpx.AsyncClient, url: str, layer: bytes = LAYER) -> str:
    """Upload a blob as docker push does: start, send it in pieces of unknown length, commit."""
    begun = await client.post(f"{url}/v2/some/image/blobs/uploads/", auth=PUBLISHER)
    assert begun.status_code == 202

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(layer), 1 << 20):
            yield layer[start : start + (1 << 20)]

    place = begun.request.url.join(begun.headers["location"])
    sent = await client.patch(place, content=pieces(), auth=PUBLISHER)
    assert sent.status_code == 202
    digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
    place = sent.request.url.join(sent.headers["location"]).copy_add_param("digest", digest)
    done = await client.put(place, auth=PUBLISHER)
    assert done.status_code == 201
    assert (await client.head(done.request.url.join(done.headers["location"]), auth=PUBLISHER)).is_success
    return digest


async def test_what_is_published_at_one_port_is_read_at_the_other(
    relay: Relay, client: httpx.AsyncClient
) -> None:
    digest = await publish(client, relay.publishing)
    blob = f"{relay.reading}/v2/some/image/blobs/{digest}"
    assert (await client.get(blob)).content == LAYER
    head = await client.head(blob)
    assert head.headers["content-length"] == str(len(LAYER))
    part = await client.get(blob, headers={"Range": "bytes=1000-1999"})
    assert (part.status_code, part.content) == (206, LAYER[1000:2000])


async def test_the_reading_port_refuses_every_other_method(relay: Relay, client: httpx.AsyncClient) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "BREW"):
        answer = await client.request(method, f"{relay.reading}/v2/some/image/blobs/uploads/", auth=PUBLISHER)
        assert answer.status_code == 405
        assert "publish at 127.0.0.1:5102" in answer.json()["errors"][0]["message"]


async def test_nothing_gets_in_behind_a_first_request(relay: Relay) -> None:
    """With the relay's own password, the second request could write."""
    for head in (
        b"GET /v2/ HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"GET /v2/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v2/ HTTP/1.1\r\nHost: x\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(relay.reading).port)
        second = b"POST /v2/some/image/blobs/uploads/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        writer.write(head + second + b"Content-Length: 0\r\n\r\n")
        text = await asyncio.wait_for(reader.read(), 10)
        lines = [line.split()[1] for line in text.splitlines() if line.startswith(b"HTTP/")]
        assert lines[0] == b"200" and set(lines[1:]) <= {b"405"}
        writer.close()


async def test_the_publishing_port_adds_no_credentials(relay: Relay, client: httpx.AsyncClient) -> None:
    answer = await client.get(f"{relay.publishing}/v2/")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")


async def test_a_registry_that_is_away_is_told_and_found_again(
    relay: Relay, registry: Registry, client: httpx.AsyncClient
) -> None:
    digest = await publish(client, relay.publishing)
    registry.stop()
    answer = await client.get(f"{relay.reading}/v2/some/image/blobs/{digest}")
    assert answer.status_code == 503
    message = f"the cluster's registry at 127.0.0.1:{registry.port} cannot be reached (connection refused, "
    assert message in answer.reason_phrase and message in answer.json()["errors"][0]["message"]
    waiting = asyncio.create_task(client.get(f"{relay.reading}/v2/some/image/blobs/{digest}"))
    began = time.monotonic()
    await asyncio.to_thread(registry.start)
    away_s = time.monotonic() - began
    answer = await waiting
    if away_s > 3:  # The relay retries for four seconds.
        answer = await client.get(f"{relay.reading}/v2/some/image/blobs/{digest}")
    assert answer.content == LAYER


async def test_a_registry_that_dies_in_a_transfer_is_no_end_of_the_layer(
    relay: Relay, registry: Registry, client: httpx.AsyncClient
) -> None:
    digest = await publish(client, relay.publishing, LAYER * 5)
    with pytest.raises(httpx.TransportError):
        async with client.stream("GET", f"{relay.reading}/v2/some/image/blobs/{digest}") as answer:
            async for _ in answer.aiter_raw(65536):
                registry.stop()


async def test_a_foreign_registry_is_not_talked_to(
    program: None, tmp_path: Path, start: Callable[..., Relay], client: httpx.AsyncClient
) -> None:
    """Not even with a certificate for the same names, since it is not of our authority."""
    foreign = Registry(tmp_path / "foreign", free_port(), make_ca_and_cert(["127.0.0.1", "registry"]))
    foreign.write()
    foreign.start()
    answer = await client.get(f"{start(REGISTRY=f'127.0.0.1:{foreign.port}').reading}/v2/")
    foreign.stop()
    assert answer.status_code == 503
    assert "not its certificate" in answer.reason_phrase


async def test_where_the_registry_moved_to_is_found(
    registry: Registry, start: Callable[..., Relay], client: httpx.AsyncClient
) -> None:
    """The registry runs on one of several managers; the others refuse connections."""
    relay = start(REGISTRY=f"127.0.0.1:{free_port()},127.0.0.1:{registry.port},127.0.0.1:{free_port()}")
    answers = [await client.get(f"{relay.reading}/v2/") for _ in range(12)]
    assert {answer.status_code for answer in answers} == {200}


async def test_the_engines_first_try_by_tls_is_answered_in_plain_http(relay: Relay) -> None:
    """After such an answer, Docker falls back to plain HTTP at once."""
    port = httpx.URL(relay.reading).port
    with pytest.raises(ssl.SSLError):
        await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
    assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 400")
    writer.close()


async def test_a_slow_reader_slows_the_registry_instead_of_filling_memory(
    start: Callable[..., Relay], certificates: Certificates, tmp_path: Path
) -> None:
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        with suppress(OSError):
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
                sent += 1 << 16

    upstream = await asyncio.start_server(pour, "127.0.0.1", 0, ssl=shown_by_a_server(certificates, tmp_path))
    relay = start(REGISTRY=f"127.0.0.1:{upstream.sockets[0].getsockname()[1]}")
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(relay.reading).port, limit=1 << 16)
    writer.write(b"GET /v2/ HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readexactly(1 << 20)
    held = -1
    async with asyncio.timeout(WITHIN_S):  # longer: the upstream continues to send although nobody reads
        while sent != held:
            held = sent
            await asyncio.sleep(0.5)
    await reader.readexactly(held)
    assert sent > held
    writer.close()
    upstream.close()


def shown_by_a_server(certificates: Certificates, folder: Path) -> ssl.SSLContext:
    (folder / "cert").write_text(certificates.cert_pem)
    (folder / "key").write_text(certificates.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert", folder / "key")
    return context


async def test_a_cache_fetches_from_outside_only_once(
    registry: Registry,
    relay: Relay,
    start: Callable[..., Relay],
    tmp_path: Path,
    client: httpx.AsyncClient,
    certificates: Certificates,
) -> None:
    """Proxy mode works with TLS and passwords; the outside registry is our own reader."""
    digest = await publish(client, relay.publishing)
    cache = Registry(tmp_path / "cache", free_port(), registry.certificates, relay.reading)
    cache.write()
    await asyncio.to_thread(cache.start)  # it contacts the outside registry before it listens
    caching = start(REGISTRY=f"127.0.0.1:{registry.port}", CACHE=f"127.0.0.1:{cache.port}")
    blob = f"{caching.urls['cache']}/v2/some/image/blobs/{digest}"
    assert (await client.get(blob)).content == LAYER
    link = cache.folder / f"data/docker/registry/v2/repositories/some/image/_layers/sha256/{digest[7:]}/link"
    async with asyncio.timeout(10):  # 2.8 stores it only after it has answered
        while not link.exists():
            await asyncio.sleep(0.05)
    registry.stop()
    assert (await client.get(blob)).content == LAYER
    trust = ssl.create_default_context(cadata=certificates.ca_pem)
    async with httpx.AsyncClient(verify=trust, trust_env=False) as direct:
        assert (await direct.get(f"https://127.0.0.1:{cache.port}/v2/")).status_code == 401
    cache.stop()
