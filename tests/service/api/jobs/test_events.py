"""Server-sent events: none lost or repeated when connections are cut; bounded for slow readers."""

import asyncio
import base64
import hashlib
import json
import random
import time

import pytest

from minicluster.wire import BlobInfo, Media, RankReport, RankState, Record
from minicluster.wire.streams import SMALL_RESULT_BYTES

from ....patience import WITHIN_S, eventually


def path(job):
    return f"api/jobs/{job.id}/events"


def texts(events):
    return "".join(data["text"] for name, data, _ in events if name == "log")


async def test_a_jobs_life_is_told_from_its_queue_to_its_end(api, listen):
    job = await api.submit(nodes=2)
    async with listen(api.client("ada-token"), path(job)) as events:
        assert (await events.next())[1]["id"] == job.id
        agents = await api.agents(job.id)
        runs = await asyncio.gather(*(agent.run_order() for agent in agents))
        for agent, run in zip(agents, runs, strict=True):
            await agent.start_ranks(run)
            await agent.say(run, f"rank-{run.first_rank}", 0, b"hello from %d\n" % run.first_rank)
        for agent, run in zip(agents, runs, strict=True):
            await agent.finish(run)
        received = await events.until("end")
        with pytest.raises(StopAsyncIteration):
            await events.next()
    states = [data["state"] for name, data, _ in received if name == "job"]
    assert states[-2:] == ["running", "succeeded"]
    logs = {data["stream"]: data["text"] for name, data, _ in received if name == "log"}
    assert logs == {"rank-0": "hello from 0\n", "rank-1": "hello from 1\n"}
    assert received[-1][1]["state"] == "succeeded"
    assert all(ident for _, _, ident in received)


async def test_a_job_that_is_over_is_told_at_once(api, listen):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "rank-0", 0, b"all there is")
    await agent.finish(run)
    await api.until(job.id, "succeeded")
    async with listen(api.client("ada-token"), path(job)) as events:
        received = await events.until("end")
    assert [name for name, _, _ in received] == ["job", "log", "end"]
    assert texts(received) == "all there is"


@pytest.mark.parametrize(
    ("user", "asks", "size", "comes"),
    [
        ("ada", {"result": "1"}, 1000, True),
        ("ada", {"result": "1"}, SMALL_RESULT_BYTES + 1, False),
        ("ada", {}, 1000, False),
        ("root", {"result": "1"}, 1000, False),  # An admin: results are for the owner's kernel alone.
    ],
)
async def test_a_small_result_comes_to_its_owner_before_the_end(api, listen, user, asks, size, comes):
    job, (agent,), (run,) = await api.running()
    result = random.Random(1).randbytes(size)
    sha256 = hashlib.sha256(result).hexdigest()
    kept = await agent.http.put(f"api/tasks/blobs/{sha256}", content=result)
    await agent.finish(run, result=BlobInfo.model_validate_json(kept.content))
    async with listen(api.client(f"{user}-token"), path(job), params=asks) as events:
        received = {name: data for name, data, _ in await events.until("end")}
    assert ("result" in received) is comes
    assert not comes or base64.b64decode(received["result"]["data"]) == result


@pytest.mark.parametrize("seed", range(4))
async def test_a_reader_cut_off_at_any_point_misses_and_doubles_nothing(api, seed):
    """Cuts the connection after random numbers of bytes while three streams grow."""
    chance = random.Random(seed)
    job, (agent,), (run,) = await api.running(ranks_per_node=2)
    written = {"rank-0": b"", "rank-1": b"", "records": b""}

    async def write():
        for number in range(60):
            for stream in ("rank-0", "rank-1"):
                line = f"{stream} line {number} grüße €\r\n".encode() * chance.randint(1, 40)
                cut = chance.randint(0, len(line))  # also in the middle of a character
                for part in (line[:cut], line[cut:]):
                    await agent.say(run, stream, len(written[stream]), part)
                    written[stream] += part
            record = {"kind": "log", "rank": 0, "at": 1.0, "step": number, "values": {"loss": 0.5}}
            line = json.dumps(record).encode() + b"\n"
            await agent.say(run, "records", len(written["records"]), line)
            written["records"] += line
            await asyncio.sleep(0.005)
        await agent.finish(run)

    writer = asyncio.create_task(write())
    got = {"rank-0": "", "rank-1": ""}
    steps, ends, after, connections = [], 0, "", 0
    async with asyncio.timeout(WITHIN_S):
        while not ends:
            connections += 1
            for name, data, ident in await cut_off(api, path(job), after, chance.randint(300, 9000)):
                after = ident
                if name == "log":
                    assert data["offset"] == len(got[data["stream"]].encode())
                    assert data["skipped_bytes"] == 0
                    got[data["stream"]] += data["text"]
                steps += [record["step"] for record in data["records"]] if name == "records" else []
                ends += name == "end"
    await writer
    assert connections > 5
    assert {stream: text.encode() for stream, text in got.items()} == {
        stream: data for stream, data in written.items() if stream != "records"
    }
    assert steps == list(range(60))


async def cut_off(api, place, after, count):
    """Return the complete events in the first `count` bytes of a connection that is then cut."""
    data = b""
    headers = {"Last-Event-ID": after} if after else {}
    client = api.client("ada-token", **headers)
    async with client.stream("GET", place) as answer:
        async for part in answer.aiter_bytes():
            data += part
            if len(data) >= count:
                break
    # A connection that ended by itself delivered all bytes; a cut one only the first ones.
    blocks = data[: max(count, 1)].split(b"\n\n")[:-1] if len(data) >= count else data.split(b"\n\n")
    return [parsed for parsed in map(parse, blocks) if parsed]


def parse(block):
    fields = dict(line.partition(b": ")[::2] for line in block.split(b"\n") if line)
    if b"data" not in fields:
        return None
    return fields[b"event"].decode(), json.loads(fields[b"data"]), fields[b"id"].decode()


async def test_after_in_the_url_resumes_as_the_header_does(api, listen):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "rank-0", 0, b"first\n")
    async with listen(api.client("ada-token"), path(job)) as events:
        *_, (_, _, ident) = await events.until("log")
    await agent.say(run, "rank-0", 6, b"second\n")
    async with listen(api.client("ada-token"), path(job), params={"after": ident}) as events:
        assert texts(await events.until("log")) == "second\n"


async def test_a_reader_far_behind_is_moved_to_the_tail_at_a_lines_start(start_api, listen):
    async with start_api(lag_bytes=5000, tail_bytes=1000) as api:
        job, (agent,), (run,) = await api.running()
        lines = b"".join(b"line %06d\n" % number for number in range(1000))
        records = b"".join(b'{"kind":"log","rank":0,"at":1,"step":%d}\n' % step for step in range(1000))
        await agent.say(run, "rank-0", 0, lines)
        await agent.say(run, "records", 0, records)
        await agent.finish(run)
        async with listen(api.client("ada-token"), path(job)) as events:
            received = await events.until("end")
    (chunk,) = [data for name, data, _ in received if name == "log"]
    assert chunk["skipped_bytes"] == chunk["offset"] > len(lines) - 1000
    assert chunk["text"].startswith("line ")
    assert lines.endswith(chunk["text"].encode())
    steps = [record["step"] for name, data, _ in received if name == "records" for record in data["records"]]
    assert steps == list(range(int(steps[0]), 1000))


async def test_readers_get_news_of_pictures_and_all_numbers_between_them(start_api, listen):
    async with start_api(lag_bytes=5000, tail_bytes=1000) as api:
        job, (agent,), (run,) = await api.running()
        media = Media(name="cat", mime="image/png", content="A" * 8000)
        sent = [Record(kind="log", rank=0, at=1, step=step) for step in range(20)]
        sent[10:10] = [Record(kind="media", rank=0, at=1, step=3, media=media)] * 2
        lines = [record.model_dump_json(exclude_defaults=True) for record in sent]
        lines.append('{"kind":"from a newer agent","rank":0,"at":1}')
        await agent.say(run, "records", 0, "".join(f"{line}\n" for line in lines).encode())
        await agent.finish(run)
        async with listen(api.client("ada-token"), path(job)) as events:
            received = [data for name, data, _ in await events.until("end") if name == "records"]
    assert [record["step"] for data in received for record in data["records"]] == list(range(20))
    news = [record for data in received for record in data["more"]]
    assert [one["kind"] for one in news] == ["media", "media"]
    assert [(one["media"]["name"], one["media"]["content"]) for one in news] == [("cat", ""), ("cat", "")]


async def test_a_slow_reader_costs_no_memory_and_still_gets_the_end(start_api, listen):
    """Writes 40 MiB while the reader sleeps: it gets a bounded part in order, and what is missing."""
    async with start_api(push_interval_s=0.0) as api:
        job, (agent,), (run,) = await api.running()
        block = b"%07d\n" * 8192
        async with listen(api.client("ada-token"), path(job)) as events:
            size = 0
            for number in range(640):
                data = block % tuple(range(number * 8192, (number + 1) * 8192))
                size = api.context.logs.append(job.id, 1, "rank-0", size, data)
                if number % 20 == 0:
                    await asyncio.sleep(0)
            await agent.finish(run)
            received = await events.until("end")
    place = 0
    for _, data, _ in (event for event in received if event[0] == "log"):
        assert data["offset"] == place + data["skipped_bytes"]
        place = data["offset"] + data["size_bytes"]
        assert data["size_bytes"] <= 256 * 1024
    assert place == size
    assert len(texts(received)) < size / 2


async def test_pushes_of_output_are_few_whatever_is_printed(start_api, listen):
    async with start_api(push_interval_s=0.2) as api:
        job, (agent,), (run,) = await api.running()
        async with listen(api.client("ada-token"), path(job)) as events:
            size, began = 0, time.monotonic()
            for number in range(100):
                size = api.context.logs.append(job.id, 1, "rank-0", size, b"%d\n" % number)
                await asyncio.sleep(0.005)
            await agent.finish(run)
            received = await events.until("end")
            took_s = time.monotonic() - began
    assert texts(received) == "".join(f"{number}\n" for number in range(100))
    assert sum(name == "log" for name, _, _ in received) <= 3 + took_s / 0.2


async def test_a_change_of_state_does_not_wait_for_the_next_push(start_api, listen):
    async with start_api(push_interval_s=30.0) as api:
        job, (agent,), (run,) = await api.running()
        await agent.say(run, "rank-0", 0, b"first\n")
        async with listen(api.client("ada-token"), path(job)) as events:
            await events.until("log")
            await agent.say(run, "rank-0", 6, b"last\n")
            await agent.finish(run)
            received = await events.until("end")
    assert [name for name, _, _ in received] == ["job", "log", "end"]
    assert texts(received) == "last\n"


async def test_a_quiet_stream_is_kept_alive(start_api, listen):
    async with start_api(keep_alive_s=0.05) as api:
        job = await api.submit(nodes=5)
        for place in (path(job), "api/events"):
            async with listen(api.client("ada-token"), place) as events:
                if place == path(job):
                    await events.until("job")
                await events.kept_alive(4)


async def run_second_attempt(api, job):
    """Wait for a job's second attempt, after a lost task, and run it to its end."""
    await eventually(lambda: api.context.store.job(job.id).attempts >= 2)
    (again,) = await api.agents(job.id)
    second = await again.run_order()
    await again.start_ranks(second)
    await again.say(second, "rank-0", 0, b"second attempt\n")
    await again.finish(second)


async def test_a_new_attempts_output_comes_after_the_old_ones(api, listen):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "rank-0", 0, b"first attempt\n")
    async with listen(api.client("ada-token"), path(job)) as events:
        await events.until("log")
        api.context.logs.append(job.id, 1, "rank-0", 14, b"its last words\n")
        await api.engine.end(agent.task_id)
        await run_second_attempt(api, job)
        received = await events.until("end")
    assert texts(received) == "its last words\nsecond attempt\n"
    seen = [data["attempt"] if name == "job" else data["text"] for name, data, _ in received if name != "end"]
    assert seen.index("second attempt\n") > seen.index(2) > seen.index("its last words\n")


async def test_who_comes_late_reads_all_attempts(api, listen):
    job, (agent,), (run,) = await api.running()
    await agent.say(run, "rank-0", 0, b"first attempt\n")
    await api.engine.end(agent.task_id)
    await run_second_attempt(api, job)
    async with listen(api.client("ada-token"), path(job)) as events:
        received = await events.until("end")
    logs = [data for name, data, _ in received if name == "log"]
    assert [(data["attempt"], data["text"]) for data in logs] == [
        (1, "first attempt\n"),
        (2, "second attempt\n"),
    ]


async def test_the_overview_tells_a_users_jobs_and_the_nodes(api, listen):
    async with (
        listen(api.client("ada-token"), "api/events") as mine,
        listen(api.client("root-token"), "api/events", params={"owner": "all"}) as all_jobs,
    ):
        job, _, _ = await api.running()
        theirs = await api.submit("bob", nodes=5)
        own, everyones = [], []
        while not (own and own[-1]["state"] == "running"):
            own += [data for name, data, _ in await mine.until("job") if name == "job"]
        while not (everyones and everyones[-1]["id"] == theirs.id):
            everyones += [data for name, data, _ in await all_jobs.until("job") if name == "job"]
    assert {data["id"] for data in own} == {job.id}
    assert {data["id"] for data in everyones} == {job.id, theirs.id}


async def test_nodes_come_when_slots_change_hands(api, listen):
    async with listen(api.client("ada-token"), "api/events") as events:
        job, _, _ = await api.running("bob")
        held = None
        while held != job.id:
            name, data, _ = await events.next()
            held = data["nodes"][0]["slots"][0]["job_id"] if name == "nodes" else None


async def test_open_streams_are_counted_and_let_go(api, listen):
    job = await api.submit(nodes=5)
    streams = api.context.metrics.registry.get_sample_value
    async with listen(api.client("ada-token"), path(job)) as events:
        await events.next()
        assert streams("minicluster_event_streams") == 1
    await eventually(lambda: not streams("minicluster_event_streams"))
    assert not api.context.logs.changes._subscriptions


async def test_a_failure_is_part_of_the_job(api, listen):
    job, (agent,), (run,) = await api.running()
    error = {"kind": "exception", "message": "ValueError: no", "rank": 0, "traceback": "line 3"}
    ranks = (RankReport(rank=0, state=RankState.EXITED, exit_code=1, error=error),)
    async with listen(api.client("ada-token"), path(job)) as events:
        await agent.report(attempt=run.attempt, ranks=ranks)
        await agent.report(attempt=run.attempt, ranks=ranks, cleared=run.attempt)
        received = await events.until("end")
    assert received[-1][1]["state"] == "failed"
    assert received[-1][1]["error"]["message"] == "ValueError: no"
