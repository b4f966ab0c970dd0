"""The scheduler's input from the stored state: which jobs may be moved, and their progress."""

from dataclasses import dataclass, replace
from math import inf
from typing import ClassVar

import pytest

from minicluster.wire import CountRange, JobState
from minicluster_hub.control.scheduler_input import snapshot_of
from minicluster_hub.jobs.records import NodeView, SnapshotRecord
from minicluster_hub.scheduling.base import Grant, Plan
from minicluster_hub.scheduling.placement import placement
from minicluster_hub.scheduling.scheduler import Resize, schedule

from ... import messages
from ..jobs.stored_states import NOW, READY, TOLERANT, job, stored

NODES = [NodeView(f"node-{number}", True, "127.0.0.1", ("cpu",)) for number in range(2)]
LATER = NOW + 100.0
ONE_OR_TWO = TOLERANT.model_copy(update={"nodes": CountRange(min=1, max=2)})


@dataclass(frozen=True)
class Gives:
    """A policy that gives each job so many replicas."""

    grants: dict[int, int]
    preemptive: ClassVar[bool] = True
    elastic: ClassVar[bool] = True

    def plan(self, snapshot):
        return Plan(tuple(Grant(job_id, replicas) for job_id, replicas in self.grants.items()))


def seen(record, *snapshots):
    """Return the scheduler's input for a running job, and for one that waits for both nodes."""
    here = replace(stored(record, READY), snapshots=snapshots)
    waits = job(JobState.QUEUED, id=8, attempt_id=None, gang_id=None)
    return snapshot_of(replace(here, jobs=(*here.jobs, waits)), NODES, LATER)


def kept(attempt):
    return SnapshotRecord(7, 40, attempt, (), NOW)


@pytest.mark.parametrize(("attempt", "may"), [(70, True), (69, False)])
def test_a_job_may_be_moved_once_its_own_attempt_has_left_a_snapshot(attempt, may):
    view = seen(job(), kept(attempt)).running[0]
    assert (view.not_preemptible_until < inf) is may
    without = seen(job()).running[0]
    assert without.not_preemptible_until == inf


def test_a_fault_tolerant_job_without_a_snapshot_shrinks_to_its_minimum_and_no_further():
    found = seen(job(JobState.RUNNING, spec=ONE_OR_TWO))
    view = found.running[0]
    assert view.only_shrinks and view.not_preemptible_until < LATER
    for grants in ({8: 2}, {7: 1, 8: 2}):
        resize, *_ = schedule(found, Gives(grants), placement("pack")).decisions
        assert isinstance(resize, Resize) and resize.places == (("node-0", (0,)),)
    at_its_least = seen(job(spec=TOLERANT)).running[0]
    assert at_its_least.not_preemptible_until == inf


def test_a_fault_tolerant_job_with_a_snapshot_may_lose_all():
    found = seen(job(spec=ONE_OR_TWO), kept(70))
    resize, *_ = schedule(found, Gives({8: 2}), placement("pack")).decisions
    assert resize == Resize(7, (), messages.MAKES_ROOM.format(job=8))
