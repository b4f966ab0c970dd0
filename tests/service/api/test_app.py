"""The service as a process: its environment variables, its end, its messages if it cannot start."""

import asyncio
import os
import signal
import socket
import sys
from contextlib import asynccontextmanager

import httpx
import psutil
import pytest

from minicluster_hub.engines.node_tokens import NodeTokens

from ... import messages
from ...patience import WITHIN_S
from .client import PREFIX
from .hub import HubApi


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@asynccontextmanager
async def process(hub, port, *options, **env):
    """Start the service as the hub does; kill it in the end if it still runs."""
    variables = {
        "PATH": os.environ["PATH"],
        "JUPYTERHUB_API_TOKEN": "the-services-own",
        "JUPYTERHUB_API_URL": hub.url,
        "JUPYTERHUB_BASE_URL": "/",
        "JUPYTERHUB_CLIENT_ID": "service-minicluster",
        "JUPYTERHUB_SERVICE_NAME": "minicluster",
        "JUPYTERHUB_SERVICE_PREFIX": PREFIX,
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        **env,
    }
    command = [sys.executable, "-P", "-m", "minicluster_hub", *options]
    started = await asyncio.create_subprocess_exec(*command, env=variables, stderr=asyncio.subprocess.PIPE)
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def answers(port):
    async with asyncio.timeout(WITHIN_S), httpx.AsyncClient(timeout=WITHIN_S) as client:
        while True:
            try:
                return await client.get(f"http://127.0.0.1:{port}{PREFIX}health")
            except httpx.TransportError:
                await asyncio.sleep(0.05)


@pytest.fixture
async def hub():
    started = HubApi()
    yield started
    started.server.stop()
    await started.server.close_all_connections()


async def test_it_serves_and_ends_when_told_even_with_open_streams(hub, tmp_path):
    port = free_port()
    async with process(hub, port, f"--data-dir={tmp_path}") as service:
        assert (await answers(port)).json()["ok"]
        headers = {"Authorization": "token ada-token"}
        base = f"http://127.0.0.1:{port}{PREFIX}"
        async with httpx.AsyncClient(base_url=base, headers=headers, timeout=WITHIN_S) as client:
            nodes = (await client.get("api/nodes")).json()["nodes"]
            assert [node["name"] for node in nodes] == ["node-1", "node-2", "node-3"]
            page = await client.get("jobs", headers={"Sec-Fetch-Mode": "navigate"})
            assert "No jobs yet" in page.text
            async with client.stream("GET", "api/events") as stream:
                assert stream.status_code == 200
                service.send_signal(signal.SIGTERM)
                assert await asyncio.wait_for(service.wait(), WITHIN_S) == 0
    secret = tmp_path / "service" / "cookie_secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    kept = secret.read_bytes()
    async with process(hub, port, f"--data-dir={tmp_path}"):
        await answers(port)
    assert secret.read_bytes() == kept


POLL = "GET {path}?have={version} HTTP/1.1\r\nHost: minicluster\r\nAuthorization: {key}\r\n\r\n"


async def test_it_answers_held_polls_before_it_ends(hub, tmp_path):
    port = free_port()
    async with process(hub, port, f"--data-dir={tmp_path}") as service:
        await answers(port)
        secret = (tmp_path / "service" / "keeper_token").read_bytes().hex()
        key = f"keeper {NodeTokens(secret).issue(['node-1'])}"
        url = f"http://127.0.0.1:{port}{PREFIX}api/data-agents/orders"
        async with httpx.AsyncClient(headers={"Authorization": key}, timeout=WITHIN_S) as client:
            orders = (await client.get(url)).json()
            answer, poll = await asyncio.open_connection("127.0.0.1", port)
            path = f"{PREFIX}api/data-agents/orders"
            poll.write(POLL.format(path=path, version=orders["version"], key=key).encode())
            await poll.drain()
            await client.get(url)  # This was answered, so the earlier poll is held.
            service.send_signal(signal.SIGTERM)
            body = await asyncio.wait_for(answer.read(), WITHIN_S)
            poll.close()
        _, errors = await asyncio.wait_for(service.communicate(), WITHIN_S)
    assert body.startswith(b"HTTP/1.1 200 ") and orders["version"].encode() in body
    assert service.returncode == 0
    assert " 500 " not in errors.decode()


async def test_it_is_small_and_idle(hub, tmp_path):
    port = free_port()
    async with process(hub, port, f"--data-dir={tmp_path}"):
        await answers(port)  # created the database, which needs more memory
    async with process(hub, port, f"--data-dir={tmp_path}") as service:
        await answers(port)
        seen = psutil.Process(service.pid)
        for _ in range(5):  # The start may continue after the first answer.
            before = sum(seen.cpu_times()[:2])
            await asyncio.sleep(2)
            if (used_s := sum(seen.cpu_times()[:2]) - before) <= 0.02:
                break
        assert used_s <= 0.02
        # Its part of the 300 MB for hub, proxy and service together, which bench/idle.py measures. 6 MB are
        # pygments, which mako imports where IPython is installed: not in the hub's image.
        assert seen.memory_info().rss < 106_000_000


@pytest.mark.parametrize(
    ("options", "env", "told"),
    [
        (["--engine=slurm"], {}, "there is no engine 'slurm'; there are: local"),
        (["--policy=lottery"], {}, f"{messages.NO_SUCH_POLICY.format(name='lottery')}: none is built in"),
        ([], {"JUPYTERHUB_API_TOKEN": ""}, "JUPYTERHUB_API_TOKEN is not set"),
        (["--db-url=sqlite:////proc/none/x.sqlite"], {}, "/proc/none/x.sqlite"),
        (["--config=/does/not/exist.py"], {}, "/does/not/exist.py"),
    ],
)
async def test_it_says_in_a_sentence_why_it_cannot_start(hub, tmp_path, options, env, told):
    async with process(hub, free_port(), f"--data-dir={tmp_path}", *options, **env) as service:
        _, errors = await asyncio.wait_for(service.communicate(), WITHIN_S)
        assert service.returncode == 1
        assert told in errors.decode()
        assert "Traceback" not in errors.decode()


async def test_a_data_folder_that_cannot_be_made_is_named(hub):
    async with process(hub, free_port(), "--data-dir=/proc/none") as service:
        _, errors = await asyncio.wait_for(service.communicate(), WITHIN_S)
    assert service.returncode == 1
    assert "data folder cannot be used: /proc/none" in errors.decode()


async def test_a_port_in_use_is_named(hub, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with process(hub, port, f"--data-dir={tmp_path}") as service:
            _, errors = await asyncio.wait_for(service.communicate(), WITHIN_S)
        assert service.returncode == 1
        assert f"127.0.0.1:{port}: Address already in use" in errors.decode()


async def test_a_configuration_file_is_read_and_the_command_line_wins(hub, tmp_path):
    port = free_port()
    config = tmp_path / "service_config.py"
    config.write_text("c.LocalEngine.node_count = 7\nc.MiniclusterHub.engine = 'from the file'\n")
    options = (f"--data-dir={tmp_path}", f"--config={config}", "--engine=local")
    async with process(hub, port, *options):
        await answers(port)
        headers = {"Authorization": "token ada-token"}
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}{PREFIX}", headers=headers, timeout=WITHIN_S
        ) as client:
            assert len((await client.get("api/nodes")).json()["nodes"]) == 7
