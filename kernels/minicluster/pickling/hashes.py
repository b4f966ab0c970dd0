"""Hashes of a cell's large parts: a part that did not change since the cell before is not hashed again."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from minicluster.changes.digest import digest
from minicluster.pickling.parts import PicklePart, digests


class PartHashes:
    """Parts' SHA-256. Those of the cell before are remembered by a digest that is eight times as quick.

    seed: nobody else knows it, so nobody can make two contents that look the same.
    """

    def __init__(self) -> None:
        self._seed = secrets.randbits(64)
        self._before: dict[tuple[int, bytes], str] = {}

    def of(self, parts: Sequence[PicklePart]) -> list[str]:
        """Return them in the parts' order."""
        looks = [(part.size_bytes, digest(part.data, self._seed)) for part in parts]
        fresh = {look: part for look, part in zip(looks, parts, strict=True) if look not in self._before}
        known = self._before | dict(zip(fresh, digests(list(fresh.values())), strict=True))
        self._before = {look: known[look] for look in looks}
        return [known[look] for look in looks]
