"""Permissions: every route, by user, scope, task and cookie."""

from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from minicluster_hub.http_server import API
from minicluster_hub.web.route import Scope, Who, routes_in

USER_ROUTES = [route for route in routes_in(API) if route.who is Who.USER and route.scope]
JOB_ROUTES = [route for route in USER_ROUTES if "{job_id}" in route.path]
TASK_ROUTES = [route for route in routes_in(API) if route.who is Who.TASK]
VERSION = {"Minicluster-Wire": "1"}


def name(route):
    return f"{route.method} {route.path}"


def path_of(route, job_id=1, **others):
    parts = {
        "sha256": "a" * 64,
        "step": 10,
        "digest": f"sha256:{'a' * 64}",
        "file": "a/b",
        "path": "service.js",
        "slash": "",
        "other": "no-such-page",
        "data_name": "set",
        "owner": "ada",
        "server": "-",
        "reservation_id": 1,
        "node": "node-1",
        "machine_name": "node-1",
        "number": 1,
        "cell_id": 1,
        "sweep_id": 1,
        "model_id": 1,
        "name": "digits",
        "rest": "predict",
    }
    return route.path.format(**{"job_id": job_id, **parts, **others})


def code_of(answer):
    return answer.json()["error"]["code"] if answer.content else None


@pytest.mark.parametrize("route", JOB_ROUTES, ids=name)
async def test_anothers_job_is_unknown(api, route):
    job = await api.submit(nodes=5)
    answer = await api.ask(route.method, path_of(route, job.id), "bob-token")
    nobody = await api.ask(route.method, path_of(route, 4711), "bob-token")
    assert (answer.status_code, code_of(answer)) == (404, "unknown_job")
    assert answer.text.replace(str(job.id), "N") == nobody.text.replace("4711", "N")
    assert api.context.store.job(job.id).state == "queued"


@pytest.mark.parametrize("route", USER_ROUTES, ids=name)
async def test_a_missing_scope_is_named(api, route):
    token = "reader-token" if route.scope is Scope.SUBMIT else "submitter-token"
    for lacking in (token, "bobs-scopes-token"):
        answer = await api.ask(route.method, path_of(route), lacking)
        assert answer.status_code == 403
        if route.method != "HEAD":
            assert code_of(answer) == "scope_missing"
            assert route.scope in answer.json()["error"]["message"]


@pytest.mark.parametrize("route", USER_ROUTES, ids=name)
async def test_nobody_and_services_stay_out(api, route):
    for token, status in ((None, 401), ("made-up", 401), ("service-token", 403)):
        answer = await api.ask(route.method, path_of(route), token)
        assert answer.status_code == status


async def test_a_tasks_token_opens_nothing_of_users(api):
    job, (agent,), _ = await api.running()
    token = agent.http.headers["Authorization"].removeprefix("task ")
    for route in USER_ROUTES:
        for header in (f"task {token}", f"token {token}", f"Bearer {token}"):
            client = api.client(Authorization=header)
            answer = await client.request(route.method, path_of(route, job.id))
            assert answer.status_code == 401, name(route)


@pytest.mark.parametrize("route", TASK_ROUTES, ids=name)
async def test_a_users_token_opens_nothing_of_tasks(api, route):
    await api.running()
    for header, status in (
        ("token ada-token", 401),
        ("task", 401),
        ("task ada-token", 410),
        ("task root-token", 410),
    ):
        client = api.client(**VERSION, Authorization=header)
        answer = await client.request(route.method, path_of(route))
        assert answer.status_code == status, header


async def test_the_hubs_word_is_cached_and_its_absence_is_told(api):
    await api.ask("GET", "api/jobs")
    asked = api.hub.asked
    await api.ask("GET", "api/nodes")
    assert api.hub.asked == asked
    api.hub.down = True
    assert (await api.ask("GET", "api/jobs")).status_code == 200
    answer = await api.ask("GET", "api/jobs", "bob-token")
    assert (answer.status_code, code_of(answer)) == (503, "hub_unreachable")
    api.hub.down = False
    assert (await api.ask("GET", "api/jobs", "bob-token")).status_code == 200


# --- browsers: a cookie and, for scripts, the XSRF token -------------------------------------------

SCRIPT = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Site": "same-origin"}
VISIT = {"Sec-Fetch-Mode": "navigate"}


async def log_in(api, user="ada", path="home"):
    """Log in as a browser does; return its client and the page's XSRF token."""
    browser = api.client()
    sent = await browser.get(path, headers=VISIT)
    assert sent.status_code == 302
    login = urlsplit(sent.headers["Location"])
    assert login.path == "/hub/api/oauth2/authorize"
    state = parse_qs(login.query)["state"][0]
    back = await browser.get(
        "oauth_callback", params={"code": f"code-of-{user}", "state": state}, headers=VISIT
    )
    assert back.status_code == 302, back.text
    page = await browser.get(httpx.URL(api.url).join(back.headers["Location"]), headers=VISIT)
    assert page.status_code == 200, page.text
    return browser, page.text.partition('data-xsrf="')[2].partition('"')[0]


async def test_a_browser_logs_in_and_lands_where_it_wanted(api):
    for forged in (False, True):
        browser = api.client()
        sent = await browser.get("cluster?x=1", headers=VISIT)
        state = parse_qs(urlsplit(sent.headers["Location"]).query)["state"][0]
        query = {"code": "code-of-ada", "state": "someone's" if forged else state}
        back = await browser.get("oauth_callback", params=query, headers=VISIT)
        assert back.status_code == (403 if forged else 302)
        assert forged or back.headers["Location"] == "/services/minicluster/cluster?x=1"


async def test_a_cookie_alone_does_not_let_scripts_in(api):
    job = await api.submit(nodes=5)
    browser, xsrf = await log_in(api)
    stop = f"api/jobs/{job.id}/stop"
    for method, path in (("POST", stop), ("GET", "api/jobs"), ("GET", "api/events")):
        for wrong in ({}, {"X-XSRFToken": "guessed"}):
            answer = await browser.request(method, path, headers={**SCRIPT, **wrong})
            assert (answer.status_code, code_of(answer)) == (403, "xsrf"), path
    # Another site's form does not send Sec-Fetch-Mode cors, but it is a POST.
    form = await browser.post(stop, headers={**VISIT, "Sec-Fetch-Site": "cross-site"})
    assert (form.status_code, code_of(form)) == (403, "xsrf")
    assert api.context.store.job(job.id).state == "queued"
    listed = await browser.get("api/jobs", headers={**SCRIPT, "X-XSRFToken": xsrf})
    assert listed.json()["jobs"][0]["id"] == job.id
    answer = await browser.post(stop, headers={**SCRIPT, "X-XSRFToken": xsrf})
    assert answer.json()["state"] == "stopped"


async def test_one_users_xsrf_token_is_not_anothers(api):
    _, adas = await log_in(api)
    browser, bobs = await log_in(api, "bob")
    assert (await browser.get("api/jobs", headers={**SCRIPT, "X-XSRFToken": bobs})).status_code == 200
    assert (await browser.get("api/jobs", headers={**SCRIPT, "X-XSRFToken": adas})).status_code == 403


async def test_a_token_in_the_header_needs_no_xsrf(api):
    job = await api.submit(nodes=5)
    client = api.client("ada-token", **SCRIPT)
    assert (await client.post(f"api/jobs/{job.id}/stop")).status_code == 200


async def test_a_token_in_the_url_counts_for_nothing(api):
    assert (await api.client().get("api/jobs", params={"token": "ada-token"})).status_code == 401
