"""A cell's large parts, which its owner's idle tasks fetch while the notebook uploads the others."""

import hashlib

import pytest

from minicluster_hub.storage.fresh_parts import FreshParts

PARTS = {hashlib.sha256(data).hexdigest(): data for data in (b"one part", b"another part")}


async def upload(api, owner, parts):
    token = f"{owner}-token"
    await api.ask("POST", "api/missing-blobs", token, json={"sha256": [*PARTS]})
    for sha256 in parts:
        assert (await api.ask("PUT", f"api/blobs/{sha256}", token, content=PARTS[sha256])).status_code == 200


async def warm_agent(api, owner="ada"):
    """Return the agent of a gang that waits for its owner's next job, and its orders."""
    _, (agent,), (run,) = await api.running(owner)
    await agent.finish(run)
    orders = await agent.orders()
    while orders.run is not None:
        orders = await agent.orders(orders.version)
    return agent, orders


async def test_an_idle_task_is_told_what_its_owner_uploads(api):
    (agent, orders), (other, others) = await warm_agent(api), await warm_agent(api, "bob")
    one, another = PARTS
    await upload(api, "ada", [one])
    orders = await agent.orders(orders.version)
    assert (orders.run, orders.coming) == (None, (one,))
    assert (await agent.http.get(f"api/tasks/blobs/{one}")).content == PARTS[one]
    await upload(api, "ada", [another])
    orders = await agent.orders(orders.version)
    assert orders.coming == (one, another)
    for sha256 in PARTS:
        assert (await other.http.get(f"api/tasks/blobs/{sha256}")).status_code == 409
    assert (await other.orders()).version == others.version


async def test_what_no_cell_announced_is_not_told(api):
    agent, orders = await warm_agent(api)
    one, _ = PARTS
    await api.ask("PUT", f"api/blobs/{one}", content=PARTS[one])
    assert (await agent.orders()).version == orders.version
    assert (await agent.http.get(f"api/tasks/blobs/{one}")).status_code == 409


async def test_a_task_with_a_job_is_not_disturbed(api):
    _, (agent,), _ = await api.running()
    orders = await agent.orders()
    await upload(api, "ada", PARTS)
    assert (await agent.orders()).version == orders.version


@pytest.fixture
def clock():
    return [0.0]


def test_a_part_is_fresh_for_a_minute(clock):
    fresh = FreshParts(lambda: clock[0])
    fresh.expect("ada", ["a", "b", "c"])
    assert not fresh.came("bob", "a") and not fresh.came("ada", "x")
    assert fresh.came("ada", "a") and not fresh.came("ada", "a")
    clock[0] = 59.0
    assert fresh.came("ada", "b")
    assert fresh.of("ada") == ("a", "b")
    clock[0] = 61.0
    assert (fresh.of("ada"), fresh.of("bob")) == (("b",), ())
