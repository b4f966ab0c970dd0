"""Submits jobs as a notebook does: a cell's payload, then the request."""

from __future__ import annotations

import hashlib
import uuid

import httpx

from minicluster.capture.payload import CellPayload
from minicluster.pickling.pickling import dumps

ENDLESS = "import time\nwhile True:\n    time.sleep(0.1)\n"


def payload(source: str) -> bytes:
    cell = CellPayload(source=source, filename="cell.py", names=dumps({}, {}, "the cell"))
    return cell.to_bytes()


async def submit(service: httpx.AsyncClient, source: str = ENDLESS, nodes: int = 1) -> httpx.Response:
    """Submit a cell; the answer's JSON is the job."""
    body = payload(source)
    digest = hashlib.sha256(body).hexdigest()
    sent = await service.put(f"api/blobs/{digest}", content=body)
    if sent.is_error:
        return sent
    spec = {"payload_sha256": digest, "nodes": {"min": nodes, "max": nodes}}
    return await service.post("api/jobs", json={"idempotency_key": uuid.uuid4().hex, "spec": spec})
