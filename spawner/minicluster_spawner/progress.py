"""The progress messages of a server's start. Functions word them; StartProgress sends them to listeners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime

from minicluster.wire import GPU_SHARE
from minicluster_hub.engines.swarm.view import SwarmTask

_LONG_S = 15.0


@dataclass(frozen=True, slots=True)
class StartStage:
    """percent: a rough estimate of the progress to a usable server."""

    percent: int
    message: str

    def event(self) -> dict[str, object]:
        return {"progress": self.percent, "message": self.message}


def placed(node: str, gpus: float, until: float | None) -> StartStage:
    """Return the first stage. until: when the server returns its GPUs, in seconds since the epoch."""
    if not gpus or until is None:
        return StartStage(10, f"Placed on {node}")
    when = datetime.fromtimestamp(until).astimezone().strftime("%H:%M %Z")
    held = "half a GPU" if gpus == GPU_SHARE else f"{gpus:g} GPU{'' if gpus == 1 else 's'}"
    return StartStage(10, f"Placed on {node} with {held} until {when}; then the server is stopped")


def task_stage(
    task: SwarmTask | None, node: str, image_bytes: int | None = None, waited_s: float = 0.0
) -> StartStage:
    """Return the stage of a task. image_bytes: the compressed size of its image; None: unknown."""
    if task is None or task.state in ("new", "allocated", "pending"):
        why = f": {task.error}" if task is not None and task.error else ""
        return StartStage(15, f"Waiting for {node}{why}")
    if task.state in ("assigned", "accepted"):
        return StartStage(20, f"{node} accepts the server")
    if task.state == "preparing":
        return _preparing(node, image_bytes, waited_s)
    if task.running:
        return StartStage(80, f"The server runs on {node}; waiting until it answers")
    return StartStage(70, f"Starting the server on {node}")


def _preparing(node: str, image_bytes: int | None, waited_s: float) -> StartStage:
    """Return the stage of a pull: total size and time. Swarm does not report the bytes pulled so far."""
    size = f" (up to {_size(image_bytes)})" if image_bytes else ""
    if waited_s < _LONG_S:
        return StartStage(30, f"{node} gets the image, unless it has it{size}")
    # A step every 15 s shows that the pull goes on; the percentage approaches 65.
    steps = int(waited_s // _LONG_S)
    percent = 30 + round(35 * (1 - 0.8**steps))
    return StartStage(percent, f"{node} pulls the image{size}: {steps * _LONG_S:.0f} s so far")


def listening(node: str) -> StartStage:
    return StartStage(95, f"The server on {node} listens")


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.0f} MB"


class StartProgress:
    """The stages of a server's present start, for any number of listeners.

    The hub lets people listen before it calls the spawner's `start`, so each start uses the same object.
    """

    def __init__(self) -> None:
        self._stages: list[StartStage] = []
        self._more = asyncio.Event()

    def clear(self) -> None:
        """Forget the stages of the previous start; listeners stay."""
        self._stages = []

    def report(self, stage: StartStage) -> None:
        """Add a stage, unless it equals the last one; the percentage never decreases."""
        if self._stages:
            last = self._stages[-1]
            stage = StartStage(max(stage.percent, last.percent), stage.message)
            if stage == last:
                return
        self._stages.append(stage)
        self._more.set()
        self._more = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[StartStage]:
        """Yield all stages so far, then new ones, until the listener stops."""
        yielded = 0
        stages = self._stages
        while True:
            more = self._more
            if stages is not self._stages:
                stages, yielded = self._stages, 0
            for stage in stages[yielded:]:
                yielded += 1
                yield stage
            await more.wait()
