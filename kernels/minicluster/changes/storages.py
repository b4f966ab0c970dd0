"""Storages that were replaced while their tensors stayed: by `.to("cuda")`, `.data = ...`, a resize."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from minicluster.changes.known import Known
from minicluster.changes.inspection import Looks


def settle(known: Known, before: dict[int, Looks]) -> None:
    """Take a storage that came in the place of a known one for that, and drop what has another size now."""
    now: dict[int, dict[int, Any]] = defaultdict(dict)
    for number, looks in before.items():
        if "geometry" in looks[1] and looks[2][0].facts[0][0] == "known":
            (_, old), place = looks[2][0].facts
            storage, fits = _storage_now(known.objects[number], place)
            now[old][storage._cdata if fits else -number] = storage
    for number, found in now.items():
        cdata = next(iter(found))
        if len(found) == 1 and cdata > 0 and _moved(known, number, found[cdata]):
            _take(known, number, found[cdata], before)
    sized = ((n, looks[2][0].facts[0]) for n, looks in before.items() if looks[1] == ("memory",))
    known.drop([n for n, size in sized if n in known.objects and known.objects[n].nbytes() != size])


def _storage_now(tensor: Any, place: Any) -> tuple[Any, bool]:
    """Return a tensor's storage, and whether the tensor is the same part of it as before."""
    storage = tensor.untyped_storage()
    dtype, shape, strides, offset, _ = place
    now = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return storage, now == (dtype, shape, strides, offset)


def _moved(known: Known, number: int, storage: Any) -> bool:
    """Tell whether it is a new storage elsewhere. One of the same device is another one in the notebook, too:
    a view of the old one there must not change with it.
    """
    return known.storage(storage) is None and storage.device != known.objects[number].device


def _take(known: Known, number: int, storage: Any, before: dict[int, Looks]) -> None:
    looks = before.get(number)
    if looks and storage.nbytes() == looks[2][0].facts[0]:
        known.adopt(storage, number)
