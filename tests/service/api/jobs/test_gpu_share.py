"""Half a GPU over the API: refused with the reason, or shared by jobs and servers, and counted as half."""

import dataclasses

import pytest

from minicluster_hub.scheduling.servers import ServerLimits

from ....patience import eventually
from ..hub import MemoryEngine

HALF = {"gpu_share": 0.5}
MORE = (
    {"slots_per_node": 2},
    {"ranks_per_node": 2},
    {"slots": {"min": 2, "max": 2}},
    {"shm_bytes": 1 << 30},
)
OLD = "its compute capability 6.1 is below 7.0 (Volta)"


class Shared(MemoryEngine):
    """Three PCs with one GPU each, the third of which is too old to be shared."""

    def __init__(self):
        super().__init__()
        self.kinds = ("gpu",)
        self.kept = set()
        self.gpu_sharing = self

    def nodes(self):
        here, reasons = super().nodes()[:3], {"node-1": "", "node-2": "", "node-3": OLD}
        return tuple(dataclasses.replace(node, no_gpu_share=reasons[node.name]) for node in here)

    def keep(self, shared):
        self.kept = set(shared)


@pytest.fixture
async def lab(start_api):
    async with start_api(servers=ServerLimits(max_gpus=0.5), engine=Shared()) as started:
        yield started


async def refused(api, **spec):
    sha256 = (await api.submit()).id and "a" * 64
    body = {"idempotency_key": "key-00000001", "spec": {"payload_sha256": sha256, **spec}}
    answer = await api.ask("POST", "api/jobs", json=body)
    return answer.status_code, answer.json()["error"]


async def slots(api, node):
    nodes = (await api.ask("GET", "api/nodes")).json()["nodes"]
    (found,) = (one for one in nodes if one["name"] == node)
    return [(slot["slot"], slot["share"], slot["job_id"] or slot["server"]) for slot in found["slots"]]


async def test_where_no_node_shares_a_job_is_refused_with_the_reason(api):
    status, error = await refused(api, nodes={"min": 1, "max": 1}, **HALF)
    assert (status, error["code"]) == (422, "no_gpu_share")
    assert "no node shares its GPUs (node-1, node-2" in error["message"]
    assert "this cluster does not share GPUs" in error["message"] and "--gpu-share" in error["hint"]


@pytest.mark.parametrize("more", MORE, ids=str)
async def test_half_a_gpu_goes_with_one_rank_and_nothing_more(lab, more):
    status, error = await refused(lab, **HALF, **more)
    assert (status, error["code"]) == (422, "invalid") and "GPU" in error["message"]


async def test_other_shares_are_refused(lab):
    status, error = await refused(lab, gpu_share=0.25)
    assert status == 422 and "halves: 0.5" in error["message"]


async def test_two_users_jobs_share_a_gpu_and_a_third_waits_for_one_of_them(lab):
    first, (agent,), (run,) = await lab.running("ada", **HALF)
    second, _, _ = await lab.running("bob", **HALF)
    launches = [lab.engine.launches[task] for task in sorted(lab.engine.launches)]
    assert [(one.node, one.slots, one.gpu_share) for one in launches] == [("node-1", (0,), 0.5)] * 2
    assert await slots(lab, "node-1") == [(0, 0.5, first.id), (0, 0.5, second.id)]
    assert lab.engine.kept == {("node-1", 0)}
    whole = await lab.submit("bob", nodes=3)
    await lab.until(whole.id, "queued")
    third = await lab.submit("ada", nodes=2, **HALF)
    waits = await eventually(lambda: reason(lab, third.id))
    assert waits.startswith("needs half a GPU free on 2 nodes; 1 is free until jobs")
    await agent.finish(run)
    await lab.until(first.id, "succeeded")


def reason(api, job_id):
    """Return why a job waits, once a tick has planned it."""
    found = api.context.status_cache.job(api.context.store.job(job_id))
    return found.reason if "half a GPU" in found.reason else None


async def test_a_notebook_server_has_the_other_half(lab):
    job, _, _ = await lab.running("ada", **HALF)
    answer = await lab.ask("PUT", "api/servers/bob/-", "spawner-token", json={"gpus": 0.5})
    assert answer.status_code == 200, answer.text
    place = answer.json()
    assert (place["node"], place["slots"], place["gpu_share"]) == ("node-1", [0], 0.5)
    assert await slots(lab, "node-1") == [(0, 0.5, job.id), (0, 0.5, "")]
    whole = await lab.ask("PUT", "api/servers/eve/-", "spawner-token", json={"gpus": 1})
    assert (whole.status_code, whole.json()["error"]["code"]) == (409, "gpu_not_allowed")
    await lab.ask("DELETE", "api/servers/bob/-", "spawner-token")
    assert await slots(lab, "node-1") == [(0, 0.5, job.id), (0, 0.5, None)]
    metrics = (await lab.ask("GET", "metrics", "prometheus-token")).text
    assert 'minicluster_slots{kind="gpu",use="busy"} 0.5' in metrics
    assert 'minicluster_slots{kind="gpu",use="free"} 2.5' in metrics


async def test_half_a_gpu_hour_counts_half(lab):
    await lab.running("ada", **HALF)
    await lab.running("bob", nodes=1)
    held = await eventually(lambda: uses(lab))
    assert held == {"ada": (0.5, 0.5), "bob": (1.0, 1.0)}


def uses(api):
    found = api.context.store.usage.since(0.0)
    return {use.owner: (use.slots, use.gpus) for use in found} if len(found) == 2 else None
