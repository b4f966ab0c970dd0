"""Jupyter outside of the cluster, in a container on a user's own machine."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from minicluster_hub.launch.kernel import KernelConnection, open_kernel
from minicluster_hub.launch.visitor import Visitor

from ..cluster import LabCluster
from ..machines import Node
from ..machines.processes import wait_for
from ..people import shown_text

FINGERPRINT = (
    "openssl s_client -connect 127.0.0.1:443 </dev/null 2>/dev/null"
    " | openssl x509 -noout -fingerprint -sha256"
)
CERTIFICATE = "openssl s_client -connect 127.0.0.1:443 </dev/null 2>/dev/null | openssl x509"
"""The command that the guide for laptops gives for the first machine."""
_STARTED_WITHIN_S = 120


@contextmanager
def only_the_proxy(guest: Node, cluster: LabCluster) -> Iterator[None]:
    """Block all traffic of the guest's containers except to the cluster's proxy."""
    rules = [
        f"-i docker0 -p tcp --syn ! -d {cluster.first.address} -j REJECT",
        "-i docker0 -p tcp --syn ! --dport 443 -j REJECT",
    ]
    for rule in rules:
        guest.run(f"iptables -I FORWARD {rule}")
    yield
    for rule in rules:
        guest.run(f"iptables -D FORWARD {rule}")


class Room(Visitor):
    """A container's JupyterLab."""

    @property
    def server_path(self) -> str:
        return "/"


@asynccontextmanager
async def jupyter(guest: Node, *docker_run: str) -> AsyncIterator[Room]:
    """Run `docker run -p 8888:8888 ...` on the guest, and open its printed address as a browser does."""
    container = guest.run(["docker", "run", "-d", "-p", "8888:8888", *docker_run]).stdout.strip()
    addresses: list[str] = []

    def printed() -> bool:
        done = guest.run(["docker", "logs", container])
        addresses[:] = re.findall(r"http://127\.0\.0\.1:8888(/\S+)", done.stdout + done.stderr)
        return bool(addresses)

    try:
        wait_for(printed, "the container to print its address", _STARTED_WITHIN_S, 0.3)
        room = Room(f"http://{guest.address}:8888", "")
        async with room:
            (await room.http.get(addresses[-1])).raise_for_status()
            yield room
    finally:
        guest.run(["docker", "rm", "--force", container])


class Typist(KernelConnection):
    """A kernel with a user who answers each `input()` with the same text."""

    def __init__(self, kernel: KernelConnection, answer: str) -> None:
        super().__init__(kernel._connection)
        self._answer = answer

    async def shown(self, source: str) -> str:
        """Run a cell; return its whole output, including errors."""
        return shown_text(await self.run(source))

    def _request(self, source: str, expressions: dict[str, str]) -> dict[str, Any]:
        request = super()._request(source, expressions)
        request["content"]["allow_stdin"] = True
        return request

    async def _answers(self, source: str, expressions: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
        async for message in super()._answers(source, expressions):
            if message["msg_type"] == "input_request":
                assert message["content"]["password"], "a token is typed without being shown"
                await self._connection.write_message(json.dumps(self._reply(message)))
            yield message

    def _reply(self, asked: dict[str, Any]) -> dict[str, Any]:
        header = {**asked["header"], "msg_id": uuid.uuid4().hex, "msg_type": "input_reply"}
        content = {"value": self._answer}
        return {
            "header": header,
            "parent_header": asked["header"],
            "metadata": {},
            "content": content,
            "channel": "stdin",
        }


@asynccontextmanager
async def typing(room: Room, answer: str = "") -> AsyncIterator[Typist]:
    async with open_kernel(room, "quickstart.ipynb") as kernel:
        yield Typist(kernel, answer)
