"""An engine over a batch system with its own queue: nodes exist once they were granted."""

from dataclasses import replace

from minicluster.wire import JobState
from minicluster_hub.engines.capabilities import NodeGrants
from minicluster_hub.scheduling.limits import Quotas
from minicluster_hub.usage.accounting import WEEK_S, UsageAccounting

from ..machines import Machines, MemoryEngine, play, service, submit, until

QUEUED = "the batch system has not granted it"


class Grants(NodeGrants):
    def __init__(self):
        self.asked = []

    def request(self, waiting):
        self.asked.append([job.id for job in waiting])


class BatchEngine(MemoryEngine):
    """An engine that starts tasks only on granted nodes."""

    def __init__(self):
        super().__init__()
        self.node_grants = Grants()
        self.granted = set()

    def nodes(self):
        return tuple(
            replace(node, closed="" if node.name in self.granted else QUEUED) for node in super().nodes()
        )

    def grant(self, *names):
        self.granted = set(names)
        self.on_change()


async def test_a_job_asks_for_nodes_waits_for_them_and_runs_on_those_that_are_granted(sqlite):
    machines = Machines()
    async with service(sqlite, machines, BatchEngine) as reconciler:
        engine = reconciler.status_cache.engine
        job = submit(sqlite, nodes=2)
        reconciler.wake()
        assert await until(reconciler, lambda: engine.node_grants.asked[-1:] == [[job]])
        assert sqlite.job(job).state is JobState.QUEUED and not machines.launches
        engine.grant("node-1")
        engine.grant("node-1", "node-3")
        assert (await play(sqlite, reconciler, machines, job)).state is JobState.SUCCEEDED
        assert {launch.node for launch in machines.launches} == {"node-1", "node-3"}
        assert await until(reconciler, lambda: engine.node_grants.asked[-1] == [])


async def test_a_job_that_a_quota_holds_back_asks_for_no_nodes(sqlite):
    machines = Machines()
    async with service(sqlite, machines, BatchEngine) as reconciler:
        asked = reconciler.status_cache.engine.node_grants.asked
        quotas = Quotas.read({"ada": {"slots": 1}})
        reconciler.accounting.entitlements = UsageAccounting(sqlite, WEEK_S, {}, quotas).entitlements
        submit(sqlite, owner="ada", nodes=2)
        others = submit(sqlite, owner="bob", nodes=2, key="key-00002")
        reconciler.wake()
        assert await until(reconciler, lambda: asked[-1:] == [[others]])
