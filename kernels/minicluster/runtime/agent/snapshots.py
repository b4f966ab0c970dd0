"""The agent's part in snapshots: it brings the newest into the job's storage, and a job's newest here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minicluster.runtime.agent.link import Backoff, Link, ServiceAway, ServiceRefused
from minicluster.runtime.rank import memory
from minicluster.train.snapshots.archive import Archive
from minicluster.train.snapshots.store import Entry, Key, SnapshotNotKept, SnapshotStore
from minicluster.wire import RunOrder, SnapshotRef, SnapshotReport, TaskReport

LOOK_S = 0.5
UPLOAD_SPACING_S = 15.0
"""At least so long from one snapshot that is brought to the service to the next."""
_MOST_DOUBLINGS = 5
"""After refusals, one by one, it is longer: a quota does not grow while its owner sleeps."""

log = logging.getLogger(__name__)


class SnapshotKeeper:
    """Follows the snapshots that one attempt after the other leaves on this node."""

    def __init__(self, link: Link, changed: Callable[[], None]) -> None:
        self._link = link
        self._changed = changed
        self._order: RunOrder | None = None
        self._snapshot_store: SnapshotStore | None = None
        self._work: list[asyncio.Task[None]] = []
        self._one_at_a_time = asyncio.Lock()
        self._stored: SnapshotReport | None = None
        self._notes: list[str] = []
        self._cost_told = False
        self._refusals = 0

    def begin(self, order: RunOrder) -> None:
        """Be there for an attempt, before its ranks start."""
        self._stop_work()
        memory.forget_other_jobs(order.job_id)
        if self._order is None or self._order.job_id != order.job_id:
            self._cost_told = False
        self._order, self._snapshot_store = order, SnapshotStore(memory.job_folders(order.job_id))
        self._stored, self._notes, self._refusals = None, [], 0
        self._snapshot_store.mark_fetching(None)
        # In a fault-tolerant job no rank asks the others for a snapshot, so each node fetches it.
        fetches = order.group_rank == 0 or order.fault_tolerant
        if fetches and order.snapshot and self._lacks(self._snapshot_store, order.snapshot):
            self._begin_fetch(self._snapshot_store, order.snapshot)
        self._work.append(asyncio.create_task(self._follow(self._snapshot_store)))

    def renew(self, order: RunOrder) -> None:
        """Hear that the order of the same attempt has changed: which task leads, say."""
        if self._order and order.attempt == self._order.attempt:
            self._order = order

    def reports(self) -> tuple[SnapshotReport, ...]:
        return (self._stored,) if self._stored else ()

    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def told_all(self, report: TaskReport) -> bool:
        return report.snapshots == self.reports()

    async def finish(self, limit_s: float) -> None:
        """Bring the attempt's last snapshot into the storage; it may have to stay here."""
        order, snapshot_store = self._order, self._snapshot_store
        self._stop_work()
        if order is None or snapshot_store is None:
            return
        if order.brings_result:
            self._tell_cost(snapshot_store)
        try:
            async with asyncio.timeout(limit_s):
                while (entry := self._next(snapshot_store)) and await self._bring(snapshot_store, entry):
                    pass
        except TimeoutError:
            log.warning("the last snapshot of attempt %s was not brought to the service", order.attempt)

    def close(self) -> None:
        """Remove everything: the task is over."""
        self._stop_work()
        memory.forget_all()

    def _stop_work(self) -> None:
        for task in self._work:
            task.cancel()
        self._work = []

    # From the job's storage.

    def _lacks(self, snapshot_store: SnapshotStore, wanted: SnapshotRef) -> bool:
        here = snapshot_store.entries()
        return not here or here[0].key < (wanted.attempt, wanted.step)

    def _begin_fetch(self, snapshot_store: SnapshotStore, wanted: SnapshotRef) -> None:
        """Have the ranks start meanwhile: mc.resume() waits for the snapshot only if it needs it."""
        try:
            snapshot_store.mark_fetching((wanted.attempt, wanted.step))
        except OSError as error:
            self._note(f"The snapshot of step {wanted.step} could not be fetched. {error}")
        else:
            self._work.append(asyncio.create_task(self._fetch(snapshot_store, wanted)))

    async def _fetch(self, snapshot_store: SnapshotStore, wanted: SnapshotRef) -> None:
        try:
            for number, part in enumerate(wanted.parts):
                path = snapshot_store.scratch_file(f"fetched-{number}.tar")
                await self._link.fetch_in_time(part.sha256, path, kind="snapshots")
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
            if self._order and self._order.brings_result:
                self._tell_cost(snapshot_store)
            entry = self._next(snapshot_store)
            if entry and loop.time() >= next_at:
                next_at = loop.time() + UPLOAD_SPACING_S
                if not await self._bring(snapshot_store, entry):
                    # All of it was sent for nothing.
                    next_at = loop.time() + UPLOAD_SPACING_S * 2 ** min(self._refusals, _MOST_DOUBLINGS)

    def _next(self, snapshot_store: SnapshotStore) -> Entry | None:
        """Return the attempt's newest snapshot, unless another node brings it or it is in the storage."""
        order = self._order
        if order is None or not order.brings_result:
            return None
        stored: Key = (self._stored.attempt, self._stored.step) if self._stored else (-1, -1)
        newest = next(iter(snapshot_store.entries()), None)
        if newest is None or newest.attempt != order.attempt or newest.key <= stored:
            return None
        return newest

    async def _bring(self, snapshot_store: SnapshotStore, entry: Entry) -> bool:
        """Bring a snapshot, or say once why it stays here; return whether the next one is worth a try."""
        backoff = Backoff()
        async with self._one_at_a_time:
            while True:
                try:
                    with Archive(entry) as archive:
                        sha256 = await asyncio.to_thread(archive.sha256)
                        size, pieces = archive.size_bytes, archive.pieces()
                        blob = await self._link.send(f"api/tasks/snapshots/{sha256}", size, pieces)
                    break
                except ServiceAway:
                    await asyncio.sleep(backoff.next_s())
                except FileNotFoundError:  # A newer one has taken its place.
                    return True
                except (ServiceRefused, OSError) as error:
                    if not self._refusals:
                        self._note(f"A snapshot could not be brought into the job's storage. {error}")
                    self._refusals += 1
                    return False
        step, attempt, keep = entry.step, entry.attempt, entry.keep
        self._stored, self._refusals = SnapshotReport(step=step, attempt=attempt, blob=blob, keep=keep), 0
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
