"""A pipe in the place of an agent's, for what mc.log sends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator

import pytest

from minicluster.train.metrics import pending, sending
from minicluster.wire import Record

Read = Callable[[], list[Record]]


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Iterator[Read]:
    """Return a function that reads the records that were sent so far."""
    read_fd, write_fd = os.pipe()
    os.set_blocking(read_fd, False)
    fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, 1 << 20)  # as much as the longest record
    monkeypatch.setenv("MINICLUSTER_RECORDS_FD", str(write_fd))
    monkeypatch.setattr(pending, "queue", pending.Queue())

    def read() -> list[Record]:
        sending.flush()
        data = b""
        while True:
            try:
                data += os.read(read_fd, 1 << 20)
            except BlockingIOError:
                return [Record.model_validate_json(line) for line in data.splitlines()]

    yield read
    os.close(write_fd)
    os.close(read_fd)
