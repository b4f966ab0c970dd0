"""The options of storage: users' quotas on the service's disk, and the space that it leaves free."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from traitlets import Float, Integer
from traitlets.config import Configurable

from minicluster.wire.files.storage import GB

if TYPE_CHECKING:
    from minicluster_hub.storage.quotas import Storage
    from minicluster_hub.store import Store

_SHARE_OF_DISK = 4
"""The default quota is at most 1/4 of the disk."""


class StorageOptions(Configurable):
    """Set them as options of MiniclusterHub."""

    storage_gb = Float(
        100.0,
        min=0.0,
        help="GB that a user may keep with the job service (cells, results, snapshots, files, output, data "
        "sets, published images, compiled code; each file counts 4 KB at least), but a quarter of its disk "
        "at most; 0: that quarter. The quota storage_gb of a user, a group or '*' goes instead. More fills "
        "the disk sooner.",
    ).tag(config=True)
    storage_reserve_gb = Float(
        2.0,
        min=0.0,
        help="GB of the disk, but 5 % of it at most, that uploads leave free for the database and what is "
        "small, and some of its inodes, too; 0: none.",
    ).tag(config=True)
    data_limit_bytes = Integer(
        0, min=0, help="Most bytes of data sets of one user; 0: as much as the user may keep at all."
    ).tag(config=True)

    def storage(self, store: Store, quota_gb: Callable[[str], float | None], folder: Path) -> Storage:
        """Return the storage quotas. quota_gb: an owner's quota; None: the default."""
        from minicluster_hub.storage.disk_space import DiskSpace
        from minicluster_hub.storage.quotas import Storage

        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        share = shutil.disk_usage(folder).total // _SHARE_OF_DISK
        default = min(int(self.storage_gb * GB) or share, share)

        def limit_of(owner: str) -> int:
            quota = quota_gb(owner)
            return default if quota is None else int(quota * GB)

        disk = DiskSpace(folder, int(self.storage_reserve_gb * GB))
        return Storage(store.storage, limit_of, disk, self.data_limit_bytes)
