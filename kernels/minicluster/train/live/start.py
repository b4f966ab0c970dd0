"""The first step of a fault-tolerant attempt waits for all ranks that were started together."""

from __future__ import annotations

import time
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

from minicluster.train.live import settings
from minicluster.train.live.settings import LiveSettings

_KEY = "minicluster-live-start"
_LOOK_S = 0.02


def wait_for_all(around: LiveSettings) -> None:
    """Wait until the attempt's first ranks are here, or START_WAIT_S; one that joins waits for nobody.

    Without it the quickest would take its first steps alone. A rank that comes later joins live.
    """
    if around.joins or around.world_size == 1:
        return
    deadline = time.monotonic() + settings.START_WAIT_S
    try:
        store = TCPStore(*around.store, is_master=False, timeout=timedelta(seconds=5))
        store.add(_KEY, 1)
        while store.add(_KEY, 0) < around.world_size and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
    except (RuntimeError, OSError):
        # The store's node is gone: who is here begins.
        return
