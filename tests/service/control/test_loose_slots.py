"""Jobs that take slots on any nodes: each node has as many ranks as the job has slots there."""

import time
from collections import Counter

from minicluster.wire import CountRange, JobSpec, JobState, JobSubmit
from minicluster_hub.jobs.records import NodeView

from ..machines import Machines, MemoryEngine, play, service, submit, until


class TwoEach(MemoryEngine):
    """Two nodes with two slots each."""

    def nodes(self):
        return tuple(NodeView(f"node-{i}", True, "127.0.0.1", ("gpu", "gpu")) for i in (1, 2))


def loose(store, slots, key, owner="ada"):
    spec = JobSpec(payload_sha256="a" * 64, slots=CountRange(min=slots, max=slots))
    return store.submit(owner, JobSubmit(idempotency_key=key, spec=spec), time.time())[0].id


async def test_ranks_are_where_the_slots_are_and_the_gang_serves_again(sqlite):
    machines = Machines()
    async with service(sqlite, machines, TwoEach) as reconciler:
        first = loose(sqlite, 3, "key-00001")
        reconciler.wake()
        assert await until(reconciler, lambda: reconciler.status_cache.stored.ranks)
        ranks = Counter(rank.task_id for rank in reconciler.status_cache.stored.ranks)
        assert {task.id: len(task.slots) for task in reconciler.status_cache.stored.tasks} == ranks
        assert sorted(ranks.values()) == [1, 2]
        assert (await play(sqlite, reconciler, machines, first)).state is JobState.SUCCEEDED
        assert sqlite.job(first).world_size == 3
        second = loose(sqlite, 3, "key-00002")
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, second)).state is JobState.SUCCEEDED
        assert len(machines.launches) == 2, "it took the warm gang over"


async def test_an_uneven_gang_is_none_for_a_job_that_asks_for_nodes(sqlite):
    machines = Machines()
    async with service(sqlite, machines, TwoEach) as reconciler:
        first = loose(sqlite, 3, "key-00001")
        reconciler.wake()
        await play(sqlite, reconciler, machines, first)
        nodes = submit(sqlite, nodes=2, key="key-00002")
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, nodes)).state is JobState.SUCCEEDED
        assert sqlite.job(nodes).world_size == 2
