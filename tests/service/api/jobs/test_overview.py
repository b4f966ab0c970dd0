"""Events of lists: each change causes one database query and one message, however many users watch."""

from contextlib import AsyncExitStack

import pytest

WATCHERS = 30


@pytest.fixture
def reads(api, monkeypatch):
    """The ids of jobs that the service read for watchers of the lists."""
    asked = []
    read = api.context.status_cache.overview._records

    def counted(job_ids):
        asked.extend(job_ids)
        return read(job_ids)

    monkeypatch.setattr(api.context.status_cache.overview, "_records", counted)
    return asked


async def test_many_who_watch_cost_one_reading_of_each_change(api, listen, reads):
    async with AsyncExitStack() as watching:
        streams = [
            await watching.enter_async_context(listen(api.client(f"{name}-token"), "api/events"))
            for name in ("ada", "bob") * (WATCHERS // 2)
        ]
        job = await api.submit("ada", nodes=5)
        later = await api.submit("bob", nodes=5)
        for number, stream in enumerate(streams):
            mine = later if number % 2 else job
            ids = {data["id"] for name, data, _ in await until_told(stream, mine.id) if name == "job"}
            assert ids == {mine.id}, "of others' jobs nothing"
        changes = len(reads)
        assert 2 <= changes < WATCHERS, "each was read once for a change, not once for each who watches"
        await api.ask("POST", f"api/jobs/{job.id}/stop")
        for stream in streams[::2]:
            while (await stream.next())[1].get("state") != "stopped":
                pass
        assert len(reads) < changes + WATCHERS


async def until_told(stream, job_id):
    """Read up to the first event of a job."""
    received = []
    while not received or received[-1][1].get("id") != job_id:
        received.append(await stream.next())
    return received


async def test_what_is_kept_is_bounded_and_goes_with_a_change(api, monkeypatch):
    monkeypatch.setattr("minicluster_hub.control.status_cache.MOST_JOBS", 3)
    overview = api.context.status_cache.overview
    jobs = [await api.submit("ada", nodes=5) for _ in range(5)]
    for job in jobs:
        [text] = overview.jobs([job.id], "ada")
        assert f'"id":{job.id}' in text
    assert len(overview._jobs) <= 3
    assert overview.jobs([jobs[0].id], "bob") == []
    assert '"queued"' in overview.jobs([jobs[4].id], None)[0]
    await api.ask("POST", f"api/jobs/{jobs[4].id}/stop")
    await api.until(jobs[4].id, "stopped")
    api.context.status_cache.notify(jobs[4].id)
    assert '"stopped"' in overview.jobs([jobs[4].id], None)[0]
