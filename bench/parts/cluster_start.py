"""Time from the click on "start" to a notebook that answers."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from minicluster_hub.launch.kernel import open_kernel
from minicluster_hub.launch.visitor import Visitor

NOTEBOOK = "start.ipynb"
LOOK_S = 0.1


@dataclass(frozen=True)
class Start:
    """Seconds from the click until JupyterLab's page is loaded, and until a kernel has answered."""

    page_s: float
    kernel_s: float


async def start_to_usable(visitor: Visitor) -> Start:
    """Start a stopped server as the spawn page does, open JupyterLab and a notebook, run `1+1`."""
    await stop(visitor)
    began = time.monotonic()
    await visitor.call("POST", f"/hub/api/users/{visitor.name}/server", "/hub/", json={})
    await visitor.wait_server()
    page_s = time.monotonic() - began
    async with open_kernel(visitor, NOTEBOOK) as kernel:
        outputs = await kernel.run("1+1")
        kernel_s = time.monotonic() - began
    if [output["data"]["text/plain"] for output in outputs] != ["2"]:
        raise SystemExit(f"1+1 gives {outputs}")
    return Start(page_s, kernel_s)


async def stop(visitor: Visitor) -> None:
    """Stop the server, and wait until the hub shows it as stopped."""
    if await has_server(visitor):
        await visitor.call("DELETE", f"/hub/api/users/{visitor.name}/server", "/hub/")
    while True:
        if not await has_server(visitor):
            return
        await asyncio.sleep(LOOK_S)


async def has_server(visitor: Visitor) -> bool:
    """Return whether the hub shows a server of the user."""
    await visitor.http.get("/hub/home")
    user = await visitor.call("GET", f"/hub/api/users/{visitor.name}", "/hub/")
    return bool(user["servers"])
