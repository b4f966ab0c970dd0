"""Snapshots of divided models: each rank saves its parts, each node keeps those of its ranks.

torch.distributed.checkpoint writes the parts and says in its metadata which file has what. So ranks of
another number, or another strategy's parts, read what they need from those files.
"""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.optim import Optimizer

from minicluster.train import place
from minicluster.train.snapshots import state
from minicluster.train.snapshots.session import SnapshotSession
from minicluster.train.snapshots.state import Parts, SnapshotImpossible, WholeTensorReader
from minicluster.train.snapshots.store import DIVIDED_REST, Key, SnapshotNotKept, StoredSnapshot
from minicluster.train.strategies.divided import Divided
from minicluster.train.strategies.gather import optimizer_parts

_METADATA = ".metadata"
_MODEL, _OPTIMIZER = "model.", "optimizer."
Values = dict[tuple[str, str], Any]


class Offer(NamedTuple):
    """A rank's message before a snapshot. part: the node's number.

    folder: where the node's ranks are to write; only its first rank says it. trouble: why it has no room.
    uploads: whether the node's part of the snapshot before is still on its way into the job's storage.
    values: what no tensor holds.
    """

    part: int
    folder: str
    trouble: str
    uploads: bool
    randoms: dict[str, Any]
    values: Values


class PartsWriter:
    """Writes this rank's parts in the background, one snapshot at a time.

    due: the newest snapshot that goes into the job's storage. cost_s: training time that the newest finished
    snapshot cost: for how long the cell waited, and the CPU time of writing.
    """

    def __init__(self) -> None:
        self.due: Key | None = None
        self.cost_s = 0.0
        self._thread: threading.Thread | None = None
        self._complained = False

    def wait(self) -> None:
        """Wait until the current snapshot is written."""
        if self._thread is not None:
            self._thread.join()

    def complain(self, trouble: object) -> None:
        """Say once why there is no snapshot: training goes on without."""
        if not self._complained:
            self._complained = True
            print(f"mc.checkpoint: no snapshot was saved. {trouble}", file=sys.stderr)  # noqa: T201

    def write(
        self,
        here: SnapshotSession,
        tensors: Mapping[str, torch.Tensor],
        entry: StoredSnapshot,
        rest: bytes,
        began: float,
    ) -> None:
        """Copy this rank's tensors, and write the copies. began: start of the cell's wait."""
        writer, group = FileSystemWriter(entry.folder, sync_files=False), here.ranks.background_group
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            copies = writer.stage(dict(tensors))
        waited_s = time.perf_counter() - began

        def work() -> None:
            cpu_s = time.thread_time()
            try:
                metadata = save(copies, storage_writer=writer, process_group=group)
                if here.ranks.writes:
                    with here.snapshot_store.adding_part(entry):
                        (entry.folder / _METADATA).write_bytes(pickle.dumps(metadata))
                        (entry.folder / DIVIDED_REST).write_bytes(rest)
            except Exception as error:
                self.complain(error)
            self.cost_s = waited_s + time.thread_time() - cpu_s

        # Not a daemon thread: a rank must finish its last snapshot before it exits.
        self._thread = threading.Thread(target=work, name="minicluster-snapshot")
        self._thread.start()


def take(
    here: SnapshotSession, divided: Divided, named: Mapping[str, Any], step: int, keep: int, began: float
) -> None:
    """Save a snapshot of a divided model, each rank its parts. All ranks call it.

    Raises SnapshotImpossible.
    """
    writer: PartsWriter = here.parts_writer
    writer.wait()
    optimizer: Optimizer | None = named["optimizer"]
    _check_optimizer(divided, optimizer)
    key, nodes = (here.attempt, step), int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    tensors, values = parts_of(divided, optimizer)
    offers = here.ranks.gather(_offer(here, key, tensors, values))
    own = next(one for one in offers if one.part == _node() and (one.folder or one.trouble))
    trouble = next((one.trouble for one in offers if one.trouble), "")
    if trouble:
        if here.ranks.writes and own.folder:
            shutil.rmtree(own.folder, ignore_errors=True)
        if here.ranks.decides:
            writer.complain(trouble)
        return
    due = not any(one.uploads for one in offers)
    writer.due = key if due else writer.due
    about = {"step": step, "shares": divided.shares}
    rest = here.ranks.told_by(0, _rest(named, optimizer, offers, about) if here.ranks.decides else b"")
    entry = StoredSnapshot(Path(own.folder), step, here.attempt, len(offers), keep, {}, _node(), nodes, due)
    writer.write(here, tensors, entry, rest, began)


def _node() -> int:
    return int(os.environ.get("GROUP_RANK", "0"))


def _check_optimizer(divided: Divided, optimizer: Optimizer | None) -> None:
    known = {id(one) for one in divided.parameters.values()}
    groups = [] if optimizer is None else optimizer.param_groups
    if any(id(one) not in known for group in groups for one in group["params"]):
        raise SnapshotImpossible(
            "The optimizer has parameters that the divided model does not have: they would not be saved.",
            "Give mc.checkpoint() the optimizer that mc.prepare(model, optimizer, strategy=...) returned.",
        )


def _offer(here: SnapshotSession, key: Key, tensors: Mapping[str, torch.Tensor], values: Values) -> Offer:
    folder, trouble, uploads = "", "", False
    if here.ranks.writes:
        size_bytes = sum(map(_local_bytes, tensors.values())) * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        uploads = is_uploading(here)
        try:
            folder = str(here.snapshot_store.folder_for_part(key, size_bytes))
        except (OSError, SnapshotNotKept) as error:
            trouble = str(error)
    return Offer(_node(), folder, trouble, uploads, state.random_states(), values)


def is_uploading(here: SnapshotSession) -> bool:
    """Return whether the agent still has to upload this node's part of the newest snapshot that was due.

    A part that could not be written, or that had to make room, is never uploaded.
    """
    due, store = here.parts_writer.due, here.snapshot_store
    return due is not None and store.stored() != due and store.find(due, _node()) is not None


def _local_bytes(tensor: Any) -> int:
    return tensor.to_local().nbytes if hasattr(tensor, "to_local") else tensor.nbytes


def _rest(
    named: Mapping[str, Any],
    optimizer: Optimizer | None,
    offers: Sequence[Offer],
    about: Mapping[str, int],
) -> bytes:
    """Return what the ranks' tensors do not hold, pickled. Raises SnapshotImpossible."""
    own = ("model", "optimizer")
    more = {name: one for name, one in named.items() if name not in own and one is not None}
    groups = [] if optimizer is None else optimizer.param_groups
    values: Values = {}
    for offer in offers:
        values |= offer.values
    parts = Parts(
        {
            "groups": [{name: one for name, one in group.items() if name != "params"} for group in groups],
            "values": values,
            "more": {name: state.state_of(name, one) for name, one in more.items()},
        }
    )
    return pickle.dumps(
        {
            **about,
            "world_size": place.world_size(),
            "randoms": [one.randoms for one in offers],
            "rest": parts.rest,
            "tensors": {name: tensor.cpu() for name, tensor in parts.tensors.items()},
        }
    )


def _read_rest(data: bytes) -> dict[str, Any]:
    kept: dict[str, Any] = pickle.loads(data)  # noqa: S301 - the job itself pickled it
    rest, tensors = kept.pop("rest"), kept.pop("tensors")
    return {**kept, **state.put_together(rest, tensors)}


# What a rank has of the whole state.


def parts_of(divided: Divided, optimizer: Optimizer | None) -> tuple[dict[str, torch.Tensor], Values]:
    """Return this rank's tensors by their names in the snapshot, and what the optimizer has besides."""
    found = divided.state().items()
    tensors = {f"{_MODEL}{name}": one for name, one in found if isinstance(one, torch.Tensor)}
    values: Values = {}
    if optimizer is not None:
        parts = optimizer_parts(divided, optimizer, own_names(divided))
        for (name, key), value in parts.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{_OPTIMIZER}{name}.{key}"] = value
            else:
                values[name, key] = value
    return tensors, values


def own_names(divided: Divided) -> list[str]:
    """Return the names of this rank's parameters; one with several names has its first."""
    names = {id(one): name for name, one in reversed(list(divided.parameters.items()))}
    return [name for name, one in divided.parameters.items() if names[id(one)] == name]


def _places_for(divided: Divided, optimizer: Optimizer | None, metadata: Metadata) -> dict[str, torch.Tensor]:
    """Return the tensors to read into: the model's own, and new ones for the optimizer."""
    tensors, _ = parts_of(divided, None)
    if optimizer is None:
        return tensors
    counts_there = {
        id(one)
        for group in optimizer.param_groups
        if group.get("fused") or group.get("capturable")
        for one in group["params"]
    }
    for key, about in metadata.state_dict_metadata.items():
        name, _, own = key.removeprefix(_OPTIMIZER).rpartition(".")
        parameter = divided.parameters.get(name)
        if key.startswith(_OPTIMIZER) and parameter is not None and isinstance(about, TensorStorageMetadata):
            # torch keeps counts of steps on the CPU, unless its kernels read them.
            on_cpu = own == "step" and id(parameter) not in counts_there
            tensors[key] = _place_like(parameter.detach(), about, on_cpu=on_cpu)
    return tensors


def _place_like(parameter: torch.Tensor, about: TensorStorageMetadata, *, on_cpu: bool) -> torch.Tensor:
    """Return an empty tensor for an optimizer's value: divided like its parameter, if it has its shape."""
    dtype = about.properties.dtype
    if about.size == parameter.shape and parameter.dim() > 0:
        return torch.zeros_like(parameter, dtype=dtype)
    return torch.zeros(about.size, dtype=dtype, device="cpu" if on_cpu else parameter.device)


# Reading.


class HeldPart(NamedTuple):
    """A part that a node has: of which snapshot, which of how many, and the names of its files."""

    key: Key
    part: int
    parts: int
    files: tuple[str, ...]


class HeldParts(NamedTuple):
    """A rank's message when a run goes on. held: the parts that its node has.

    coming: the snapshot that the node's agent is fetching. Only the first rank of a node speaks for it.
    """

    speaks: bool
    held: tuple[HeldPart, ...]
    coming: Key | None


def restore(
    here: SnapshotSession, divided: Divided, named: Mapping[str, Any], exchange: Any
) -> dict[str, Any] | None:
    """Load the newest complete snapshot that all nodes together have; return what its tensors do not hold.

    All ranks call it. exchange: sends one part from a rank's node to those that ask for it. None: there is no
    snapshot. Raises SnapshotImpossible.
    """
    messages = _settled(here)
    newest = _newest_complete(messages)
    if newest is None:
        return None
    holders: dict[int, int] = {}
    files: dict[str, int] = {}
    for rank, message in enumerate(messages):
        for one in message.held:
            if one.key == newest:
                holders.setdefault(one.part, rank)
                files |= dict.fromkeys(one.files, one.part)
    source = min(holders.values())
    heads = here.ranks.told_by(source, _heads(here, newest) if here.ranks.rank == source else (b"", b""))
    metadata: Metadata = pickle.loads(heads[0])  # noqa: S301 - the job itself pickled it
    kept = _read_rest(heads[1])
    places = _places_for(divided, named["optimizer"], metadata)
    needed = {files[file] for file in needed_files(places, metadata)}
    _bring(here, newest, needed, holders, messages, exchange)
    with _all_parts(here, newest, heads[0]) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(dict(places), storage_reader=WholeTensorReader(folder), no_dist=True)
    _put_into_optimizer(divided, named["optimizer"], places, kept)
    return kept


def _settled(here: SnapshotSession) -> list[HeldParts]:
    """Return what all nodes have, when no agent fetches anything newer than that any more."""
    if here.ranks.writes:
        here.snapshot_store.remove_damaged()
    while True:
        messages = here.ranks.gather(_message(here))
        newest = _newest_complete(messages)
        coming = [message.coming for message in messages if message.coming is not None]
        if not coming or (newest is not None and max(coming) <= newest):
            return messages
        while here.ranks.writes and here.snapshot_store.fetching() is not None:
            time.sleep(0.02)


def _message(here: SnapshotSession) -> HeldParts:
    if not here.ranks.writes:
        return HeldParts(False, (), None)
    # Read this before the entries: the fetch may end in between.
    coming = here.snapshot_store.fetching()
    entries = [one for one in here.snapshot_store.entries() if one.divided]
    held = tuple(HeldPart(one.key, one.part, one.parts, tuple(one.files)) for one in entries)
    return HeldParts(True, held, coming)


def _newest_complete(messages: Sequence[HeldParts]) -> Key | None:
    found: dict[Key, set[int]] = {}
    counts: dict[Key, int] = {}
    for message in messages:
        for one in message.held:
            found.setdefault(one.key, set()).add(one.part)
            counts[one.key] = one.parts
    return max((key for key, parts in found.items() if len(parts) == counts[key]), default=None)


def _heads(here: SnapshotSession, key: Key) -> tuple[bytes, bytes]:
    """Return a snapshot's metadata, and what its tensors do not hold: each part has both."""
    entry = next(one for one in here.snapshot_store.entries() if one.key == key)
    return (entry.folder / _METADATA).read_bytes(), (entry.folder / DIVIDED_REST).read_bytes()


def needed_files(places: Mapping[str, torch.Tensor], metadata: Metadata) -> set[str]:
    """Return the files that hold what belongs into these tensors. Raises SnapshotImpossible."""
    planner = DefaultLoadPlanner()
    try:
        planner.set_up_planner(dict(places), metadata, True)
        items = planner.create_local_plan().items
    except (RuntimeError, ValueError) as error:
        raise SnapshotImpossible(
            f"The snapshot is that of another model: {error}",
            "Make the same model and optimizer as before, or submit the cell as a new job.",
        ) from error
    return {metadata.storage_data[item.storage_index].relative_path for item in items}


def _bring(
    here: SnapshotSession,
    key: Key,
    needed: set[int],
    holders: Mapping[int, int],
    messages: Sequence[HeldParts],
    exchange: Any,
) -> None:
    """Bring to each node the parts that its ranks need."""
    wishes = here.ranks.gather((_node(), frozenset(needed)))
    leaders = [(rank, wishes[rank][0]) for rank, message in enumerate(messages) if message.speaks]
    for part in sorted(holders):
        lacking = [
            rank
            for rank, node in leaders
            if any(part in wish for where, wish in wishes if where == node)
            and not any((held.key, held.part) == (key, part) for held in messages[rank].held)
        ]
        if lacking:
            exchange(key, part, holders[part], takes=here.ranks.rank in lacking)


@contextmanager
def _all_parts(here: SnapshotSession, key: Key, metadata: bytes) -> Iterator[Path]:
    """Yield a folder with the files of all parts that this node has."""
    with tempfile.TemporaryDirectory(prefix="minicluster-snapshot-") as name:
        folder = Path(name)
        (folder / _METADATA).write_bytes(metadata)
        for entry in here.snapshot_store.entries():
            for file in entry.files if entry.key == key else ():
                if file not in (_METADATA, DIVIDED_REST):
                    (folder / file).symlink_to(entry.folder / file)
        yield folder


def _put_into_optimizer(
    divided: Divided, optimizer: Optimizer | None, places: Mapping[str, torch.Tensor], kept: Mapping[str, Any]
) -> None:
    if optimizer is None or not kept["groups"]:
        return
    if len(optimizer.param_groups) != len(kept["groups"]):
        raise SnapshotImpossible(
            f"The optimizer has {len(optimizer.param_groups)} groups of parameters, but "
            f"{len(kept['groups'])} in the snapshot.",
            "Make the same optimizer as before, or submit the cell as a new job.",
        )
    values: Values = dict(kept["values"])
    for key, value in places.items():
        if key.startswith(_OPTIMIZER):
            name, _, own = key.removeprefix(_OPTIMIZER).rpartition(".")
            values[name, own] = value
    optimizer.state.clear()
    for (name, own), value in values.items():
        if name in divided.parameters:
            optimizer.state[divided.parameters[name]][own] = value
    for group, settings in zip(optimizer.param_groups, kept["groups"], strict=True):
        group.update(settings)
