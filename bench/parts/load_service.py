"""The job service of bench/load.py, in its own process, with simulated users and machines.

Prints its URL, then a line of JSON for each task that it starts: {"task_id", "token"}. Ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE))

from tests.service.api.conftest import serving  # noqa: E402
from tests.service.api.hub import READ, SUBMIT, MemoryEngine, user_model  # noqa: E402

from minicluster_hub.engines.base import TaskLaunch  # noqa: E402
from minicluster_hub.jobs.records import NodeView  # noqa: E402


class ManyMachines(MemoryEngine):
    """Machines of one slot each; prints each started task, so that load_crowd.py acts as its agent."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._nodes = tuple(
            NodeView(f"node-{i}", True, "127.0.0.1", ("cpu",), cpus=8.0, memory_bytes=32_000_000_000)
            for i in range(count)
        )

    async def start(self, launch: TaskLaunch) -> None:
        await super().start(launch)
        print(json.dumps({"task_id": launch.task_id, "token": launch.token}), flush=True)

    def nodes(self) -> tuple[NodeView, ...]:
        return self._nodes


async def main(machines: int, users: int) -> None:
    """Serve until stdin closes."""
    with tempfile.TemporaryDirectory(prefix="minicluster-load-") as folder:
        async with serving(Path(folder), engine=ManyMachines(machines)) as api:
            for number in range(users):
                name = f"user-{number}"
                own = (f"{READ}!user={name}", f"{SUBMIT}!user={name}")
                api.hub.models[f"{name}-token"] = user_model(name, *own)
            print(api.url, flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
