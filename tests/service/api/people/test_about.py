"""api/about: the token's user, and the ranks' versions, as reported by agents."""

import pytest

from minicluster.wire import WIRE_VERSION, About, Versions

OLD = Versions(python="3.11.7", minicluster="0.1.0", cloudpickle="3.1.2", torch="2.10.0+cpu")
NEW = Versions(python="3.12.1", minicluster="0.1.0", cloudpickle="3.1.2", torch="2.13.0+cu130")


async def about(api, token="ada-token", **query):
    answer = await api.ask("GET", "api/about", token, params=query)
    assert answer.status_code == 200, answer.text
    return About.model_validate_json(answer.content)


async def ran(api, versions, **spec):
    """Run a job whose agent reports these versions."""
    job = await api.submit(**spec)
    [agent] = await api.agents(job.id)
    await agent.report(versions=versions)
    run = await agent.run_order()
    await agent.start_ranks(run)
    await agent.finish(run)
    await api.until(job.id, "succeeded")


async def test_whom_a_token_is_for(api):
    answer = await about(api)
    assert (answer.user, answer.wire_version) == ("ada", WIRE_VERSION)
    assert answer.release
    assert set(answer.scopes) == {f"custom:minicluster:{what}!user=ada" for what in ("read", "submit")}
    assert (await about(api, "bob-token")).user == "bob"


async def test_what_ranks_have_is_known_once_some_ran(api):
    assert (await about(api)).ranks is None
    await ran(api, OLD)
    assert (await about(api)).ranks == OLD
    await ran(api, NEW, owner="bob")
    assert (await about(api)).ranks == NEW


@pytest.mark.parametrize("token", ["stolen", "submitter-token", "prometheus-token", "service-token"])
async def test_who_may_not_ask(api, token):
    answer = await api.ask("GET", "api/about", token)
    assert answer.status_code in (401, 403)


async def test_an_image_that_may_not_run(api):
    answer = await api.ask("GET", "api/about", params={"image": "lab/unknown:1"})
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "image_not_allowed"
