"""A state as files, by torch's distributed checkpoint; each node writes and reads all of it by itself."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

REST = "minicluster"
"""The key of what is no tensor."""


class _WholeTensorReader(FileSystemReader):
    """Reads each tensor at once: torch's own takes milliseconds for each, in many small reads."""

    def _slice_file(self, file: IO[bytes], sinfo: _StorageInfo) -> IO[bytes]:
        file.seek(sinfo.offset)
        return io.BytesIO(file.read(sinfo.length))


def write(folder: Path, tensors: Mapping[str, torch.Tensor], rest: bytes) -> None:
    """Write a state into a folder."""
    # Not synchronized to a disk: node memory is lost with its node anyway.
    writer = FileSystemWriter(folder, sync_files=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save({**tensors, REST: rest}, storage_writer=writer, no_dist=True)


def read(folder: Path) -> tuple[dict[str, torch.Tensor], bytes]:
    """Return the tensors and the rest that `write` was given."""
    state: dict[str, Any] = {}
    _load_state_dict(state, _WholeTensorReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    rest = state.pop(REST)
    return state, rest
