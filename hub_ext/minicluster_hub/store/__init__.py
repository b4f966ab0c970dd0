"""All state that must outlive the service. Other rooms use `Store` and contain no SQL."""

from minicluster_hub.store.errors import (
    GangTaken,
    HomeMoved,
    ImageNameTaken,
    JobUnknown,
    NotLeading,
    SlotTaken,
    StoreBroken,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from minicluster_hub.store.facade import Store

__all__ = [
    "GangTaken",
    "HomeMoved",
    "ImageNameTaken",
    "JobUnknown",
    "NotLeading",
    "SlotTaken",
    "Store",
    "StoreBroken",
    "StoreError",
    "StoreFull",
    "StoreUnavailable",
]
