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
from minicluster.train.snapshots.session import Ranks, SnapshotSession, session
from minicluster.train.snapshots.store import Archive, Key, SnapshotNotKept, SnapshotStore, StoredSnapshot
from minicluster.train.strategies.divided import Divided, divided_of

_LOOK_S = 0.02
_NONE: Key = (-1, -1)
_CALL = "step = mc.resume(model, optimizer, loader)"


class Offer(NamedTuple):
    """A rank's message to the others. speaks: whether it reports for its node.

    newest: the node's newest complete snapshot. coming: the snapshot that the node's agent is fetching.
    """

    speaks: bool
    newest: Key
    coming: Key


@called_as(_CALL)
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
    named = {"model": state.trained_model(model), "optimizer": optimizer, "loader": loader, **more}
    state.check(named, _CALL)
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
    if (divided := divided_of(named["model"])) is not None:
        return _from_parts(here, divided, named, scale_lr)
    entry = _agreed(here.snapshot_store, here.ranks)
    if entry is None:
        return 0
    tensors, rest = state.read_files(entry.folder)
    kept = state.put_together(rest, tensors)
    for name, part in named.items():
        if part is not None and name in kept["state"]:
            state.put_back(part, kept["state"][name], name)
    shares = (kept["world_size"], place.world_size())
    return _go_on(here, kept, optimizer if scale_lr else None, shares)


def _from_parts(here: SnapshotSession, divided: Divided, named: dict[str, Any], scale_lr: bool) -> int:
    """Continue from the parts of a divided model that the nodes have together."""
    from minicluster.train.snapshots.divided import restore

    def exchange(key: Key, part: int, source: int, *, takes: bool) -> None:
        _send_to_others(here.snapshot_store, here.ranks, (key, part), source, takes=takes)

    kept = restore(here, divided, named, exchange)
    if kept is None:
        return 0
    if len(kept["randoms"]) != place.world_size():
        # Ranks that compute the same samples draw alike, as they do from the beginning.
        kept["randoms"] = []
    for name, part in named.items():
        if part is not None and name in kept["more"]:
            state.put_back(part, kept["more"][name], name)
    shares = (kept["shares"], divided.shares)
    return _go_on(here, kept, named["optimizer"] if scale_lr else None, shares)


def _go_on(here: SnapshotSession, kept: dict[str, Any], scaled: Any, shares: tuple[int, int]) -> int:
    """Tell from where the run goes on, and set what depends on the ranks. Return the step.

    scaled: the optimizer whose learning rate follows the number of samples of a step. shares: into how many
    shares the data was divided, and is now.
    """
    if here.ranks.rank == 0:
        _tell(kept["step"], kept["world_size"], shares, scaled=scaled is not None)
    if scaled is not None:
        _scale(scaled, shares[1] / shares[0])
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
        lacks = ranks.writes and snapshot_store.find(newest) is None
        _send_to_others(snapshot_store, ranks, (newest, 0), source, takes=lacks)
    return snapshot_store.find(newest)


def _offer(snapshot_store: SnapshotStore, ranks: Ranks) -> Offer:
    if not ranks.writes:
        return Offer(False, _NONE, _NONE)
    # Read this before the entries: the fetch may end in between.
    coming = snapshot_store.fetching() or _NONE
    newest = snapshot_store.newest()
    return Offer(True, newest.key if newest else _NONE, coming)


def _send_to_others(
    snapshot_store: SnapshotStore, ranks: Ranks, which: tuple[Key, int], source: int, *, takes: bool
) -> None:
    """Send a part of a snapshot from one node to others. All ranks must call this.

    takes: whether this rank takes it for its node.
    """
    entry = snapshot_store.find(*which) if ranks.rank == source else None
    archive = Archive(entry) if entry else None
    size_bytes = max(ranks.gather(archive.size_bytes if archive else 0))
    pieces = ranks.broadcast_pieces(source, size_bytes, archive.pieces() if archive else ())
    trouble = ""
    if takes:
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


def _tell(step: int, world_size: int, shares: tuple[int, int], *, scaled: bool) -> None:
    print(f"mc.resume: continuing from the snapshot of step {step}.", file=sys.stderr)  # noqa: T201
    now = place.world_size()
    if now == world_size:
        return
    going = "1 rank goes" if now == 1 else f"{now} ranks go"
    if shares[0] == shares[1]:
        print(  # noqa: T201
            f"mc.resume: {going} on where {world_size} were. A step has as many samples as it had.",
            file=sys.stderr,
        )
        return
    learning = (
        "the learning rate was multiplied by the same ratio."
        if scaled
        else "the learning rate stays as it was; mc.resume(..., scale_lr=True) scales it by the same ratio."
    )
    print(  # noqa: T201
        f"mc.resume: {going} on where {world_size} were. With the same batch size for each rank, "
        f"a step has {shares[1]}/{shares[0]} of the samples that it had; {learning}",
        file=sys.stderr,
    )


def _scale(optimizer: Any, ratio: float) -> None:
    """Apply the linear scaling rule: the learning rate is proportional to the global batch size."""
    for group in optimizer.param_groups:
        for name in ("lr", "initial_lr"):
            if name in group:
                group[name] = group[name] * ratio
