"""Who held which slots: rows of bars, and what others may see of them."""

from __future__ import annotations

from minicluster.wire import CountRange, JobSpec, JobState, Timeline
from minicluster_hub.jobs.records import JobRecord, Lease, NodeView, StoredState, UseRecord, Wait
from minicluster_hub.machines.timeline import TimelineInputs, own_jobs, timeline

NOW = 1000.0
NODE = NodeView("node-1", True, "10.0.0.1", ("gpu", "gpu"))


def use(job_id: int, began: float, ended: float | None, slots: int = 1, owner: str = "ada") -> UseRecord:
    return UseRecord(job_id, owner, job_id, None, job_id, "node-1", slots, slots, began, ended)


def lease(slot: int, job_id: int) -> Lease:
    return Lease("node-1", slot, job_id, job_id, "ada", False)


def drawn(
    *uses: UseRecord,
    stored: StoredState | None = None,
    waits: tuple[Wait, ...] = (),
    owner: str | None = "ada",
    low: float = 0.0,
) -> Timeline:
    names = {job_id: f"name {job_id}" for job_id in own_jobs(uses, owner, 100)}
    return timeline(TimelineInputs(NOW, low, NOW, [NODE], uses, stored or StoredState(), waits, names, owner))


def lanes(found: Timeline) -> dict[int | None, tuple[int, ...]]:
    return {bar.job_id: bar.lanes for bar in found.bars}


def test_no_two_bars_overlap_in_a_row() -> None:
    found = drawn(use(1, 10, 20), use(2, 15, 30), use(3, 20, 40), use(4, 30, 50))
    assert lanes(found) == {1: (0,), 2: (1,), 3: (0,), 4: (1,)}
    both = drawn(use(1, 10, 20), use(2, 20, 30, slots=2))
    assert lanes(both)[2] == (0, 1)


def test_what_is_held_now_stands_in_its_own_slot() -> None:
    stored = StoredState(leases=(lease(0, 2),))
    found = drawn(use(1, 100, 900), use(2, 500, None), stored=stored)
    assert lanes(found) == {1: (1,), 2: (0,)}
    assert found.bars[1].ended_at is None


def test_a_node_that_had_more_slots_gets_more_rows_and_one_that_is_gone_is_shown() -> None:
    gone = UseRecord(9, "ada", 9, None, 9, "node-9", 3, 0, 10.0, 20.0)
    found = drawn(use(1, 10, 20, slots=3), gone)
    assert len(lanes(found)[1]) == 3
    assert [(node.name, node.up, node.slots) for node in found.nodes] == [
        ("node-1", True, 2),
        ("node-9", False, 3),
    ]


def test_only_what_overlaps_the_time_is_shown() -> None:
    assert lanes(drawn(use(1, 10, 20), use(2, 30, 400), low=100)) == {2: (0,)}


def job(job_id: int, owner: str) -> JobRecord:
    spec = JobSpec(payload_sha256="0" * 64, name=f"name {job_id}", nodes=CountRange(min=2, max=2))
    return JobRecord(
        id=job_id,
        owner=owner,
        spec=spec,
        state=JobState.QUEUED,
        reason="",
        created_at=1.0,
        started_at=None,
        ended_at=None,
        state_since=1.0,
        attempts=0,
        attempt_id=None,
        gang_id=None,
        world_size=None,
        error=None,
        result=None,
    )


def test_others_see_the_owner_and_the_times_but_no_text() -> None:
    stored = StoredState(jobs=(job(7, "ada"), job(8, "bob")))
    waits = (Wait(7, 1, "needs 2 free slots", 1100.0), Wait(8, 2, "bob's reason", 1200.0))
    uses = (use(1, 10, 20), use(2, 10, 20, owner="bob"))
    mine = drawn(*uses, stored=stored, waits=waits)
    assert {bar.owner: bar.name for bar in mine.bars} == {"ada": "name 1", "bob": ""}
    first, second = mine.waiting
    assert (first.name, first.reason, first.slots) == ("name 7", "needs 2 free slots", 2)
    assert (second.owner, second.name, second.reason) == ("bob", "", "")
    assert (second.slots, second.expected_start_at) == (2, 1200.0)
    everything = drawn(*uses, stored=stored, waits=waits, owner=None)
    assert {bar.owner: bar.name for bar in everything.bars} == {"ada": "name 1", "bob": "name 2"}
    assert everything.waiting[1].reason == "bob's reason"
