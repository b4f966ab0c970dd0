"""Errors of a disk that did not take something, told apart: a full one needs a person."""

from __future__ import annotations

import errno


class NotKept(Exception):
    """A disk did not take what came. It can be sent again. full: there was no room left."""

    def __init__(self, what: str, error: OSError) -> None:
        super().__init__(f"{what}: {error.strerror}")
        self.full = error.errno in (errno.ENOSPC, errno.EDQUOT)
