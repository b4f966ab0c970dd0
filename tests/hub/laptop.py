"""A user's own machine: a kernel in a separate process without the hub's environment."""

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
    """Create a token as the hub's token page does, with its default permissions."""
    body = {"note": "%distribute connect", "scopes": PERMISSIONS.split(), **how}
    return await visitor.call("POST", f"/hub/api/users/{visitor.name}/tokens", "/hub/", json=body)


class Laptop:
    """A notebook's kernel, with a user who answers prompts with a given text."""

    def __init__(self, client: Any) -> None:
        self._client = client

    async def run(self, source: str, answer: str = "") -> str:
        """Run a cell; return its whole output, including errors."""
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
    """Return an environment without the hub's variables."""
    ours = ("JUPYTERHUB_", "MINICLUSTER_", "XDG_", "IPYTHON")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**environ, "HOME": str(home)}


@asynccontextmanager
async def laptop_in(home: Path, python: str = sys.executable, **told: str) -> AsyncIterator[Laptop]:
    """Yield a kernel with the home folder `home`; `told`: further environment variables."""
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
