"""The agent's part in snapshots: it uploads an attempt's newest, and fetches the job's newest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minicluster.runtime.agent.client import AgentClient, ServiceRefused, with_retries
from minicluster.train.snapshots.store import (
    Archive,
    SnapshotNotKept,
    SnapshotStore,
    StoredSnapshot,
    forget_all,
    forget_other_jobs,
    job_folders,
)
from minicluster.wire import BlobInfo, RunOrder, SnapshotRef, SnapshotReport, TaskReport

LOOK_S = 0.5
UPLOAD_SPACING_S = 15.0
"""The least time between two uploads of snapshots."""
_MOST_DOUBLINGS = 5
"""Each refusal doubles that time, at most so often: a quota does not grow while its owner sleeps."""

log = logging.getLogger(__name__)


class SnapshotTransfers:
    """The snapshots that one attempt after the other leaves on this node."""

    def __init__(self, client: AgentClient, changed: Callable[[], None]) -> None:
        self._client = client
        self._changed = changed
        self._order: RunOrder | None = None
        self._snapshot_store: SnapshotStore | None = None
        self._work: list[asyncio.Task[None]] = []
        self._one_at_a_time = asyncio.Lock()
        self._stored: tuple[SnapshotReport, ...] = ()
        self._notes: list[str] = []
        self._cost_told = False
        self._refusals = 0

    def begin(self, order: RunOrder) -> None:
        """Prepare for an attempt, before its ranks start."""
        self._stop_work()
        forget_other_jobs(order.job_id)
        if self._order is None or self._order.job_id != order.job_id:
            self._cost_told = False
        self._order, self._snapshot_store = order, SnapshotStore(job_folders(order.job_id))
        self._stored, self._notes, self._refusals = (), [], 0
        self._snapshot_store.mark_fetching(None)
        if order.snapshot and (lacking := self._lacking(self._snapshot_store, order, order.snapshot)):
            self._begin_fetch(self._snapshot_store, order.snapshot, lacking)
        self._work.append(asyncio.create_task(self._follow(self._snapshot_store)))

    def renew(self, order: RunOrder) -> None:
        """Take a changed order of the same attempt: another task may lead."""
        if self._order and order.attempt == self._order.attempt:
            self._order = order

    def reports(self) -> tuple[SnapshotReport, ...]:
        return self._stored

    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def has_all(self, report: TaskReport) -> bool:
        return report.snapshots == self.reports()

    async def finish(self, limit_s: float, *, alike: bool) -> None:
        """Upload the attempt's last snapshot, if that is done within `limit_s`.

        alike: whether all nodes have the same snapshots: the ranks came to their end.
        """
        order, snapshot_store = self._order, self._snapshot_store
        self._stop_work()
        if order is None or snapshot_store is None:
            return
        if order.returns_result:
            self._tell_cost(snapshot_store)
        try:
            async with asyncio.timeout(limit_s):
                while (snapshot := self._last(snapshot_store, alike=alike)) and await self._upload(snapshot):
                    pass
        except TimeoutError:
            log.warning("the last snapshot of attempt %s was not brought to the service", order.attempt)

    def close(self) -> None:
        """Remove everything: the task is over."""
        self._stop_work()
        forget_all()

    def _stop_work(self) -> None:
        for task in self._work:
            task.cancel()
        self._work = []

    # From the job's storage.

    def _lacking(self, snapshot_store: SnapshotStore, order: RunOrder, wanted: SnapshotRef) -> list[BlobInfo]:
        """Return the parts that this node is to fetch: the nodes share those of a divided model."""
        key = (wanted.attempt, wanted.step)
        if len(wanted.parts) > 1:
            mine = range(order.group_rank, len(wanted.parts), order.group_world_size)
            return [wanted.parts[part] for part in mine if snapshot_store.find(key, part) is None]
        here = snapshot_store.entries()
        # In a fault-tolerant job no rank asks the others for a snapshot, so each node fetches it.
        fetches = order.group_rank == 0 or order.fault_tolerant
        return list(wanted.parts) if fetches and (not here or here[0].key < key) else []

    def _begin_fetch(self, snapshot_store: SnapshotStore, wanted: SnapshotRef, parts: list[BlobInfo]) -> None:
        """Have the ranks start meanwhile: mc.resume() waits for the snapshot only if it needs it."""
        try:
            snapshot_store.mark_fetching((wanted.attempt, wanted.step))
        except OSError as error:
            self._note(f"The snapshot of step {wanted.step} could not be fetched. {error}")
        else:
            self._work.append(asyncio.create_task(self._fetch(snapshot_store, wanted, parts)))

    async def _fetch(self, snapshot_store: SnapshotStore, wanted: SnapshotRef, parts: list[BlobInfo]) -> None:
        try:
            for number, part in enumerate(parts):
                path = snapshot_store.scratch_file(f"fetched-{number}.tar")
                await self._client.fetch(part.sha256, path, kind="snapshots")
                await asyncio.to_thread(snapshot_store.adopt, path)
                path.unlink(missing_ok=True)
        except (ServiceRefused, SnapshotNotKept, OSError) as error:
            self._note(f"The snapshot of step {wanted.step} could not be fetched. {error}")
        finally:
            snapshot_store.mark_fetching(None)

    # Into the job's storage.

    async def _follow(self, snapshot_store: SnapshotStore) -> None:
        loop, next_at = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(LOOK_S)
            if self._order and self._order.returns_result:
                self._tell_cost(snapshot_store)
            snapshot = self._next(snapshot_store)
            if snapshot and loop.time() >= next_at:
                next_at = loop.time() + UPLOAD_SPACING_S
                if not await self._upload(snapshot):
                    # All of it was sent for nothing.
                    next_at = loop.time() + UPLOAD_SPACING_S * 2 ** min(self._refusals, _MOST_DOUBLINGS)

    def _next(self, snapshot_store: SnapshotStore) -> StoredSnapshot | None:
        """Return the attempt's newest snapshot, unless another node uploads it or it is uploaded."""
        newest = next((one for one in self._own(snapshot_store) if one.due), None)
        known = max(((one.attempt, one.step) for one in self._stored), default=(-1, -1))
        return newest if newest and newest.key > known else None

    def _last(self, snapshot_store: SnapshotStore, *, alike: bool) -> StoredSnapshot | None:
        """Return what is to be uploaded at the attempt's end: the newest snapshot.

        If ranks were killed, a node may lack its part of the newest: then the one before it goes, too.
        """
        own = self._own(snapshot_store)
        most = 2 if own and own[0].parts > 1 and not alike else 1
        known = {(one.attempt, one.step) for one in self._stored}
        return next((one for one in own[:most] if one.key not in known), None)

    def _own(self, snapshot_store: SnapshotStore) -> list[StoredSnapshot]:
        """Return what this node uploads of the attempt, newest first: its parts, or as the leader all."""
        order = self._order
        if order is None:
            return []
        return [
            one
            for one in snapshot_store.entries()
            if one.attempt == order.attempt
            and (one.part == order.group_rank if one.parts > 1 else order.returns_result)
        ]

    async def _upload(self, snapshot: StoredSnapshot) -> bool:
        """Upload a snapshot, or say once why it stays here; return whether the next one is worth a try."""

        async def send() -> BlobInfo:
            with Archive(snapshot) as archive:
                sha256 = await asyncio.to_thread(archive.sha256)
                url = f"api/tasks/snapshots/{sha256}"
                return await self._client.send(url, archive.size_bytes, archive.pieces())

        async with self._one_at_a_time:
            try:
                blob = await with_retries(send)
            except FileNotFoundError:
                # A newer one has taken its place; or it is damaged, and another try would not end either.
                store = self._snapshot_store
                return store is not None and store.find(snapshot.key, snapshot.part) is None
            except (ServiceRefused, OSError) as error:
                if not self._refusals:
                    self._note(f"A snapshot could not be brought into the job's storage. {error}")
                self._refusals += 1
                return False
        self._refusals = 0
        report = SnapshotReport(
            step=snapshot.step,
            attempt=snapshot.attempt,
            blob=blob,
            part=snapshot.part,
            parts=snapshot.parts,
            keep=snapshot.keep,
        )
        self._stored = (report, *self._stored)[: 1 if snapshot.parts == 1 else 2]
        if self._snapshot_store is not None:
            self._snapshot_store.mark_stored(snapshot.key)
        self._changed()
        return True

    def _tell_cost(self, snapshot_store: SnapshotStore) -> None:
        cost = None if self._cost_told else snapshot_store.cost()
        if cost:
            self._cost_told = True
            self._note(
                f"A snapshot of {cost['size_bytes'] / 1e6:.1f} MB takes {cost['cost_s']:.2g} s. "
                f"One is taken each {cost['interval_s']:.1f} s: "
                f"{cost['cost_s'] / cost['interval_s']:.2%} of the time."
            )

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
            self._changed()
