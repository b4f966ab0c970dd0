"""Uploads a cell in parts: only what the service lacks is sent, and a large upload is announced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minicluster.capture.payload import CellPayload
from minicluster.client.client import Service
from minicluster.client.connection import ServiceError
from minicluster.pickling.parts import holders
from minicluster.pickling.pickling import parts_of, readable_size

ANNOUNCED_BYTES = 5_000_000


@dataclass(frozen=True)
class CellBlobs:
    """The blobs of an uploaded cell. parts: large values that the payload refers to."""

    payload_sha256: str
    parts: tuple[str, ...]


def send(
    service: Service,
    payload: CellPayload,
    names: Mapping[str, Any],
    namespace: dict[str, Any],
) -> CellBlobs:
    """Upload a cell. names, namespace: of what travels, to print whose bytes they are."""
    in_order = service.hashes.of(payload.parts)
    found = dict(zip(in_order, payload.parts, strict=True))
    try:
        missing = service.missing(tuple(found)) if found else set()
    except ServiceError as error:
        if error.code != "unknown_path":
            raise
        # A service of an earlier release takes cells in one piece only.
        return CellBlobs(service.put_blob(payload.to_bytes()).sha256, ())
    size = sum(found[sha256].size_bytes for sha256 in missing)
    if size >= ANNOUNCED_BYTES:
        whose = ", ".join(holders(names, missing, lambda value: parts_of(value, namespace)))
        print(f"Sending {readable_size(size)}{f': {whose}' if whose else ''}")  # noqa: T201
    for sha256 in missing:
        service.put_part(found[sha256].data, sha256)
    blob = service.put_blob(payload.without_parts(in_order))
    return CellBlobs(blob.sha256, tuple(found))
