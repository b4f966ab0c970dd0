"""The home page's one answer: open jobs with their reason, nodes, last runs with small curves, storage."""

import json

from minicluster.wire import Home, LastValue, Run


def logged(step, **values):
    record = {"kind": "log", "rank": 0, "at": 1000.0 + step, "step": step, "values": values}
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


async def home(api, token="ada-token"):
    answer = await api.ask("GET", "api/home", token)
    assert answer.status_code == 200, answer.text
    return Home.model_validate_json(answer.content)


async def test_a_newcomer_sees_nodes_and_no_runs(api):
    found = await home(api)
    assert (found.jobs, found.runs, found.curves) == ((), (), ())
    assert [node.name for node in found.nodes.nodes] == [f"node-{number}" for number in range(1, 6)]
    assert (found.storage.owner, found.storage.used_bytes) == ("ada", 0)


async def test_what_runs_and_what_waits_with_its_reason(api):
    running, (agent,), (run,) = await api.running()
    lines = b"".join(logged(step, acc=step / 300, loss=1.0 / (step + 1)) for step in range(300))
    await agent.say(run, "records", 0, lines)
    waiting = await api.submit(nodes=5)
    await api.until(waiting.id, "queued")
    await api.ask("GET", f"api/runs/{running.id}/series")
    found = await home(api)
    assert [job.id for job in found.jobs] == [waiting.id, running.id]
    assert found.jobs[0].reason
    assert [one.id for one in found.runs] == [waiting.id, running.id]
    (curve,) = found.curves
    assert (curve.run, curve.name, curve.points) == (running.id, "loss", 300)
    assert 30 <= len(curve.value) <= 120
    assert found.storage.used_bytes > 0


async def test_nobody_sees_what_others_run(api):
    await api.running()
    assert (await home(api, "bob-token")).jobs == ()
    # Not even admins: it is their own home.
    assert (await home(api, "root-token")).runs == ()


async def test_a_damaged_file_costs_one_picture(api):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "records", 0, logged(1, loss=0.5))
    assert len((await home(api)).runs) == 1
    await api.ask("GET", f"api/runs/{job.id}/series")
    api.context.recorder.files.path(job.id).write_bytes(b"no database" * 1000)
    found = await home(api)
    assert (len(found.runs), found.curves) == (1, ())


def test_a_small_picture_shows_a_loss_if_there_is_one():
    def main(*names):
        metrics = {name: LastValue(value=1.0) for name in names}
        return Run(id=1, owner="ada", name="x", state="running", created_at=1.0, metrics=metrics).main_metric

    assert main("acc", "train/loss", "loss") == "loss"
    assert main("acc", "validation/loss", "val_Loss") == "val_Loss"
    assert main("lr", "accuracy") == "lr"
    assert main() is None
