"""What machines do, as agents report it and as pages read it."""

import json
import re
from pathlib import Path

import pytest

from minicluster.wire import (
    DataAgentReport,
    GpuState,
    History,
    MachineList,
    MachineReading,
    RankReading,
    RunReadings,
    Timeline,
)

from ....patience import eventually
from ..data import a_data_agent

GPU = GpuState(
    gpu="GPU-a",
    model="RTX",
    use_percent=80.0,
    memory_bytes=3_000_000_000,
    memory_total_bytes=8_000_000_000,
    temperature_c=61.0,
    power_w=120.5,
)


def reading(percent, **more):
    memory = {"memory_bytes": 10**9, "memory_total_bytes": 10**10}
    return MachineReading(cpu_percent=percent, cores=8.0, **memory, **more)


async def report(api, node, *readings):
    token = api.context.data_set_tracker.tokens.issue([node])
    message = DataAgentReport(nodes=(node,), readings=readings).model_dump_json()
    headers = {"Authorization": f"keeper {token}"}
    return await api.client(**headers).post("api/data-agents/report", content=message)


async def machines(api, token="ada-token"):
    answer = await api.ask("GET", "api/machines", token)
    assert answer.status_code == 200, answer.text
    return {one.name: one for one in MachineList.model_validate_json(answer.content).machines}


async def history(api, name, **query):
    answer = await api.ask("GET", f"api/machines/{name}/history", params=query)
    assert answer.status_code == 200, answer.text
    return History.model_validate_json(answer.content)


async def test_what_an_agent_reports_is_shown_now_and_as_history(api):
    before = await machines(api)
    assert before["node-2"].reading is None, "nothing was read yet"
    answer = await report(api, "node-2", reading(10.0, ago_s=2.5), reading(30.0, ago_s=0.5, gpus=(GPU,)))
    assert answer.status_code == 204, answer.text
    machine = (await machines(api))["node-2"]
    assert machine.nodes == ("node-2",)
    assert machine.reading.cpu_percent == 30.0
    assert machine.reading.gpus == (GPU,)
    assert "gpu0_power_w" in machine.fields
    found = await history(api, "node-2", field=["cpu_percent", "gpu0_use_percent"], points=2000)
    cpu, gpu = found.fields
    assert cpu.name == "cpu_percent" and cpu.mean == (10.0, 30.0)
    assert gpu.mean == (None, 80.0), "what was read before the GPU came is still there"
    assert found.at[1] - found.at[0] == 2.0


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("node-7/history", 404, "no history"),
        ("..%2F..%2Fminicluster/history", 404, "no history"),
        ("node-2/history?field=secret", 422, "cpu_percent"),
        ("node-2/history?low=20&high=10", 422, "ends before"),
        ("node-2/history?points=100000", 422, "2000"),
        ("node-2/history?low=-5", 422, "whole number"),
    ],
)
async def test_what_cannot_be_asked_is_refused_with_the_reason(api, path, status, told):
    await report(api, "node-2", reading(10.0))
    answer = await api.ask("GET", f"api/machines/{path}")
    assert answer.status_code == status
    assert told in answer.json()["error"]["message"]


async def test_an_agent_cannot_speak_for_another_node_nor_send_nonsense(api):
    token = api.context.data_set_tracker.tokens.issue(["node-2"])
    client = api.client(Authorization=f"keeper {token}")
    other = DataAgentReport(nodes=("node-1",), readings=(reading(10.0),)).model_dump_json()
    assert (await client.post("api/data-agents/report", content=other)).status_code == 403
    for value in ("-5", '"NaN"', "1e300", '"x"'):
        one = f'{{"cpu_percent": {value}, "memory_bytes": 1, "memory_total_bytes": 2}}'
        wrong = f'{{"nodes": ["node-2"], "readings": [{one}]}}'
        assert (await client.post("api/data-agents/report", content=wrong)).status_code == 422
    assert (await machines(api))["node-1"].reading is None


async def test_the_history_survives_a_restart(start_api):
    async with start_api() as api:
        await report(api, "node-1", reading(10.0))
    async with start_api() as api:
        assert (await history(api, "node-1", field="cpu_percent")).fields[0].mean == (10.0,)


async def test_a_real_agent_reports_its_machine(api, tmp_path):
    async with a_data_agent(api, tmp_path / "cache", nodes="node-3"):
        await eventually(lambda: "node-3" in api.context.machines.newest())
    found = api.context.machines.newest()["node-3"]
    assert found.memory_total_bytes > found.memory_bytes > 0


async def timeline(api, token="ada-token", **query):
    answer = await api.ask("GET", "api/timeline", token, params=query)
    assert answer.status_code == 200, answer.text
    return Timeline.model_validate_json(answer.content)


async def test_the_timeline_shows_who_holds_slots_and_what_waits(api):
    job, agents, runs = await api.running("ada", nodes=2, name="secret plan")
    waits = await api.submit("bob", nodes=5, name="bob's plan")
    found = await timeline(api)
    assert [node.name for node in found.nodes] == [f"node-{number}" for number in range(1, 6)]
    assert {bar.node for bar in found.bars} == {"node-1", "node-2"}
    assert {(bar.job_id, bar.owner, bar.name, bar.ended_at) for bar in found.bars} == {
        (job.id, "ada", "secret plan", None)
    }
    of_bob = await timeline(api, "bob-token")
    assert {(bar.owner, bar.name) for bar in of_bob.bars} == {("ada", "")}
    assert [(wait.job_id, wait.name, wait.slots) for wait in of_bob.waiting] == [(waits.id, "bob's plan", 5)]
    assert [(wait.owner, wait.name) for wait in found.waiting] == [("bob", "")]
    for agent, run in zip(agents, runs, strict=True):
        await agent.finish(run)
    await api.until(job.id, "succeeded")
    assert all(bar.ended_at for bar in (await timeline(api)).bars)


async def test_a_timeline_of_years_is_refused(api):
    answer = await api.ask("GET", "api/timeline?low=5")
    assert answer.status_code == 422
    assert "62 days" in answer.json()["error"]["message"]


async def run_readings(api, job_id, token="ada-token", **query):
    answer = await api.ask("GET", f"api/runs/{job_id}/readings", token, params=query)
    return RunReadings.model_validate_json(answer.content) if answer.status_code == 200 else answer


async def test_what_ranks_use_is_kept_with_the_run_for_its_owner(api):
    job, (agent,), (run,) = await api.running("ada")
    one = RankReading(rank=0, ago_s=1.0, cpu_percent=250.0, memory_bytes=10**9, gpu_percent=70.0)
    other = RankReading(rank=1, cpu_percent=5.0, memory_bytes=10**9)
    await agent.report(attempt=run.attempt, readings=(one, other))
    found = await run_readings(api, job.id)
    assert found.run == job.id and found.started_at
    (rank,) = found.ranks
    assert rank.rank == 0, "the task has no rank 1"
    assert {one.name: one.mean for one in rank.fields} == {
        "cpu_percent": (250.0,),
        "memory_bytes": (10**9,),
        "gpu_percent": (70.0,),
    }
    assert (await run_readings(api, job.id, "bob-token")).status_code == 404
    assert (await run_readings(api, job.id, "root-token")).ranks == found.ranks
    assert (await run_readings(api, job.id, points=0)).status_code == 422


async def test_readings_go_when_the_run_is_removed(api):
    job, (agent,), (run,) = await api.running("ada")
    reading_ = RankReading(rank=0, cpu_percent=250.0, memory_bytes=10**9)
    await agent.report(attempt=run.attempt, readings=(reading_,))
    await agent.finish(run)
    await api.until(job.id, "succeeded")
    assert (await run_readings(api, job.id)).ranks
    answer = await api.ask("DELETE", f"api/jobs/{job.id}/storage")
    assert answer.status_code in (200, 204), answer.text
    assert (await run_readings(api, job.id)).ranks == ()


NAME = re.compile(r"\bminicluster_\w+")
DASHBOARD = Path(__file__).resolve().parents[4] / "docs" / "grafana.json"


async def metrics(api):
    answer = await api.ask("GET", "metrics", "root-token")
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_prometheus_reads_what_machines_do(api):
    assert "minicluster_gpu_use_ratio{" not in await metrics(api)
    await report(api, "node-2", reading(30.0, received_bytes_s=5.0, gpus=(GPU,)))
    text = await metrics(api)
    assert 'minicluster_machine_cpu_ratio{machine="node-2"} 0.3' in text
    labels = '{gpu="0",machine="node-2",model="RTX",uuid="GPU-a"}'
    assert f"minicluster_gpu_use_ratio{labels} 0.8" in text
    assert f"minicluster_gpu_power_watts{labels} 120.5" in text


async def test_the_dashboard_asks_for_metrics_that_there_are_and_for_all_of_machines(api):
    """Each name that docs/grafana.json asks for is one that /metrics has."""
    await report(api, "node-2", reading(30.0, gpus=(GPU,)))
    await api.running("ada")
    text = await metrics(api)
    there = {line.split(" ")[0].split("{")[0] for line in text.splitlines() if not line.startswith("#")}
    there |= {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    board = json.loads(DASHBOARD.read_text())
    asked = set(NAME.findall(" ".join(_questions(board))))
    assert asked - there == set(), "the dashboard asks for what there is not"
    of_machines = {name for name in there if name.startswith(("minicluster_machine_", "minicluster_gpu_"))}
    assert of_machines - asked == set(), "the dashboard leaves out what machines tell"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def _questions(part):
    """Yield all of a dashboard's queries."""
    if isinstance(part, dict):
        yield from (part[name] for name in ("expr", "query") if isinstance(part.get(name), str))
        part = part.values()
    if not isinstance(part, str | int | float | bool | None):
        for one in part:
            yield from _questions(one)
