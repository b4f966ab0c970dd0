"""A node's data set agent as a process: each data set is fetched once, checked, repaired, limited."""

import asyncio
import os
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from socket import AF_INET

import psutil
import pytest

from minicluster.wire import PIECE_BYTES

from .... import messages
from ....patience import WITHIN_S, eventually
from ..client import TaskEnded
from ..data import PIECES, a_data_agent, contents, count, make_folder, push

LARGE = {"train/a.bin": 4 * PIECE_BYTES, "train/b.bin": 2 * PIECE_BYTES + 5, "z/empty": 0, "z/small": 17}
OTHER_USER = 65534
LOOK = """ls "$1/.."; ls "$1" | wc -l; cat "$1/a" >/dev/null && echo read; : >"$1/mine" """


@pytest.fixture
async def api(start_api):
    """A service that long-polls for less than the test agents' timeout, even on a busy machine."""
    async with start_api(orders_hold_s=2.0) as started:
        yield started


async def pushed(api, tmp_path, name="pets", sizes=None, **more):
    folder = make_folder(tmp_path / name, LARGE if sizes is None else sizes, seed=name)
    made, _ = await push(api, folder, name, **more)
    return folder, made


async def failure(api, data_agent, job):
    """Return why a job failed before its ranks started.

    Its task may have ended before its agent gets an order.
    """
    with suppress(TaskEnded):
        agent, run = await data_agent.order(job)
        await agent.report(cleared=run.attempt)
    await api.until(job.id, "failed")
    return api.context.store.job(job.id).error


async def some_pieces(api, least):
    await eventually(lambda: count(api, "GET", PIECES) >= least)


async def end(api, job, agent, run):
    await agent.start_ranks(run)
    await agent.finish(run)
    await api.until(job.id, "succeeded")


async def until_reason(api, job, reason):
    """Wait until a job's reason has this text; the service updates it shortly."""
    async with asyncio.timeout(WITHIN_S):
        while not (await api.ask("GET", f"api/jobs/{job.id}")).json()["reason"].startswith(reason):
            await asyncio.sleep(0.01)


@pytest.mark.full("in the gate one job fetches it")
async def test_two_jobs_at_once_fetch_a_data_set_once(api, tmp_path):
    folder, _ = await pushed(api, tmp_path)
    await api.submit("bob")  # the first of the three nodes is taken
    jobs = [await api.submit(data=[{"name": "pets"}]) for _ in range(2)]
    async with a_data_agent(api, tmp_path / "node") as data_agent:
        orders = await asyncio.gather(*(data_agent.order(job) for job in jobs))
        for _, run in orders:
            found = data_agent.folder(run, "pets")
            assert contents(found) == contents(folder)
            assert {path.stat().st_mode & 0o777 for path in found.rglob("*") if path.is_file()} == {0o444}
        assert orders[0][1].data == orders[1][1].data
        pieces = count(api, "GET", PIECES)
        assert pieces == 8 + 1
        # Another job finds the data set in the cache.
        for job, (agent, run) in zip(jobs, orders, strict=True):
            await end(api, job, agent, run)
        agent, run = await data_agent.order(await api.submit(data=[{"name": "pets"}]))
        assert (count(api, "GET", PIECES), contents(data_agent.folder(run, "pets"))) == (
            pieces,
            contents(folder),
        )
        assert (await api.ask("GET", "api/data")).json()["sets"][0]["nodes"] == ["node-1", "node-2", "node-3"]


async def test_a_job_that_waits_says_for_which_node(api, tmp_path):
    await pushed(api, tmp_path, sizes={"a": 50})
    job = await api.submit(data=[{"name": "pets"}])
    (agent,) = await api.agents(job.id)
    await agent.report()
    assert (await agent.orders()).run is None
    await until_reason(api, job, "fetching pets: node-1 waits for its data set agent")
    report = {"folder": "f", "standing": "fetching", "done_bytes": 21}
    report["folder"] = api.context.status_cache.data_set_tracker.folder(
        api.context.store.job(job.id).spec.data[0]
    )
    token = api.context.status_cache.data_set_tracker.tokens.issue(["node-1"])
    headers = {"Authorization": f"keeper {token}"}
    body = {"nodes": ["node-1"], "sets": [report]}
    await api.client(**headers).post("api/data-agents/report", json=body)
    await until_reason(api, job, "fetching pets: node-1 42 %")
    for wrong in ("keeper x", f"token {token}", "task x"):
        assert (
            await api.client(Authorization=wrong).get("api/data-agents/orders", params={"node": "node-1"})
        ).status_code == 401


async def test_a_later_push_disturbs_no_job(api, tmp_path):
    folder, _ = await pushed(api, tmp_path, sizes={"a": 50, "b": 60})
    async with a_data_agent(api, tmp_path / "node") as data_agent:
        job = await api.submit(data=[{"name": "pets"}])
        agent, run = await data_agent.order(job)
        before = contents(folder)
        (folder / "a").write_bytes(b"the second version")
        await push(api, folder, "pets")
        _, second = await data_agent.order(await api.submit(data=[{"name": "pets"}]))
        assert contents(data_agent.folder(second, "pets")) == contents(folder)
        assert contents(data_agent.folder(run, "pets")) == before
        assert (await agent.run_order()).data == run.data


@pytest.mark.full("a rare fault")
async def test_a_damaged_file_is_found_and_fetched_again(api, tmp_path):
    folder, _ = await pushed(api, tmp_path)
    async with a_data_agent(api, tmp_path / "node") as data_agent:
        job = await api.submit(data=[{"name": "pets"}])
        agent, run = await data_agent.order(job)
        await end(api, job, agent, run)
        found, before = data_agent.folder(run, "pets"), count(api, "GET", PIECES)
        damaged = found / "train/a.bin"
        damaged.chmod(0o644)
        with damaged.open("r+b") as file:
            file.seek(2 * PIECE_BYTES + 3)
            file.write(b"damage")
        (found / "z").chmod(0o755)
        (found / "z/small").unlink()
        (found / "train/b.bin").touch()
        _, run = await data_agent.order(await api.submit(data=[{"name": "pets"}]))
        assert contents(data_agent.folder(run, "pets")) == contents(folder)
        # Fetched again: one piece of the large file, and the small file's; the touched file is intact.
        assert count(api, "GET", PIECES) - before == 2


@pytest.mark.full("in the gate a damaged file is fetched again")
async def test_a_killed_keeper_goes_on(api, tmp_path):
    folder, _ = await pushed(api, tmp_path)
    job = await api.submit(data=[{"name": "pets"}])
    async with a_data_agent(api, tmp_path / "node") as data_agent:
        ordered = asyncio.create_task(data_agent.order(job))
        await some_pieces(api, 4)
        data_agent.kill()
        came = count(api, "GET", PIECES)
        data_agent.start()
        _, run = await ordered
        assert contents(data_agent.folder(run, "pets")) == contents(folder)
        # At most the interrupted pieces are fetched again.
        assert came < 9 <= count(api, "GET", PIECES) <= 9 + 4


async def test_a_full_cache_says_so_and_keeps_what_is_in_use(api, tmp_path):
    limit = 5_000_000
    await pushed(api, tmp_path, "old", {"a": 2_000_000})
    await pushed(api, tmp_path, "used", {"a": 2_500_000})
    await pushed(api, tmp_path, "new", {"a": 2_400_000})
    await pushed(api, tmp_path, "huge", {"a": 6_000_000})
    await pushed(api, tmp_path, "many", {f"{number}": 0 for number in range(2_000)})
    async with a_data_agent(api, tmp_path / "node", limit_bytes=limit) as data_agent:
        job = await api.submit(data=[{"name": "old"}])
        agent, first = await data_agent.order(job)
        await end(api, job, agent, first)
        using = await api.submit(data=[{"name": "used"}])
        user, used = await data_agent.order(using)
        error = await failure(api, data_agent, await api.submit(data=[{"name": "huge"}]))
        assert error.message == (
            f"node-2 {messages.COULD_NOT_FETCH.format(name='huge')}"
            f"huge has 6 MB, and {messages.CACHE_HOLDS} 5 MB"
        )
        assert "up --data-cache" in error.hint
        error = await failure(api, data_agent, await api.submit(data=[{"name": "many"}]))
        assert f"many has 8 MB in 2,000 {messages.MANY_FILES}" in error.message
        # The oldest data set is evicted; those in use stay.
        agent, run = await data_agent.order(await api.submit(data=[{"name": "new"}]))
        assert data_agent.folder(run, "new").is_dir()
        assert data_agent.folder(used, "used").is_dir()
        assert not data_agent.folder(first, "old").exists()
        # With two in use, a third does not fit until one of the jobs ends.
        waiting = await api.submit(data=[{"name": "old"}])
        ordered = asyncio.create_task(data_agent.order(waiting))
        async with asyncio.timeout(WITHIN_S):
            while messages.IN_USE_BY_OTHERS not in (
                shown := (await api.ask("GET", f"api/jobs/{waiting.id}")).json()["reason"]
            ):
                await asyncio.sleep(0.05)
        assert "old has 2 MB" in shown and "at most 5 MB, and 5 MB are in use" in shown
        await end(api, using, user, used)
        _, run = await ordered
        assert data_agent.folder(run, "old").is_dir()


async def test_a_piece_that_the_service_lost_fails_the_job_and_is_sent_again(api, tmp_path):
    folder, _ = await pushed(api, tmp_path, sizes={"a": 5_000})
    (record,) = [
        path for path in api.context.data_sets.files._root.glob("??/*") if path.stat().st_size == 5_000
    ]
    record.write_bytes(b"x" * 5_000)
    async with a_data_agent(api, tmp_path / "node") as data_agent:
        error = await failure(api, data_agent, await api.submit(data=[{"name": "pets"}]))
        assert "lost the piece" in error.message
        assert "Push the data set again" in error.hint
        _, sent = await push(api, folder, "pets")
        assert sent.sent_bytes == 5_000
        _, run = await data_agent.order(await api.submit(data=[{"name": "pets"}]))
        assert contents(data_agent.folder(run, "pets")) == contents(folder)


async def test_a_keeper_tells_its_machines_addresses_on_all_networks(api, tmp_path):
    own = {one.address for held in psutil.net_if_addrs().values() for one in held if one.family == AF_INET}
    async with a_data_agent(api, tmp_path / "node", "node-1"):
        await eventually(lambda: api.context.status_cache.data_set_tracker.addresses(["node-1"]))
    addresses = api.context.status_cache.data_set_tracker.addresses(["node-1", "node-2"])
    assert own - addresses <= {"127.0.0.1"} and not {"127.0.0.1", "::1"} & addresses


@pytest.mark.skipif(os.getuid() != 0, reason="only root runs something as another user")
async def test_who_is_not_told_the_folder_finds_nothing(api, tmp_path):
    """Not even as the data set agent's user, as which ranks run; and nobody can write there."""
    await pushed(api, tmp_path, sizes={"a": 50, "b/c": 60})
    with tempfile.TemporaryDirectory(prefix="minicluster-test-") as name:
        await found_by_agent(api, Path(name))


async def found_by_agent(api, root):
    async with a_data_agent(api, root) as data_agent:
        job = await api.submit(data=[{"name": "pets"}])
        _, run = await data_agent.order(job)
        found = data_agent.folder(run, "pets")
        assert found.is_dir(), f"{api.context.store.job(job.id)}\n{data_agent.log}"
        home = data_agent.home
        for path in (home, *home.rglob("*")):
            os.chown(path, 1000, 1000)
        home.chmod(0o711)
        for user in (1000, OTHER_USER):
            done = subprocess.run(
                ["/bin/sh", "-c", LOOK, "sh", found],
                user=user,
                group=user,
                extra_groups=[],
                capture_output=True,
                text=True,
            )
            assert done.stdout.split() == ["2", "read"], done
            assert done.stderr.count("ermission denied") == 2, done
