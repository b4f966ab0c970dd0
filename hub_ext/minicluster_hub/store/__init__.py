"""Where the service keeps what must outlive it. Its only door is `Store`; no SQL elsewhere."""

from minicluster_hub.store.errors import (
    GangTaken,
    HomeMoved,
    JobUnknown,
    SlotTaken,
    StoreBroken,
    StoreError,
    StoreUnavailable,
)
from minicluster_hub.store.facade import Store

__all__ = [
    "GangTaken",
    "HomeMoved",
    "JobUnknown",
    "SlotTaken",
    "Store",
    "StoreBroken",
    "StoreError",
    "StoreUnavailable",
]
