"""Compile caches over the API: for agents of their owner alone, each thing sent once, within limits."""

import hashlib
from dataclasses import replace

import pytest

from minicluster.wire.files.compile_caches import CompileCache, CompiledEntries
from minicluster_hub.storage import compile_caches
from minicluster_hub.storage.compile_caches import surplus

from ....patience import eventually

PATH = "api/tasks/compile-cache"
HERE, ELSEWHERE = "a" * 64, "b" * 64
"""Two environments."""


async def add(agent, data, environment=HERE):
    sha256 = hashlib.sha256(data).hexdigest()
    answer = await agent.http.put(f"{PATH}/{sha256}?environment={environment}", content=data)
    assert answer.status_code == 200, answer.text
    return sha256


async def pieces(agent, environment=HERE):
    answer = await agent.http.get(PATH, params={"environment": environment})
    return [one.sha256 for one in CompileCache.model_validate_json(answer.content).pieces]


async def offer(agent, *entries, damaged=()):
    body = CompiledEntries(environment=HERE, entries=entries, damaged=damaged).model_dump_json()
    answer = await agent.http.post(PATH, content=body)
    return list(CompiledEntries.model_validate_json(answer.content).entries)


def on_disk(api):
    return {path.name for path in api.context.compile_caches.files._root.glob("??/*")}


async def test_a_piece_is_there_for_the_owners_next_job_and_for_nobody_else(api):
    job, (agent,), (run,) = await api.running()
    sha256 = await add(agent, b"compiled")
    await agent.finish(run)
    await api.until(job.id, "succeeded")

    _, (next_agent,), _ = await api.running()
    assert await pieces(next_agent) == [sha256]
    got = await next_agent.http.get(f"{PATH}/{sha256}?environment={HERE}")
    assert got.content == b"compiled"
    assert await pieces(next_agent, ELSEWHERE) == [], "another torch, or another kind of GPU"
    other = await next_agent.http.get(f"{PATH}/{sha256}?environment={ELSEWHERE}")
    assert other.status_code == 404

    _, (foreign,), _ = await api.running("bob")
    assert await pieces(foreign) == []
    assert (await foreign.http.get(f"{PATH}/{sha256}?environment={HERE}")).status_code == 404
    assert await add(foreign, b"compiled") == sha256
    assert await offer(foreign, damaged=(sha256,)) == []
    assert await pieces(next_agent) == [sha256], "nobody removes another's"
    assert on_disk(api) == {sha256}


async def test_another_image_has_a_cache_of_its_own(start_api, offer):
    first, second = (f"lab/torch@sha256:{letter * 64}" for letter in "ab")
    async with start_api(images=offer(own=(first, second))) as lab:
        await eventually(lambda: len(lab.context.store.images.all()) >= 2)
        _, (agent,), _ = await lab.running(image=first)
        sha256 = await add(agent, b"compiled")
        _, (other,), _ = await lab.running(image=second)
        assert (await pieces(agent), await pieces(other)) == ([sha256], [])


async def test_an_environment_is_a_digest(api):
    _, (agent,), _ = await api.running()
    for wrong in ("", "torch", "A" * 64, f"{HERE}/.."):
        assert (await agent.http.get(PATH, params={"environment": wrong})).status_code == 422


async def test_of_tasks_that_compiled_the_same_the_first_sends_it(api):
    _, agents, _ = await api.running(nodes=2)
    both, alone = "0" * 16, "1" * 16
    assert await offer(agents[0], both) == [both]
    assert await offer(agents[1], both, alone) == [alone]
    assert await offer(agents[0], both) == [both], "a repeated request has the same answer"


async def test_what_is_over_a_limit_goes_the_oldest_first(api, monkeypatch):
    monkeypatch.setattr(compile_caches, "MOST_PIECES", 2)
    monkeypatch.setattr(compile_caches, "MOST_CACHES", 2)
    _, (agent,), _ = await api.running()
    first, second, third = [await add(agent, data) for data in (b"1", b"2", b"3")]
    assert await pieces(agent) == [second, third]
    assert on_disk(api) == {second, third}
    await add(agent, b"4", ELSEWHERE)
    assert await pieces(agent) == [second, third], "used last"
    await add(agent, b"5", "c" * 64)
    assert await pieces(agent, ELSEWHERE) == []
    assert first not in on_disk(api)


def test_the_newest_pieces_up_to_the_limit_are_kept():
    a, b, c = (compile_caches.BlobInfo(sha256=name * 64, size_bytes=100) for name in "abc")
    assert surplus([a, b, c], 250) == [a.sha256]
    assert surplus([a, b, c], 300) == []


async def test_a_damaged_piece_is_removed_when_an_agent_says_so(api):
    _, (agent,), _ = await api.running()
    sha256 = await add(agent, b"compiled")
    await offer(agent, damaged=(sha256,))
    assert (await pieces(agent), on_disk(api)) == ([], set())


async def test_it_counts_in_the_owners_quota_and_makes_room_when_that_is_full(api):
    context = api.context
    context.storage.before_refusal(context.compile_caches.make_room)
    context.storage.limit_of = lambda owner: 500_000
    _, (agent,), _ = await api.running()
    await add(agent, b"c" * 300_000)
    uses = (await api.ask("GET", "api/storage")).json()["owners"][0]["uses"]
    assert {use["kind"]: use["size_bytes"] for use in uses}["compiled"] == 300_000
    large = b"r" * 400_000
    sha256 = hashlib.sha256(large).hexdigest()
    assert (await agent.http.put(f"api/tasks/blobs/{sha256}", content=large)).status_code == 200
    assert (await pieces(agent), on_disk(api)) == ([], set())


@pytest.mark.parametrize("used_before_s", [compile_caches.UNUSED_S + 1, 3600])
async def test_a_cache_that_nobody_uses_any_more_is_removed(api, used_before_s):
    _, (agent,), _ = await api.running()
    sha256 = await add(agent, b"compiled")
    later = replace(api.context.compile_caches, clock=lambda: api.context.clock() + used_before_s)
    await later.remove_unused()
    assert await pieces(agent) == ([] if used_before_s > compile_caches.UNUSED_S else [sha256])
