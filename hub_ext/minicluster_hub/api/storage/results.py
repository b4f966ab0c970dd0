"""Small results, which come within a task's report."""

from __future__ import annotations

import asyncio
import hashlib

from minicluster.wire import BlobInfo, StorageKind
from minicluster_hub.storage.quotas import OverQuota
from minicluster_hub.support.disk_errors import NotKept
from minicluster_hub.web.context import Context
from minicluster_hub.web.errors import ApiError, api_error, too_large


async def keep_result(context: Context, owner: str, result: BlobInfo, data: bytes) -> None:
    """Store a result for its owner as an upload does. Raises ApiError."""
    if len(data) > context.limits.result_bytes:
        raise too_large("the result", context.limits.result_bytes)
    if (hashlib.sha256(data).hexdigest(), len(data)) != (result.sha256, result.size_bytes):
        raise ApiError(422, "blob_damaged", f"the result is not the blob {result.sha256}", "send it again")
    known = context.store.blobs.size(owner, result.sha256)
    if known is not None and context.blobs.size(result.sha256) == known:
        return
    try:
        with context.storage.reserve(
            owner, StorageKind.CELLS, len(data), result.sha256, new=known is None, small=True
        ):
            await asyncio.to_thread(context.blobs.keep, data)
            context.store.blobs.add(owner, result.sha256, result.size_bytes, context.clock())
    except (OverQuota, NotKept) as error:
        raise api_error(error, 503) from error
