"""Failed writes to a disk. A full disk is a case of its own, since a person must free space."""

from __future__ import annotations

import errno


class NotKept(Exception):
    """A write to a disk failed; the client may send the data again. full: the disk had no space left."""

    def __init__(self, what: str, error: OSError) -> None:
        super().__init__(f"{what}: {error.strerror}")
        self.full = error.errno in (errno.ENOSPC, errno.EDQUOT)
