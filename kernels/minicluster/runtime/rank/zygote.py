"""The zygote, the ranks' parent process: imports torch once, then forks each rank in milliseconds.

It must stay single-threaded and must never use CUDA: a child of a process that ran threads hangs in OpenMP,
and CUDA does not survive a fork. It exchanges JSON messages and descriptors with the agent over one
SOCK_SEQPACKET socket.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from minicluster.runtime import system
from minicluster.runtime.rank import huge_pages

MESSAGE_BYTES = 64 * 1024
_MOST_FDS = 8
NICENESS = 5
"""The ranks' niceness, so that the agent gets CPU time on a busy machine."""
_RANK = "rank"
_ALL = object()
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_SET_BY_TORCH = ("TORCHINDUCTOR_CACHE_DIR",)
"""Importing torch._dynamo sets it to a folder in /tmp, which all ranks of a machine would share."""

ChildMain = Callable[[], NoReturn]
"""What a forked child runs; it ends the process."""


class Zygote:
    """Forks ranks at the agent's request and reports their exits."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._children: dict[int, str] = {}
        self._collapsing: Iterator[None] = huge_pages.collapse()
        self._collapses = False
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def serve(self) -> ChildMain | None:
        """Fork until the agent ends, then return None; in a forked child, return the function to run."""
        while True:
            pause_s = 0 if self._collapses else None
            readable, _, _ = select.select([self._channel, self._woken], [], [], pause_s)
            if not readable:
                self._collapses = next(self._collapsing, _ALL) is not _ALL
            if self._woken in readable:
                os.read(self._woken, 4096)
                self._reap()
            if self._channel in readable:
                message, fds, _, _ = socket.recv_fds(self._channel, MESSAGE_BYTES, _MOST_FDS)
                if not message:
                    return None
                child_main = self._fork(json.loads(message), fds)
                if child_main:
                    return child_main

    def _fork(self, request: dict[str, Any], fds: list[int]) -> ChildMain | None:
        try:
            pid = os.fork()
        except OSError as error:
            self._send(event="refused", name=request["name"], reason=error.strerror)
            pid = -1
        if pid == 0:
            return self._child_main(request, fds)
        for fd in fds:
            os.close(fd)
        if pid > 0:
            self._children[pid] = request["kind"]
            # A rank would keep its own copy of what is moved now.
            self._collapses = self._collapses and request["kind"] != _RANK
            self._send(event="forked", name=request["name"], pid=pid)
        return None

    def _child_main(self, request: dict[str, Any], fds: list[int]) -> ChildMain:
        from minicluster.runtime.rank import forked, rank

        signal.set_wakeup_fd(-1)
        self._channel.close()
        os.close(self._woken)
        os.close(self._waker)
        if request["kind"] == "store":
            return lambda: forked.serve_store(self._pid, *fds)
        return lambda: rank.main(
            self._pid, Path(request["folder"]), request["local_rank"], rank.RankPipes(*fds)
        )

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if kind := self._children.pop(pid, ""):  # Others are adopted orphans.
                self._send(event="exited", pid=pid, status=status)
                # Between two cells, there is time to make the next forks faster.
                self._collapses |= kind == _RANK and _RANK not in self._children.values()

    def _send(self, **message: Any) -> None:
        self._channel.send(json.dumps(message).encode())


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Import with one thread, and leave the environment as it was."""
    before = {name: os.environ.get(name) for name in (*_ONE_THREAD, *_SET_BY_TORCH)}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def preload() -> None:
    """Import the modules that every rank needs, without starting thread pools."""
    with _single_threaded():
        import numpy  # noqa: F401
        import torch
        import torch._dynamo
        import torch.distributed
        import torch.distributed.checkpoint
        import torch.nn.parallel
        import torch.utils.data  # noqa: F401

        from minicluster.runtime.rank import forked, rank  # noqa: F401
        from minicluster.wire import Collective, Record, RunOrder, Versions
        from minicluster.wire.sweeps.trials import TrialRef

    # A message's validator is built when it is first used: here once, and not in each rank.
    for message in (RunOrder, Versions, TrialRef, Record, Collective):
        message.model_rebuild()
    # A child must not run inherited finalizers at exit: those of torch's libraries take 50-200 ms.
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    gc.collect()
    gc.freeze()  # The collector then does not write to pages shared with children.


def main() -> int:
    channel, agent_pid = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    system.die_with_parent(agent_pid)
    system.adopt_orphans()
    os.nice(NICENESS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        preload()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:2000]
        channel.send(json.dumps({"event": "broken", "reason": text}).encode())
        traceback.print_exc()
        return 1
    zygote = Zygote(channel)
    channel.send(b'{"event": "ready"}')
    child_main = zygote.serve()
    if child_main:
        child_main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
