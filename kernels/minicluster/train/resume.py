"""mc.resume: loads on all ranks the newest complete snapshot that any node has."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from minicluster.train import fault_tolerant, place
from minicluster.train.calls import called_as
from minicluster.train.snapshots import state
from minicluster.train.snapshots.arrays import SnapshotImpossible
from minicluster.train.snapshots.session import Ranks, session
from minicluster.train.snapshots.store import Archive, Key, SnapshotNotKept, SnapshotStore, StoredSnapshot

_LOOK_S = 0.02
_NONE: Key = (-1, -1)


class Offer(NamedTuple):
    """A rank's message to the others. speaks: whether it reports for its node.

    newest: the node's newest complete snapshot. coming: the snapshot that the node's agent is fetching.
    """

    speaks: bool
    newest: Key
    coming: Key


@called_as("step = mc.resume(model, optimizer, loader)")
def resume(
    model: Any = None,
    optimizer: Any = None,
    loader: Any = None,
    *,
    scale_lr: bool = False,
    **more: Any,
) -> int:
    """Continue from the job's newest snapshot: `step = mc.resume(model, optimizer, loader)`.

    Call it on all ranks after mc.prepare(), right before the training loop, with what mc.checkpoint()
    gets. It fills the objects that it gets: the values of a dict are new ones afterwards. Returns the
    snapshot's step, 0 when there is none. With as many ranks as before, the run continues as if it had never
    stopped. With more or fewer, a step has more or fewer samples: scale_lr multiplies the learning rate by
    the same ratio. In a fault-tolerant job a rank that joins later gets the state of its peers instead,
    including `more`, and their step.
    """
    named = {"model": state.plain_model(model), "optimizer": optimizer, "loader": loader, **more}
    state.check(named)
    if scale_lr and optimizer is not None and not hasattr(optimizer, "param_groups"):
        kind = type(optimizer).__name__
        raise SnapshotImpossible(f"scale_lr=True scales an optimizer of torch, not a {kind}.")
    if fault_tolerant.wanted():
        return fault_tolerant.resume(lambda: _from_snapshot(named, optimizer, scale_lr), more)
    return _from_snapshot(named, optimizer, scale_lr)


def _from_snapshot(named: dict[str, Any], optimizer: Any, scale_lr: bool) -> int:
    here = session()
    if here is None:
        return 0
    entry = _agreed(here.snapshot_store, here.ranks)
    if entry is None:
        return 0
    tensors, rest = state.read_files(entry.folder)
    kept = state.put_together(rest, tensors)
    for name, part in named.items():
        if part is not None and name in kept["state"]:
            state.put_back(part, kept["state"][name], name)
    _tell(here.ranks, entry, kept["world_size"], scale_lr)
    if scale_lr and optimizer is not None:
        _scale(optimizer, place.world_size() / kept["world_size"])
    if here.ranks.rank < len(kept["randoms"]):
        state.set_random_states(kept["randoms"][here.ranks.rank])
    return kept["step"]


def _agreed(snapshot_store: SnapshotStore, ranks: Ranks) -> StoredSnapshot | None:
    """Return the newest snapshot of any node; if this node lacks it, copy it here first."""
    offers = ranks.gather(_offer(snapshot_store, ranks))
    newest = max(offer.newest for offer in offers)
    while max(offer.coming for offer in offers) > newest:
        # Wait: the agents fetch a newer snapshot from the job's storage than the nodes have.
        if offers[0 if ranks.alone else ranks.rank].coming != _NONE:
            while snapshot_store.fetching() is not None:
                time.sleep(_LOOK_S)
        offers = ranks.gather(_offer(snapshot_store, ranks))
        newest = max(offer.newest for offer in offers)
    if newest == _NONE:
        return None
    if any(offer.speaks and offer.newest != newest for offer in offers):
        source = next(rank for rank, offer in enumerate(offers) if offer.newest == newest)
        _send_to_others(snapshot_store, ranks, newest, source)
    return snapshot_store.find(newest)


def _offer(snapshot_store: SnapshotStore, ranks: Ranks) -> Offer:
    if not ranks.writes:
        return Offer(False, _NONE, _NONE)
    # Read this before the entries: the fetch may end in between.
    coming = snapshot_store.fetching() or _NONE
    newest = snapshot_store.newest()
    return Offer(True, newest.key if newest else _NONE, coming)


def _send_to_others(snapshot_store: SnapshotStore, ranks: Ranks, key: Key, source: int) -> None:
    """Send a snapshot from one node to the nodes that lack it. All ranks must call this."""
    entry = snapshot_store.find(key)
    archive = Archive(entry) if entry and ranks.rank == source else None
    size_bytes = max(ranks.gather(archive.size_bytes if archive else 0))
    pieces = ranks.broadcast_pieces(source, size_bytes, archive.pieces() if archive else ())
    trouble = ""
    if entry is None and ranks.writes:
        trouble = _take_in(snapshot_store, pieces)
    else:
        for _ in pieces:
            pass
    if archive:
        archive.close()
    failures = list(filter(None, ranks.gather(trouble)))
    if failures:
        raise SnapshotNotKept(failures[0])


def _take_in(snapshot_store: SnapshotStore, pieces: Iterator[bytes]) -> str:
    """Write the pieces and store them as a snapshot; return why this failed, or ""."""
    path = snapshot_store.scratch_file("incoming.tar")
    trouble = ""
    try:
        with path.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        snapshot_store.adopt(path)
    except (OSError, SnapshotNotKept) as error:
        trouble = str(error)
        for _ in pieces:  # Take part in the other broadcasts, since other ranks wait in them.
            pass
    finally:
        path.unlink(missing_ok=True)
    return trouble


def _tell(ranks: Ranks, entry: StoredSnapshot, world_size: int, scale_lr: bool) -> None:
    if ranks.rank != 0:
        return
    print(f"mc.resume: continuing from the snapshot of step {entry.step}.", file=sys.stderr)  # noqa: T201
    now = place.world_size()
    if now == world_size:
        return
    learning = (
        "the learning rate was multiplied by the same ratio."
        if scale_lr
        else "the learning rate stays as it was; mc.resume(..., scale_lr=True) scales it by the same ratio."
    )
    going = "1 rank goes" if now == 1 else f"{now} ranks go"
    print(  # noqa: T201
        f"mc.resume: {going} on where {world_size} were. With the same batch size for each rank, "
        f"a step has {now}/{world_size} of the samples that it had; {learning}",
        file=sys.stderr,
    )


def _scale(optimizer: Any, ratio: float) -> None:
    """Apply the linear scaling rule: the learning rate is proportional to the global batch size."""
    for group in optimizer.param_groups:
        for name in ("lr", "initial_lr"):
            if name in group:
                group[name] = group[name] * ratio
