"""How the ranks of a job agree on snapshots: small messages over the CPU, outside of the training's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from minicluster.train import place

_PIECE_BYTES = 8 << 20
T = TypeVar("T")


class Ranks:
    """All ranks that train together; alone where there is no process group."""

    def __init__(self) -> None:
        self._group: Any = None
        self.alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1
        self.rank = place.rank() if self.alone else dist.get_rank()
        self.writes = place.local_rank() == 0
        """Whether this rank writes and reads the snapshots of its node."""
        if not self.alone:
            world = dist.distributed_c10d._get_default_group()
            if torch.device("cpu") not in world._device_types:
                self._group = dist.new_group(backend="gloo")

    @property
    def decides(self) -> bool:
        """Whether this rank's clock counts. In a fault-tolerant job each rank is alone in this."""
        return self.alone or self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, in their order."""
        if self.alone:
            return [value]
        values: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(values, value, group=self._group)
        return values

    def decided_by_first(self, value: Any) -> Any:
        """Return on all ranks the value of rank 0: a tuple of whole numbers."""
        if self.alone:
            return value
        numbers = torch.tensor(value, dtype=torch.int64)
        dist.broadcast(numbers, src=0, group=self._group)
        return tuple(numbers.tolist())

    def broadcast_pieces(self, source: int, size_bytes: int, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Yield on all ranks what `source` has in `pieces`. All have to go through to the end."""
        if self.rank == source:
            held = bytearray()
            for piece in pieces:
                held += piece
                while len(held) >= _PIECE_BYTES:
                    yield self._broadcast(source, held[:_PIECE_BYTES], _PIECE_BYTES)
                    del held[:_PIECE_BYTES]
            if held:
                yield self._broadcast(source, held, len(held))
            return
        for start in range(0, size_bytes, _PIECE_BYTES):
            yield self._broadcast(source, None, min(_PIECE_BYTES, size_bytes - start))

    def _broadcast(self, source: int, data: bytearray | None, size: int) -> bytes:
        piece = torch.empty(size, dtype=torch.uint8)
        if data is not None:
            piece = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(piece, src=source, group=self._group)
        return piece.numpy().tobytes()
