"""Pages, health, metrics and the OpenAPI document."""

import posixpath
import re
from pathlib import Path

import pytest

import minicluster_hub
from minicluster.wire import JobSpec
from minicluster_hub.http_server import API
from minicluster_hub.web.route import routes_in

from ..machines import MemoryQueue
from .hub import MemoryEngine

VISIT = {"Sec-Fetch-Mode": "navigate"}
SCRIPT_IMPORTS = re.compile(r"""^(?:import|export) .*from ['"]([^'"]+)['"];?$""", re.MULTILINE)
STATIC = Path(minicluster_hub.__file__).parent / "pages" / "static"


async def visit(api, path, token="ada-token"):
    return await api.client(token, **VISIT).get(path)


async def test_the_jobs_page_is_the_hubs_page_with_ours_in_it(api):
    page = await visit(api, "jobs")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "No jobs yet: put <code>%%distribute" in page.text
    for link in (
        "/hub/home",
        "/hub/logout",
        "/hub/static/css/style.min.css",
        "/services/minicluster/cluster",
    ):
        assert f'"{link}"' in page.text
    assert 'id="everyone"' not in page.text
    assert 'id="everyone"' in (await visit(api, "jobs", "root-token")).text


@pytest.mark.parametrize("path", ["home", "jobs", "cluster", "images", "queue", "runs", "runs/{id}"])
async def test_scripts_of_a_page_are_only_those_it_came_with(api, path):
    job = await api.submit(nodes=5)
    page = await visit(api, path.format(id=job.id))
    policy = page.headers["Content-Security-Policy"]
    assert not re.findall(r"<script(?![^>]*src=)", page.text), "an inline script"
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    for script in re.findall(r'src="/services/minicluster/([^"]*)"', page.text):
        answer = await api.client().get(script)
        assert "javascript" in answer.headers["Content-Type"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_only_an_admins_page_of_images_has_buttons(api):
    assert 'data-admin=""' in (await visit(api, "images")).text
    assert 'data-admin="yes"' in (await visit(api, "images", "root-token")).text


async def test_only_an_admins_page_of_the_queue_chooses_and_compares_policies(api):
    own, admins = [(await visit(api, "queue", token)).text for token in ("ada-token", "root-token")]
    for part in ('id="choose"', 'id="ask-what-if"'):
        assert part not in own and part in admins
    assert 'id="usage"' in own


async def test_where_another_queue_orders_the_jobs_the_pages_say_so_and_offer_nothing(start_api):
    engine = MemoryEngine()
    engine.batch_queue = MemoryQueue()
    async with start_api(engine=engine) as api:
        page, cluster = [(await visit(api, path, "root-token")).text for path in ("queue", "cluster")]
    assert "Otherqueue orders the jobs" in page and "make them in Otherqueue" in cluster
    assert 'id="administration"' not in cluster
    for part in ('id="choose"', 'id="ask-what-if"', 'id="active-policy"'):
        assert part not in page
    assert 'id="limits"' in page and 'id="usage"' in page


async def test_a_users_name_cannot_become_a_script(api):
    name = "</script><script>alert('1')</script>\"'&"
    api.hub.models["evil-token"] = {
        **api.hub.models["ada-token"],
        "name": name,
        "scopes": ["custom:minicluster:read"],
    }
    page = await visit(api, "jobs", "evil-token")
    assert page.status_code == 200
    assert "alert('1')" not in page.text
    assert "<script>" not in page.text


async def test_an_unknown_job_has_a_page_that_says_so(api):
    job = await api.submit(nodes=5)
    for job_id in (job.id, 4711):
        for path in (f"runs/{job_id}", f"jobs/{job_id}"):
            page = await visit(api, path, "bob-token")
            assert page.status_code == 404
            assert f"there is no job {job_id} of yours" in page.text
            assert page.headers["Content-Type"] == "text/html; charset=utf-8"


async def test_the_former_address_of_a_job_leads_to_its_run(api):
    job = await api.submit(nodes=5)
    answer = await visit(api, f"jobs/{job.id}")
    assert answer.headers["Location"] == f"/services/minicluster/runs/{job.id}"


async def test_only_its_owner_can_change_what_is_written_about_a_run(api):
    job = await api.submit(nodes=5)
    own, admins = [(await visit(api, f"runs/{job.id}", token)).text for token in ("ada-token", "root-token")]
    assert 'id="edit-labels"' in own and 'id="edit-labels"' not in admins


async def test_scripts_of_npm_packages_find_each_other_by_path(api, needs):
    """Browsers know no names of packages: `import ... from 'hyparquet'` would fail."""
    needs((STATIC.parent / "npm" / "node_modules").is_dir(), "the pages' npm packages are not installed")
    waiting = ["hyparquet-writer/src/index.js", "uplot/dist/uPlot.esm.js", "diff/libesm/index.js"]
    seen = set()
    while waiting:
        path = waiting.pop()
        seen.add(path)
        answer = await api.client().get(f"static/npm/{path}")
        assert answer.status_code == 200, path
        assert answer.headers["Content-Length"] == str(len(answer.content))
        assert "javascript" in answer.headers["Content-Type"]
        for name in SCRIPT_IMPORTS.findall(answer.text):
            assert name.startswith("."), f"{path} imports {name}"
            found = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
            waiting += [found] if found not in seen | {*waiting} else []
    assert "hyparquet/src/constants.js" in seen
    assert (await api.client().get("static/npm/../package.json")).status_code in (403, 404)


async def test_a_path_without_a_page_has_one_that_says_so(api):
    page = await visit(api, "dat<a>", "bob-token")
    assert page.status_code == 404
    assert "no page /services/minicluster/dat" in page.text
    assert "<a>" not in page.text
    assert (await visit(api, "dat<a>", None)).headers["Location"].startswith("/hub/api/oauth2/authorize")
    for path, target in (("", "home"), ("jobs/", "jobs")):
        answer = await visit(api, path, "bob-token")
        assert answer.headers["Location"] == f"/services/minicluster/{target}"


async def test_pages_ask_for_a_login_and_a_scope(api):
    sent = await visit(api, "cluster", None)
    assert sent.headers["Location"].startswith("/hub/api/oauth2/authorize?client_id=service-minicluster")
    refused = await visit(api, "jobs", "bobs-scopes-token")
    assert refused.status_code == 403
    assert "custom:minicluster:read" in refused.text


async def test_the_prefix_without_its_slash_leads_to_the_page(api):
    answer = await api.client().get(api.url.rstrip("/"))
    assert answer.headers["Location"] == "/services/minicluster/"


def test_scripts_insert_text_only_as_text():
    for script in STATIC.rglob("*.js"):
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|srcdoc", script.read_text()
        )
        assert not found, f"{script.name}: {found}"


async def test_health_needs_nobody_and_tells_of_a_broken_store(api, monkeypatch):
    from minicluster_hub.store import StoreUnavailable

    answer = await api.client().get("health")
    assert answer.json() == {"ok": True, "wire_version": 1, "set_aside": 0}

    def broken(_self):
        raise StoreUnavailable("the file is gone")

    monkeypatch.setattr(type(api.context.store), "ping", broken)
    answer = await api.client().get("health")
    assert answer.status_code == 503
    assert "gone" not in answer.text


async def test_metrics_tell_of_jobs_slots_and_waits(api):
    job, (agent,), (run,) = await api.running()
    waiting = await api.submit(nodes=5)
    text = (await api.ask("GET", "metrics", "prometheus-token")).text
    assert 'minicluster_jobs{state="queued"} 1.0' in text
    assert 'minicluster_jobs{state="running"} 1.0' in text
    assert 'minicluster_slots{kind="cpu",use="busy"} 1.0' in text
    assert 'minicluster_slots{kind="cpu",use="free"} 2.0' in text
    assert "minicluster_job_queue_seconds_count 1.0" in text
    assert "minicluster_job_start_seconds_count 1.0" in text
    await agent.finish(run)
    await api.until(job.id, "succeeded")
    await api.ask("POST", f"api/jobs/{waiting.id}/stop")
    text = (await api.ask("GET", "metrics", "root-token")).text
    assert 'minicluster_slots{kind="cpu",use="warm"} 1.0' in text
    assert 'minicluster_jobs_ended_total{state="succeeded"} 1.0' in text
    assert 'minicluster_jobs_ended_total{state="stopped"} 1.0' in text
    assert 'minicluster_requests_total{method="POST",path="api/jobs/{job_id}/stop",status="200"} 1.0' in text


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("ada-token", 403), ("service-token", 403)])
async def test_metrics_are_not_for_everyone(api, token, status):
    assert (await api.ask("GET", "metrics", token)).status_code == status


async def test_the_openapi_document_has_every_route_and_no_loose_end(api):
    document = (await api.client().get("api/openapi.json")).json()
    listed = {(method.upper(), path[1:]) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(route.method, path) for route in routes_in(API) for path in route.paths}
    schemas = document["components"]["schemas"]
    refs = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert refs <= schemas.keys()
    assert schemas["JobSpec"]["properties"].keys() == JobSpec.model_fields.keys()
    submit = document["paths"]["/api/jobs"]["post"]
    assert submit["security"] == [{"hub": ["custom:minicluster:submit"]}]
    assert "201" in submit["responses"]
    assert document["paths"]["/api/tasks/report"]["post"]["security"] == [{"task": []}]
    assert document["paths"]["/api/jobs/{job_id}"]["get"]["parameters"][0]["name"] == "job_id"
