"""A folder's images, decoded once for all ranks of a node: one file that is there whole, or not there."""

from __future__ import annotations

import fcntl
import gc
import os
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path

import torch

from minicluster.train.snapshots.session import finish_writing
from minicluster.vision.decoding import IMAGE_BYTES, SHAPE, decode

_AT_ONCE = 128
"""How many images a process decodes before it writes them."""


def default_folder() -> Path:
    """Return where decoded images are kept: in a job, with the task's own files, which end with it."""
    scratch = os.environ.get("MINICLUSTER_SCRATCH")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(scratch or Path(cache) / "minicluster") / "images"


def kept(cache: Path, digest: Callable[[], str], folder: Path, names: Sequence[str]) -> torch.Tensor:
    """Return the images of a folder's files as (N, 3, 32, 32), mapped from the cache's file.

    Who comes first makes the file, with all cores that it has; the others wait. digest: tells whether
    the cache has these very files. Where it has none at all, they are decoded while that is found out.
    Raises OSError where there is no room, DamagedImage.
    """
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(cache):
        making = _Making(cache / "unfinished", folder, names)
        try:
            if not any(cache.iterdir()):
                making.begin()
            path = cache / digest()
            if not path.exists():
                making.begin()
                making.finish(path)
        finally:
            making.end()
    return torch.from_file(str(path), size=len(names) * IMAGE_BYTES, dtype=torch.uint8).view(-1, *SHAPE)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder, however its holder ends; who was forked meanwhile and still writes holds it, too."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


class _Making:
    """Processes that decode the files into one file, which nobody uses before it is whole.

    Each takes the next images that nobody has taken yet: they end together, whatever else the cores do.
    """

    _WORD_BYTES = 8

    def __init__(self, path: Path, folder: Path, names: Sequence[str]) -> None:
        self._path, self._folder, self._names = path, folder, names
        self._processes: list[ForkProcess] = []
        # A file whose place all share: whoever reads takes the next, and can die without holding up others.
        self._todo = os.memfd_create("todo")
        os.pwrite(self._todo, array("q", range(0, len(names), _AT_ONCE)).tobytes(), 0)

    def begin(self) -> None:
        """Start the processes, unless they are. Raises OSError where there is no room."""
        if self._processes:
            return
        with self._path.open("wb") as file:
            # All room at once: a full disk is told here, and not by a signal later.
            os.posix_fallocate(file.fileno(), 0, len(self._names) * IMAGE_BYTES)
        finish_writing()
        fork = get_context("fork")
        self._processes = [fork.Process(target=self._try) for _ in os.sched_getaffinity(0)]
        for process in self._processes:
            process.start()

    def finish(self, path: Path) -> None:
        """Wait for them and give the file its name. Raises DamagedImage."""
        for process in self._processes:
            process.join()
        if any(process.exitcode for process in self._processes):
            os.lseek(self._todo, 0, os.SEEK_SET)
            self._write_rest()  # All of it, here: its error is raised here, and nothing is missing.
        self._path.rename(path)

    def end(self) -> None:
        """Leave nothing behind but a file that is whole."""
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        os.close(self._todo)
        self._path.unlink(missing_ok=True)

    def _try(self) -> None:
        gc.freeze()  # To search what came with the fork for garbage would copy all of its memory.
        try:
            self._write_rest()
        except BaseException:
            os._exit(1)

    def _write_rest(self) -> None:
        """Decode until all is taken."""
        with self._path.open("r+b") as file:
            while first := os.read(self._todo, self._WORD_BYTES):
                at = int.from_bytes(first, sys.byteorder)
                file.seek(at * IMAGE_BYTES)
                file.write(decode(self._folder, self._names[at : at + _AT_ONCE]).data)
