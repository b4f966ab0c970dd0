"""Every file name of an attempt, in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AttemptPaths:
    """The files of one attempt on this node, all in `folder`."""

    folder: Path

    @property
    def order(self) -> Path:
        return self.folder / "order.json"

    @property
    def payload(self) -> Path:
        return self.folder / "payload"

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    @property
    def work(self) -> Path:
        """The ranks' working folder, where files from beside the notebook came along."""
        return self.folder / "work"

    @property
    def laid_out(self) -> Path:
        """The files of the working folder before the ranks started."""
        return self.folder / "work.json"

    def modules(self, rank: int) -> Path:
        """Return a rank's own copy of the modules beside the notebook: no rank waits for another."""
        return self.folder / f"modules-{rank}"

    @property
    def result(self) -> Path:
        return self.folder / "result"

    def error_file(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.error.json"

    @property
    def compile_cache(self) -> Path:
        """The file that is there once the agent has fetched the compile cache, or has given up."""
        return self.folder / "compile-cache"

    @property
    def cell(self) -> Path:
        """The cell's text, for stack dumps of the ranks."""
        return self.folder / "cell.json"

    def stacks(self, rank: int) -> Path:
        """Return the file into which a rank dumps its stack when it is signalled."""
        return self.folder / f"rank-{rank}.stacks"

    def requests(self, rank: int) -> Path:
        """Return the named pipe on which the agent asks something of a rank whose cell runs."""
        return self.folder / f"rank-{rank}.requests"

    def collective_answers(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.collective"

    def spool(self, stream: str) -> Path:
        return self.folder / f"{stream}.log"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically: it is there with all its bytes, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)
