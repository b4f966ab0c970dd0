"""Starts a rank in a fresh Python, where the zygote has imported the framework that trains in the cell.

JAX and TensorFlow start threads, of which a forked child has none: it would hang. The zygote never imports
them, but what a user's own sitecustomize or .pth file imports is imported in each Python, the zygote's, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from pathlib import Path

from minicluster.wire.training.framework import Framework

_THREADED = {
    Framework.JAX: frozenset({"jax", "jaxlib"}),
    Framework.TENSORFLOW: frozenset({"tensorflow"}),
}
_FRESH = "MINICLUSTER_FRESH_RANK"
"""Set in a process that was started here: it goes on, although it may have imported the same again."""


def is_needed(framework: Framework, imported: Collection[str]) -> bool:
    """Return whether a forked rank cannot run a cell of this framework. imported: names of modules."""
    return _FRESH not in os.environ and not _THREADED.get(framework, frozenset()).isdisjoint(imported)


def start(zygote_pid: int, folder: Path, local_rank: int, fds: Collection[int]) -> None:
    """Become a fresh Python that runs this rank. fds: its pipes. The process keeps its id and its parent."""
    for fd in fds:
        os.set_inheritable(fd, True)
    words = [str(zygote_pid), str(folder), str(local_rank), *map(str, fds)]
    # -P: a file of the user called torch.py must not be imported in torch's place.
    command = [sys.executable, "-P", "-m", "minicluster.runtime.rank.cold", *words]
    os.execve(sys.executable, command, {**os.environ, _FRESH: "1"})  # noqa: S606 - it is Python itself


def main() -> None:
    from minicluster.runtime.rank import rank

    zygote_pid, folder, local_rank, *fds = sys.argv[1:]
    for fd in fds:
        os.set_inheritable(int(fd), False)
    rank.main(int(zygote_pid), Path(folder), int(local_rank), rank.RankPipes(*map(int, fds)))


if __name__ == "__main__":
    main()
