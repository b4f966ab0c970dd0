"""Pictures and step times of a run, as ranks send them and pages read them."""

from __future__ import annotations

import base64
import json

from minicluster.wire import Media, MediaList, Record, SpeedReport, StepTimes

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 2000


def picture(name, step=None, content=PNG, mime="image/png", rank=0):
    media = Media(name=name, mime=mime, content=base64.b64encode(content).decode())
    return line(Record(kind="media", rank=rank, at=1000.0, step=step, media=media))


def line(record):
    return record.model_dump_json(exclude_defaults=True).encode() + b"\n"


async def listed(api, job, **query):
    answer = await api.ask("GET", f"api/runs/{job.id}/media", params=query)
    assert answer.status_code == 200, answer.text
    return MediaList.model_validate_json(answer.content)


async def test_pictures_are_listed_and_come_back_whole(api):
    job, (agent,), (run,) = await api.running()
    table = b'{"columns":["a"],"rows":[[1]],"total":1}'
    numbers = line(Record(kind="log", rank=0, at=1.0, step=1, values={"loss": 0.5}))
    sent = [picture("cat", 1), numbers, picture("cat", 2), picture("errors", content=table, mime=TABLE)]
    await agent.say(run, "records", 0, b"".join(sent))
    found = await listed(api, job)
    assert [(one.number, one.name, one.step) for one in found.media] == [
        (1, "cat", 1),
        (2, "cat", 2),
        (3, "errors", None),
    ]
    assert [(one.name, one.mime, one.count) for one in found.names] == [
        ("cat", "image/png", 2),
        ("errors", TABLE, 1),
    ]
    assert [one.number for one in (await listed(api, job, name="cat", after=1)).media] == [2]
    answer = await api.ask("GET", f"api/runs/{job.id}/media/2")
    assert (answer.content, answer.headers["Content-Type"]) == (PNG, "image/png")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert (await api.ask("GET", f"api/runs/{job.id}/media/3")).json() == json.loads(table)
    assert (await api.ask("GET", f"api/runs/{job.id}/media/9")).status_code == 404
    assert (await api.ask("GET", f"api/runs/{job.id}/media/2", "bob-token")).status_code == 404


async def test_media_without_their_output_say_so(api):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "records", 0, picture("cat", 1))
    await listed(api, job)
    api.context.logs.remove(job.id)
    answer = await api.ask("GET", f"api/runs/{job.id}/media/1")
    assert (answer.status_code, answer.json()["error"]["code"]) == (410, "media_removed")


async def test_media_beyond_the_limit_are_counted(api, monkeypatch):
    monkeypatch.setattr("minicluster_hub.runs.media.MOST_MEDIA", 2)
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "records", 0, b"".join(picture("cat", step, b"1234") for step in range(5)))
    found = await listed(api, job)
    assert ([one.step for one in found.media], found.dropped) == ([0, 1], 3)


async def test_where_the_time_goes(api):
    job, (agent,), (run,) = await api.running()
    lines = b"".join(
        line(
            Record(
                kind="speed",
                rank=rank,
                at=at,
                speed=StepTimes(steps=10, seconds=2, data=data, communication=wait),
            )
        )
        for at in range(1000, 1100, 2)
        for rank, data, wait in ((0, 0.1, 1.0), (1, 1.1, 0.0))
    )
    await agent.say(run, "records", 0, lines)
    answer = await api.ask("GET", f"api/runs/{job.id}/speed")
    report = SpeedReport.model_validate_json(answer.content)
    assert [(one.rank, one.step_s, one.communication) for one in report.ranks] == [
        (0, 0.2, 0.5),
        (1, 0.2, 0.0),
    ]
    assert (report.straggler, report.at) == (1, 1098.0)
    assert "wait for rank 1, 100 ms in each step of 200 ms: it waits for its data" in report.sentence


TABLE = "application/vnd.minicluster.table+json"
