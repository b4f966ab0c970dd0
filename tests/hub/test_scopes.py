"""A token's permissions at the job service, and what no user may do to another."""

from __future__ import annotations

from contextlib import aclosing

import httpx
import pytest

from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.visitor import Visitor

from ..patience import WITHIN_S
from .conftest import Lab, notebook_api
from .jobs import submit


async def job_of(api: httpx.AsyncClient) -> int:
    answer = await submit(api)
    assert answer.status_code == httpx.codes.CREATED, answer.text
    return answer.json()["id"]


def error_of(answer: httpx.Response) -> dict[str, str]:
    return answer.json()["error"]


async def token_with(visitor: Visitor, *scopes: str) -> str:
    """Make a token on the hub's token page."""
    made = await visitor.call(
        "POST", f"/hub/api/users/{visitor.name}/tokens", "/hub/", json={"scopes": list(scopes)}
    )
    return made["token"]


def client_with(lab: Lab, token: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"token {token}"}
    return httpx.AsyncClient(base_url=lab.service_url, headers=headers, trust_env=False, timeout=WITHIN_S)


async def test_a_notebooks_token_submits_and_stops_its_users_job(ada_api: httpx.AsyncClient) -> None:
    job = await job_of(ada_api)
    seen = (await ada_api.get(f"api/jobs/{job}")).json()
    assert seen["owner"] == "ada"
    stopped = await ada_api.post(f"api/jobs/{job}/stop")
    assert stopped.status_code == httpx.codes.OK


async def test_another_users_job_is_unknown(ada_api: httpx.AsyncClient, grace_api: httpx.AsyncClient) -> None:
    job = await job_of(ada_api)
    for method, path in [
        ("GET", f"api/jobs/{job}"),
        ("GET", f"api/jobs/{job}/events"),
        ("GET", f"api/jobs/{job}/log?rank=0"),
        ("GET", f"api/jobs/{job}/result"),
        ("POST", f"api/jobs/{job}/stop"),
    ]:
        answer = await grace_api.request(method, path)
        assert answer.status_code == httpx.codes.NOT_FOUND, path
        assert error_of(answer)["code"] == "unknown_job", path
    assert job not in {seen["id"] for seen in (await grace_api.get("api/jobs")).json()["jobs"]}
    assert (await ada_api.get(f"api/jobs/{job}")).json()["state"] in {"queued", "starting", "running"}
    await ada_api.post(f"api/jobs/{job}/stop")


async def test_a_payload_of_another_user_cannot_be_used(
    ada_api: httpx.AsyncClient, grace_api: httpx.AsyncClient
) -> None:
    blob = "0" * 63 + "1"
    assert (await grace_api.head(f"api/blobs/{blob}")).status_code == httpx.codes.NOT_FOUND
    job = {"idempotency_key": "a-key-of-grace", "spec": {"payload_sha256": blob}}
    assert (await grace_api.post("api/jobs", json=job)).is_error


async def test_a_token_without_the_scope_is_told_which(lab: Lab, ada: Visitor) -> None:
    token = await token_with(ada, "access:services!service=minicluster")
    async with client_with(lab, token) as api:
        for answer in [await submit(api), await api.get("api/jobs")]:
            assert answer.status_code == httpx.codes.FORBIDDEN
            assert "custom:minicluster:" in error_of(answer)["message"]


async def test_a_token_that_reads_cannot_submit(lab: Lab, ada: Visitor) -> None:
    token = await token_with(ada, "access:services!service=minicluster", "custom:minicluster:read!user=ada")
    async with client_with(lab, token) as api:
        assert (await api.get("api/jobs")).status_code == httpx.codes.OK
        answer = await submit(api)
        assert answer.status_code == httpx.codes.FORBIDDEN
        assert "custom:minicluster:submit" in error_of(answer)["message"]


async def test_a_user_cannot_make_an_admins_token(ada: Visitor) -> None:
    path = f"/hub/api/users/{ada.name}/tokens"
    for scope in (
        "custom:minicluster:admin",
        "custom:minicluster:policy",
        "custom:minicluster:place",
        "admin:users",
        "custom:minicluster:read!user=grace",
    ):
        answer = await ada.http.post(
            path, json={"scopes": [scope]}, headers={"X-XSRFToken": ada.xsrf("/hub/")}
        )
        assert answer.is_error, scope


async def test_a_made_up_token_is_refused(lab: Lab) -> None:
    async with client_with(lab, "0123456789abcdef") as api:
        answer = await api.get("api/jobs")
        assert answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}
        assert error_of(answer)["message"]


async def test_a_notebooks_token_is_of_no_use_at_the_hub(lab: Lab, ada_api: httpx.AsyncClient) -> None:
    headers = {"Authorization": ada_api.headers["Authorization"]}
    async with httpx.AsyncClient(
        base_url=lab.cluster.url, headers=headers, trust_env=False, timeout=WITHIN_S
    ) as hub:
        assert (await hub.get("/hub/api/users")).status_code == httpx.codes.FORBIDDEN
        assert (await hub.get("/hub/api/users/grace")).is_error
        assert (await hub.post("/hub/api/users/ada/tokens", json={})).is_error


@pytest.mark.full("tests/service/api/people/test_access has it without a hub")
async def test_only_an_admin_sees_everybodys_jobs(
    ada: Visitor, admin: Visitor, ada_api: httpx.AsyncClient
) -> None:
    job = await job_of(ada_api)
    refused = await ada_api.get("api/jobs?owner=all")
    assert refused.status_code == httpx.codes.FORBIDDEN
    assert "custom:minicluster:admin" in error_of(refused)["message"]
    seen = await admin.call("GET", f"{SERVICE_PATH}api/jobs?owner=all", SERVICE_PATH)
    assert job in {one["id"] for one in seen["jobs"]}
    await admin.call("POST", f"{SERVICE_PATH}api/jobs/{job}/stop", SERVICE_PATH)
    assert (await ada_api.get(f"api/jobs/{job}")).json()["state"] in {"stopping", "stopped"}


async def test_of_all_notebooks_only_an_admins_may_choose_the_policy_and_no_more(
    admin: Visitor, ada_api: httpx.AsyncClient
) -> None:
    refused = await ada_api.put("api/policy", json={"policy": "fifo"})
    assert refused.status_code == httpx.codes.FORBIDDEN
    job = await job_of(ada_api)
    async with aclosing(notebook_api(admin)) as clients:
        api = await anext(clients)
        before = (await api.get("api/policy")).json()["in_force"]["choice"]
        for choice in ({"policy": "fifo"}, before):
            chosen = await api.put("api/policy", json=choice)
            assert chosen.is_success, chosen.text
            assert chosen.json()["in_force"]["choice"]["policy"] == choice["policy"]
        assert (await api.get("api/jobs?owner=all")).status_code == httpx.codes.FORBIDDEN
        assert error_of(await api.post(f"api/jobs/{job}/stop"))["code"] == "unknown_job"
    await ada_api.post(f"api/jobs/{job}/stop")


async def test_an_admin_makes_a_token_that_only_chooses_the_policy(lab: Lab, admin: Visitor) -> None:
    token = await token_with(admin, "access:services!service=minicluster", "custom:minicluster:policy")
    current = await admin.call("GET", f"{SERVICE_PATH}api/policy", SERVICE_PATH)
    async with client_with(lab, token) as api:
        chosen = await api.put("api/policy", json=current["in_force"]["choice"])
        assert chosen.is_success, chosen.text
        assert (await api.get("api/jobs")).status_code == httpx.codes.FORBIDDEN


async def test_a_cookie_alone_changes_nothing(ada: Visitor, ada_api: httpx.AsyncClient) -> None:
    job = await job_of(ada_api)
    for headers in ({}, {"X-XSRFToken": "made up"}):
        answer = await ada.http.post(f"{SERVICE_PATH}api/jobs/{job}/stop", headers=headers)
        assert answer.status_code == httpx.codes.FORBIDDEN
        assert error_of(answer)["code"] == "xsrf"
    await ada.call("POST", f"{SERVICE_PATH}api/jobs/{job}/stop", SERVICE_PATH)
    assert (await ada_api.get(f"api/jobs/{job}")).json()["state"] in {"stopping", "stopped"}
