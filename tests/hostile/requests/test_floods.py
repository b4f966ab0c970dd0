"""Floods of requests, reports, streams, and readers that never read: only their sender is slowed."""

import asyncio
import base64
import json
import socket
import time
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from minicluster.client.client import JobServiceClient
from minicluster.client.connection import ServiceError
from minicluster.client.sse import Ended, follow
from minicluster_hub.support.rates import Buckets, Rate
from minicluster_hub.web.context import ApiLimits
from minicluster_hub.web.open_streams import OpenStreams

from ...patience import WITHIN_S, eventually
from ...service.api.hub import READ, user_model

SLOW = Rate(per_s=1.0, burst=20.0)
LIMITS = ApiLimits()


def code(answer):
    return answer.status_code, answer.json()["error"]["code"]


async def flood(client, method, path, count, **more):
    """Send many requests on several connections at once; return the answers."""
    gate = asyncio.Semaphore(20)

    async def one():
        async with gate:
            return await client.request(method, path, **more)

    return await asyncio.gather(*(one() for _ in range(count)))


def refused(answers):
    assert {answer.status_code for answer in answers} <= {200, 429}, "no 500"
    return [answer for answer in answers if answer.status_code == 429]


def refused_of(answers):
    return [answer for answer in answers if answer.status_code == 429]


# --- requests ------------------------------------------------------------------------------------


async def test_a_user_who_floods_is_slowed_and_nobody_else(start_api):
    async with start_api(user_rate=SLOW, refusal_s=0.0) as api:
        job = await api.submit("bob")
        answers, mine = await asyncio.gather(
            flood(api.client("bob-token"), "GET", f"api/jobs/{job.id}", 200),
            flood(api.client("ada-token"), "GET", "api/jobs", 15),
        )
        assert len(refused(answers)) > 150
        assert not refused(mine)
        assert code(refused(answers)[0]) == (429, "too_many_requests")
        assert int(refused(answers)[0].headers["Retry-After"]) >= 1


async def test_all_tokens_of_a_user_are_one_user(start_api):
    async with start_api(user_rate=SLOW, refusal_s=0.0) as api:
        for number in range(10):
            api.hub.models[f"bobs-{number}"] = api.hub.models["bob-token"]
        floods = (flood(api.client(f"bobs-{number}"), "GET", "api/jobs", 20) for number in range(10))
        answers = [answer for some in await asyncio.gather(*floods) for answer in some]
        assert len(refused(answers)) > 150


async def test_a_long_answer_counts_as_many(start_api):
    async with start_api(user_rate=Rate(per_s=1.0, burst=100.0), answer_bytes=1000, refusal_s=0.0) as api:
        for _ in range(20):
            await api.submit("bob", nodes=5)
        answers = await flood(api.client("bob-token"), "GET", "api/jobs", 40)
        length = len(next(answer for answer in answers if answer.status_code == 200).content)
        assert length > 5000
        served = sum(answer.status_code == 200 for answer in answers)
        assert served < 25, "each took as much as its length from what there was"


async def test_a_long_body_counts_as_many(start_api):
    """Parsing a long body blocks the event loop as long as many requests do."""
    async with start_api(user_rate=Rate(per_s=1.0, burst=100.0), refusal_s=0.0) as api:
        body = json.dumps({f"field_{number}": 1 for number in range(30_000)})
        answers = await flood(api.client("bob-token"), "POST", "api/jobs", 40, content=body)
        read = [answer for answer in answers if answer.status_code == 422]
        assert 1 <= len(read) < 10 and len(refused_of(answers)) == 40 - len(read)
        assert len(read[0].content) < 10_000, "an answer does not name them all"
        assert code(await api.ask("POST", "api/jobs", content=b" " * (2 << 20))) == (413, "too_large")


async def test_a_long_report_counts_as_many_but_output_does_not(start_api):
    async with start_api(report_rate=Rate(per_s=1.0, burst=100.0), refusal_s=0.0) as api:
        _, (talker,), (run,) = await api.running("ada")
        for number in range(8):
            await talker.say(run, "rank-0", number << 20, b"a line\n" * 150_000)
        _, (agent,), (theirs,) = await api.running("bob", payload=b"bob's cell")
        unreached = [f"10.0.0.{number}:29500" for number in range(10_000)]
        body = json.dumps(
            {"ready": True, "attempt": theirs.attempt, "store_port": 4000, "unreached": unreached}
        )
        answers = await flood(agent.http, "POST", "api/tasks/report", 40, content=body)
        assert len(refused(answers)) > 25


async def test_methods_that_there_are_not_take_no_memory(start_api):
    async with start_api() as api:
        for number in range(20):
            assert (await api.ask(f"MADE-UP-{number}", "health")).status_code == 405
        text = api.context.metrics.text().decode()
        assert "MADE-UP" not in text and 'method="other"' in text


async def test_what_strangers_send_to_be_known_by_takes_no_memory(api):
    """Unknown tokens and login sessions are cached for a while, whatever their length."""
    for number in range(20):
        headers = {"Cookie": f"jupyterhub-session-id={number}{'x' * 15_000}"}
        answer = await api.client(f"{number}{'y' * 15_000}", **headers).get("api/jobs")
        assert code(answer) == (401, "not_authenticated")
    known = api.context.hub_auth.cache.values
    assert sum(map(len, known)) < len(known) * 200
    assert (await api.ask("GET", "api/jobs")).status_code == 200


def test_who_asks_once_is_forgotten_again():
    buckets = Buckets()
    for number in range(30_000):
        buckets.take(number, LIMITS.user_rate)
    assert len(buckets) <= 10_000


@pytest.mark.parametrize(
    ("rate", "per_s", "count"),
    [
        pytest.param(LIMITS.report_rate, 21.0, 10_000, id="an agent whose ranks print all the time"),
        pytest.param(LIMITS.user_rate, 1e9, 1000, id="a cell with as many parts as it may have"),
        pytest.param(LIMITS.user_rate, 150.0, 10_000, id="pieces of data by a fast line"),
        pytest.param(LIMITS.transfer_rate, 1e9, 1000, id="parts of a cell that a task fetches"),
        pytest.param(LIMITS.transfer_rate, 250.0, 10_000, id="files of an output folder"),
    ],
)
def test_honest_use_is_never_slowed(rate, per_s, count):
    now = [1000.0]
    buckets = Buckets(lambda: now[0])
    for _ in range(count):
        assert buckets.take("somebody", rate) == 0.0
        now[0] += 1 / per_s


async def test_a_notebook_waits_and_goes_on(start_api):
    async with start_api(user_rate=Rate(per_s=10.0, burst=5.0)) as api:
        job = await api.submit("bob")

        def ask():
            service = JobServiceClient(api.url, "bob-token")
            return [service.job(job.id).id for _ in range(15)]

        assert await asyncio.to_thread(ask) == [job.id] * 15


@pytest.mark.alone("it measures times")
async def test_latency_of_others_under_a_flood(start_api):
    """Compare with the same flood without a rate limit, in the same run.

    The limit is low, so that its effect shows on a slow machine, too.
    """
    took = {}
    async with start_api() as api:
        for number in range(150):
            await api.submit("bob", nodes=5, key=f"the-key-{number}")
    for name, rate in (("unlimited", Rate(1e9, 1e9)), ("limited", Rate(per_s=5.0, burst=50.0))):
        async with start_api(user_rate=rate) as api:
            flooding = await asyncio.create_subprocess_exec(
                "python3", "-c", FLOOD, api.url, "bob-token", stdout=asyncio.subprocess.PIPE
            )
            await flooding.stdout.readline()
            took[name] = await median_s(api)
            flooding.kill()
            await flooding.wait()
    assert took["limited"] < 0.7 * took["unlimited"], took


FLOOD = """
import http.client, sys, threading, urllib.parse
there, token = urllib.parse.urlsplit(sys.argv[1]), f"token {sys.argv[2]}"
def ask():
    way = http.client.HTTPConnection(there.netloc)
    while True:
        way.request("GET", there.path + "api/jobs?limit=1000", headers={"Authorization": token})
        way.getresponse().read()
threads = [threading.Thread(target=ask) for _ in range(16)]
for one in threads: one.start()
import time; time.sleep(1); print("begun", flush=True)
"""


async def median_s(api):
    client, times = api.client("ada-token"), []
    for _ in range(30):
        began = time.perf_counter()
        assert (await client.get("api/jobs")).status_code == 200
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


# --- reports -------------------------------------------------------------------------------------


async def test_a_task_that_floods_reports_is_slowed_and_not_lost(start_api):
    async with start_api(report_rate=SLOW, refusal_s=0.0) as api:
        adas, (honest,), (run,) = await api.running("ada")
        bobs, (agent,), (theirs,) = await api.running("bob", payload=b"bob's cell")
        body = json.dumps({"ready": True, "attempt": theirs.attempt, "store_port": 4000})
        answers = await flood(agent.http, "POST", "api/tasks/report", 200, content=body)
        assert len(refused(answers)) > 150
        await honest.report(attempt=run.attempt)
        for job in (adas, bobs):
            assert api.context.store.job(job.id).state == "running"
        file = await agent.http.get(f"api/tasks/blobs/{theirs.payload_sha256}")
        assert file.status_code == 200, "what a task fetches is counted for itself"


async def test_a_task_holds_few_polls(start_api):
    async with start_api(polls=4, orders_hold_s=30.0) as api:
        _, (agent,), _ = await api.running("bob")
        have = (await agent.orders()).version
        held = [
            asyncio.create_task(agent.http.get("api/tasks/orders", params={"have": have})) for _ in range(4)
        ]
        await eventually(lambda: api.context.streams._open.total() == 4)
        assert code(await agent.http.get("api/tasks/orders", params={"have": have})) == (
            429,
            "too_many_streams",
        )
        await api.context.held_polls.release()
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}
        assert not api.context.streams._open


# --- event streams -------------------------------------------------------------------------------


async def test_a_user_holds_so_many_streams_and_no_more(start_api, listen):
    async with start_api(streams=3) as api, AsyncExitStack() as held:
        bob = api.client("bob-token")
        for _ in range(3):
            await held.enter_async_context(listen(bob, "api/events"))
        answer = await bob.get("api/events")
        assert code(answer) == (429, "too_many_streams") and int(answer.headers["Retry-After"]) >= 1
        async with listen(api.client("ada-token"), "api/events"):
            pass
        await held.aclose()
        await eventually(lambda: not api.context.streams._open)
        async with listen(bob, "api/events"):
            pass


async def test_a_panel_without_room_for_its_stream_waits_for_one(start_api, listen):
    async with start_api(streams=1, keep_alive_s=0.1) as api:
        job, (agent,), (run,) = await api.running("bob")
        received = []

        def read():
            received.extend(follow(JobServiceClient(api.url, "bob-token"), job.id, too_late()))

        async with listen(api.client("bob-token"), "api/events"):
            reading = asyncio.create_task(asyncio.to_thread(read))
            await agent.finish(run)
            await api.until(job.id, "succeeded")
            await eventually(lambda: received and "open already" in received[0].lost)
        await reading
        assert isinstance(received[-1], Ended)


def too_late():
    """Return a function that tells a reading thread to stop, as it cannot be ended otherwise."""
    end = time.monotonic() + WITHIN_S / 2
    return lambda: time.monotonic() > end


PATHS = ("api/events", "api/jobs/{}/events")


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_ends_when_its_token_is_taken_back(start_api, listen, path):
    async with start_api(recheck_s=0.05, keep_alive_s=0.05) as api:
        job = await api.submit("bob", nodes=5)
        # The reason for waiting has been sent; it is not sent again.
        await eventually(lambda: job.id in {wait.job_id for wait in api.context.status_cache.waits()})
        async with (
            listen(api.client("bob-token"), path.format(job.id)) as bobs,
            listen(api.client("ada-token"), "api/events") as adas,
        ):
            await bobs.kept_alive(2) if path == "api/events" else await bobs.next()
            del api.hub.models["bob-token"]
            api.context.hub_auth.cache.clear()  # as it is after 45 s
            events = await bobs.until("error")
            assert events[-1][1]["error"]["code"] == "not_authenticated"
            with pytest.raises(StopAsyncIteration):
                await bobs.next()
            await adas.kept_alive(3)


async def test_a_stream_ends_when_its_token_loses_the_scope(start_api, listen):
    async with start_api(recheck_s=0.05, keep_alive_s=0.05) as api:
        async with listen(api.client("bob-token"), "api/events") as events:
            api.hub.models["bob-token"] = user_model("bob")
            api.context.hub_auth.cache.clear()
            assert (await events.until("error"))[-1][1]["error"]["code"] == "scope_missing"
        api.hub.models["bob-token"] = user_model("bob", f"{READ}!user=bob")


@pytest.mark.parametrize("path", ["api/events?owner=all", "api/jobs/{job}/events"])
async def test_who_is_no_admin_any_more_sees_no_more_of_others(start_api, listen, path):
    """The token still gives access to the user's own jobs."""
    async with start_api(recheck_s=0.05, keep_alive_s=0.05) as api:
        job = await api.submit("bob", nodes=5)
        async with listen(api.client("root-token"), path.format(job=job.id)) as events:
            api.hub.models["root-token"] = user_model("root", f"{READ}!user=root")
            api.context.hub_auth.cache.clear()
            code = (await events.until("error"))[-1][1]["error"]["code"]
        assert code in ("scope_missing", "unknown_job")


async def test_names_of_servers_that_are_none_leave_nothing_behind(api):
    answers = await flood(api.client("ada-token"), "POST", "api/gpus/first", 1)
    for number in range(50):
        answers += await flood(api.client("ada-token"), "POST", f"api/gpus/{number}-{'x' * 900}", 1)
    assert {code(answer) for answer in answers} == {(409, "no_gpus")}
    assert len(api.context.server_places.locks) == 0


async def test_all_streams_of_a_user_have_a_part_of_the_time_together():
    """However many streams a user has: after each computation, all of them pause."""
    now = 100.0
    streams = OpenStreams(clock=lambda: now)
    streams.worked("ada", 0.2)
    assert streams.rest_s("ada") == 0.0, "who gets little waits for nothing"
    for _ in range(3):
        streams.worked("ada", 0.1)
    assert streams.rest_s("ada") == pytest.approx(0.8 + 1.2 - 1.0), "each rest follows the one before"
    assert streams.rest_s("bob") == 0.0
    streams.worked("ada", 100.0)
    assert streams.rest_s("ada") == pytest.approx(5.0), "nothing is held back for long"
    now += 6.0
    assert streams.rest_s("ada") == 0.0


async def test_a_busy_stream_ends_as_well(start_api, listen):
    """A stream that is never idle sends no keep-alives."""
    async with start_api(recheck_s=0.05, push_interval_s=0.0) as api:
        job, (agent,), (run,) = await api.running("bob")

        async def print_all_the_time():
            offset = 0
            while True:
                await agent.say(run, "rank-0", offset, b"a line\n")
                offset += 7

        printing = asyncio.create_task(print_all_the_time())
        async with listen(api.client("bob-token"), f"api/jobs/{job.id}/events") as events:
            await events.until("log")
            del api.hub.models["bob-token"]
            api.context.hub_auth.cache.clear()
            await events.until("error")
        printing.cancel()


async def test_a_hub_that_is_away_ends_no_stream(start_api, listen):
    async with (
        start_api(recheck_s=0.02, keep_alive_s=0.02) as api,
        listen(api.client("ada-token"), "api/events") as events,
    ):
        api.hub.down = True
        api.context.hub_auth.cache.clear()
        before = api.hub.asked
        await events.kept_alive(10)
        assert api.hub.asked > before


async def test_a_notebook_is_told_why_its_stream_ended(start_api):
    async with start_api(recheck_s=0.05, keep_alive_s=0.05) as api:
        job = await api.submit("bob", nodes=5)

        def read():
            with pytest.raises(ServiceError) as raised:
                list(follow(JobServiceClient(api.url, "bob-token"), job.id, too_late()))
            return raised.value

        reading = asyncio.create_task(asyncio.to_thread(read))
        await eventually(lambda: api.context.streams._open)
        del api.hub.models["bob-token"]
        api.context.hub_auth.cache.clear()
        assert (await reading).code == "not_authenticated"


# --- readers who never read ----------------------------------------------------------------------


def never_reads(api, path, token):
    """Request a stream on a connection with a tiny buffer, and never read it."""
    there = urlsplit(api.url)
    way = socket.socket()
    way.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    way.connect((there.hostname, there.port))
    way.sendall(
        f"GET {there.path}{path} HTTP/1.1\r\nHost: x\r\nAuthorization: token {token}\r\n\r\n".encode()
    )
    return way


async def display(agent, run, megabytes):
    picture = base64.b64encode(b"p" * 700_000).decode()
    line = json.dumps({"id": "a" * 8, "data": {"image/png": picture}}).encode() + b"\n"
    for number in range(megabytes):
        await agent.say(run, "display-0", number * len(line), line)


async def test_a_reader_who_never_reads_is_cut(start_api, listen):
    async with start_api(stalled_s=3.0) as api:
        job, (agent,), (run,) = await api.running("bob")
        path = f"api/jobs/{job.id}/events"
        with never_reads(api, path, "bob-token"):
            await eventually(lambda: api.context.streams._open["bob"] == 1)
            await display(agent, run, 12)
            await eventually(lambda: not api.context.streams._open)
        async with listen(api.client("bob-token"), path) as events:
            await agent.finish(run)
            shown = [data for name, data, _ in await events.until("end") if name == "displays"]
            assert sum(len(one["displays"]) for one in shown) == 12, "who comes again misses nothing"


async def test_readers_who_never_read_take_no_memory_but_a_little(start_api, listen):
    limit = 6 << 20
    async with start_api(stalled_s=600.0, streams_bytes=limit) as api:
        job, (agent,), (run,) = await api.running("bob")
        ways = [never_reads(api, f"api/jobs/{job.id}/events", "bob-token") for _ in range(30)]
        await eventually(lambda: api.context.streams._open["bob"] == 30)
        async with listen(api.client("ada-token"), "api/events") as adas:
            await display(agent, run, 12)
            await eventually(lambda: api.context.streams._open["bob"] < 10)
            assert api.context.streams._pending["bob"] <= limit
            mine = await api.submit("ada", payload=b"mine")
            assert mine.id in [data["id"] for _, data, _ in await adas.until("job")]
        for way in ways:
            way.close()
