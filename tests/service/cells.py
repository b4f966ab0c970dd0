"""Cells sent as a notebook sends them, and waiting for what comes of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from minicluster.client import Service
from minicluster.payload import CellPayload
from minicluster.pickling import dumps
from minicluster.wire import JobSpec, NodeRange


def submit(service: Service, source: str, least: int, most: int, **spec: Any) -> int:
    """Send a cell that reads no names, for so many nodes; return its job's id."""
    body = CellPayload(source=source, filename="cell.py", names=dumps({}, {}, "the cell")).to_bytes()
    nodes = NodeRange(min=least, max=most)
    return service.submit(JobSpec(payload_sha256=service.put_blob(body).sha256, nodes=nodes, **spec)).id


def until(seen: Callable[[], Any], timeout_s: float = 60) -> Any:
    """Wait until `seen()` is true; return it."""
    end = time.monotonic() + timeout_s
    while not (found := seen()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return found
