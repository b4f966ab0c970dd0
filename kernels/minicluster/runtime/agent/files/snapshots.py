"""The agent's part in snapshots: it uploads an attempt's newest, and fetches the job's newest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minicluster.runtime.agent.client import AgentClient, ServiceRefused, with_retries
from minicluster.train.snapshots.store import (
    Archive,
    Key,
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
        self._stored: SnapshotReport | None = None
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
        self._stored, self._notes, self._refusals = None, [], 0
        self._snapshot_store.mark_fetching(None)
        # In a fault-tolerant job no rank asks the others for a snapshot, so each node fetches it.
        fetches = order.group_rank == 0 or order.fault_tolerant
        if fetches and order.snapshot and self._lacks(self._snapshot_store, order.snapshot):
            self._begin_fetch(self._snapshot_store, order.snapshot)
        self._work.append(asyncio.create_task(self._follow(self._snapshot_store)))

    def renew(self, order: RunOrder) -> None:
        """Take a changed order of the same attempt: another task may lead."""
        if self._order and order.attempt == self._order.attempt:
            self._order = order

    def reports(self) -> tuple[SnapshotReport, ...]:
        return (self._stored,) if self._stored else ()

    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def has_all(self, report: TaskReport) -> bool:
        return report.snapshots == self.reports()

    async def finish(self, limit_s: float) -> None:
        """Upload the attempt's last snapshot, if that is done within `limit_s`."""
        order, snapshot_store = self._order, self._snapshot_store
        self._stop_work()
        if order is None or snapshot_store is None:
            return
        if order.returns_result:
            self._tell_cost(snapshot_store)
        try:
            async with asyncio.timeout(limit_s):
                while (snapshot := self._next(snapshot_store)) and await self._upload(snapshot):
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
        order = self._order
        if order is None or not order.returns_result:
            return None
        stored: Key = (self._stored.attempt, self._stored.step) if self._stored else (-1, -1)
        newest = next(iter(snapshot_store.entries()), None)
        if newest is None or newest.attempt != order.attempt or newest.key <= stored:
            return None
        return newest

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
            except FileNotFoundError:  # A newer one has taken its place.
                return True
            except (ServiceRefused, OSError) as error:
                if not self._refusals:
                    self._note(f"A snapshot could not be brought into the job's storage. {error}")
                self._refusals += 1
                return False
        self._refusals = 0
        self._stored = SnapshotReport(
            step=snapshot.step, attempt=snapshot.attempt, blob=blob, keep=snapshot.keep
        )
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
