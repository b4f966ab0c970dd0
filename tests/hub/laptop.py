"""Somebody's own machine: a kernel in a process of its own that knows nothing of the hub."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jupyter_client.manager import AsyncKernelManager

from minicluster.client.connection import PERMISSIONS
from minicluster_hub.launch.visitor import Visitor

_LIMIT_S = 120.0


async def token_of(visitor: Visitor, **how: Any) -> dict[str, Any]:
    """Make a token as the hub's token page does with the permissions that it fills in."""
    body = {"note": "%distribute connect", "scopes": PERMISSIONS.split(), **how}
    return await visitor.call("POST", f"/hub/api/users/{visitor.name}/tokens", "/hub/", json=body)


class Laptop:
    """A kernel as a notebook has it: it can ask its user, who answers with what is given here."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def run(self, source: str, answer: str = "") -> str:
        """Run a cell; return all that it shows, an error's lines too."""
        shown: list[str] = []

        def show(message: dict[str, Any]) -> None:
            content = message["content"]
            shown.append(content.get("text", ""))
            shown.append(content.get("data", {}).get("text/plain", ""))
            shown.extend(content.get("traceback", ()))

        async def ask(message: dict[str, Any]) -> None:
            assert message["content"]["password"], "a token is typed without being shown"
            self._client.input(answer)

        await self._client.execute_interactive(
            source, allow_stdin=True, timeout=_LIMIT_S, output_hook=show, stdin_hook=ask
        )
        return "\n".join(filter(None, shown))


def environ_in(home: Path) -> dict[str, str]:
    """The environment of programs that know nothing of a hub."""
    ours = ("JUPYTERHUB_", "MINICLUSTER_", "XDG_", "IPYTHON")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**environ, "HOME": str(home)}


@asynccontextmanager
async def laptop_in(home: Path, python: str = sys.executable, **told: str) -> AsyncIterator[Laptop]:
    """Start a kernel whose user's files are in `home`; `told` goes into its environment."""
    manager = AsyncKernelManager(kernel_name="python3")
    assert manager.kernel_spec is not None
    manager.kernel_spec.argv[0] = python
    await manager.start_kernel(env={**environ_in(home), **told}, cwd=str(home))
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=_LIMIT_S)
        laptop = Laptop(client)
        await laptop.run("%load_ext minicluster")
        yield laptop
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
