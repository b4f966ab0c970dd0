"""Each user's server has its own domain: its pages cannot act on the hub or the job service.

With TLS, as `up --domain` makes it. All tests of this file drive chromium.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import httpx
import pytest
from playwright.sync_api import Browser, Page, Response, expect

from minicluster_hub.cluster.plan.certificates import make_ca_and_cert

from ...browser.chromium import MISSING, browser, program
from ...browser.conftest import USER
from ...browser.lab import JOBS_PATH, log_in
from ...hub.clusters import RunningCluster, free_port

DOMAIN = "hub.lab.test"
CONFIG = """from minicluster_hub.configure import configure
from minicluster_hub.configure import use_subdomains
c = get_config()
settings = configure(c)
c.JupyterHub.bind_url = f"https://127.0.0.1:{settings.port}"
c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = "FOLDER/cert", "FOLDER/key"
url = f"https://{settings.domain}:{settings.port}"
use_subdomains(c, url, f"http://127.0.0.1:{settings.ports.service}")
c.JupyterHub.services[0]["environment"]["JUPYTERHUB_COOKIE_HOST_PREFIX_ENABLED"] = "1"
"""
MALLORY = {"action": "add", "name": "mallory", "admin": "yes", "_xsrf": "1"}
HUB_PAGES = ("hub/home", "hub/people", "hub/admin", "hub/token", "hub/api/users")

READ = """(url) => fetch(url, { credentials: "include" }).then((answer) => answer.text(), () => "nothing")"""
BLIND = """([method, url, fields]) => fetch(url, {
    method, mode: "no-cors", credentials: "include", body: fields && new URLSearchParams(fields),
  }).then((answer) => answer.text(), () => "")"""
FRAME = """(url) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.onload = () => done(frame.contentDocument?.documentElement.outerHTML ?? "nothing");
  frame.src = url;
  document.body.append(frame);
})"""
FORM = """([url, fields]) => {
  const form = document.createElement("form");
  Object.assign(form, { method: "POST", action: url, target: "_blank" });
  for (const [name, value] of Object.entries(fields))
    form.append(Object.assign(document.createElement("input"), { name, value }));
  form.append(Object.assign(document.createElement("button"), { textContent: "Your prize" }));
  document.body.replaceChildren(form);
}"""
POPUP = """(url) => {
  const button = Object.assign(document.createElement("button"), { textContent: "Your prize" });
  button.onclick = () => { window.other = window.open(url); };
  document.body.replaceChildren(button);
}"""
REACH_IN = (
    """() => { try { return other.document.documentElement.outerHTML; } catch { return "nothing"; } }"""
)

if TYPE_CHECKING:
    from playwright._impl._api_structures import SetCookieParam

pytestmark = pytest.mark.full("a hub of its own")


@pytest.fixture(scope="module")
def chromium(needs) -> Iterator[Browser]:
    needs(program(), MISSING)
    with browser("--host-resolver-rules=MAP *.lab.test 127.0.0.1") as running:
        yield running


@pytest.fixture(scope="module")
def domains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    folder = tmp_path_factory.mktemp("domains")
    made = make_ca_and_cert([DOMAIN, f"*.{DOMAIN}"])
    (folder / "cert").write_text(made.cert_pem)
    (folder / "key").write_text(made.key_pem)
    (folder / "jupyterhub_config.py").write_text(CONFIG.replace("FOLDER", str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINICLUSTER_TREE", str(folder))
        cluster = RunningCluster(folder / "data", "--domain", DOMAIN, port=free_port())
    yield cluster
    cluster.end()
    cluster.kill()


@pytest.fixture(scope="module")
def hostile(chromium: Browser, domains: RunningCluster) -> Iterator[Page]:
    """A page of a user's server, in the browser of an administrator with all logins."""
    context = chromium.new_context(ignore_https_errors=True)
    page = context.new_page()
    log_in(page, hub_of(domains), USER, domains.password)
    assert "Add" in open_people(page, domains)
    page.goto(f"{service_of(domains)}{JOBS_PATH}jobs")
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    open_prize(page, domains)
    yield page
    context.close()


def hub_of(cluster: RunningCluster) -> str:
    return f"https://{DOMAIN}:{cluster.port}"


def service_of(cluster: RunningCluster) -> str:
    return f"https://minicluster--service.{DOMAIN}:{cluster.port}"


def open_prize(page: Page, cluster: RunningCluster) -> None:
    """Serve a page from a user's server, and open it."""
    folder = cluster.data / "homes" / USER / ".local" / "share" / "jupyter" / "labextensions" / "prize"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prize.html").write_text("<!DOCTYPE html><title>Prize</title><body>You won.</body>")
    server = f"https://{USER}.{DOMAIN}:{cluster.port}/user/{USER}"
    answer = page.goto(f"{server}/lab/extensions/prize/prize.html")
    assert answer is not None and answer.ok
    expect(page.get_by_text("You won.")).to_be_visible()


def open_people(page: Page, cluster: RunningCluster) -> str:
    """Open the page on which administrators add people; return its text."""
    answer = page.goto(f"{hub_of(cluster)}/hub/people")
    assert answer is not None and answer.ok
    return page.locator("body").inner_text()


def click_prize(page: Page) -> Page:
    with page.context.expect_page() as opened:
        page.get_by_role("button", name="Your prize").click()
    opened.value.wait_for_load_state()
    return opened.value


def test_it_reads_nothing(hostile: Page, domains: RunningCluster) -> None:
    pages = [f"{service_of(domains)}{JOBS_PATH}{path}" for path in ("", "api/jobs")]
    for url in (*pages, *(f"{hub_of(domains)}/{path}" for path in HUB_PAGES)):
        assert hostile.evaluate(READ, url) == "nothing"
        assert hostile.evaluate(FRAME, url) == "nothing"
        assert not hostile.evaluate(BLIND, ["GET", url])


def test_what_it_sends_blindly_is_refused(hostile: Page, domains: RunningCluster) -> None:
    answers: list[Response] = []
    hostile.on("response", lambda answer: answers.append(answer))
    for method, path in (("GET", "api/jobs"), ("POST", "api/jobs"), ("POST", "api/jobs/1/stop")):
        url = f"{service_of(domains)}{JOBS_PATH}{path}"
        # The browser does not give the service's answer to a page of another origin.
        with hostile.expect_event("requestfailed", lambda request, url=url: request.url == url):
            assert not hostile.evaluate(BLIND, [method, url])
    for path in ("hub/people", "hub/password", "hub/api/users/mallory", "hub/api/users", "hub/api/shutdown"):
        url = f"{hub_of(domains)}/{path}"
        with hostile.expect_response(url):
            assert not hostile.evaluate(BLIND, ["POST", url, MALLORY])
    assert {answer.status for answer in answers} == {403}
    other = hostile.context.new_page()
    assert "mallory" not in open_people(other, domains)
    other.goto(f"{service_of(domains)}{JOBS_PATH}jobs")
    expect(other.locator("#empty")).to_be_visible()
    other.close()


def test_a_form_that_an_administrator_sends_from_it_adds_nobody(
    hostile: Page, domains: RunningCluster
) -> None:
    hostile.evaluate(FORM, [f"{hub_of(domains)}/hub/people", MALLORY])
    sent = click_prize(hostile)
    assert "mallory" not in open_people(sent, domains)
    sent.close()


def test_it_cannot_reach_into_a_page_of_administrators_that_it_opened(
    hostile: Page, domains: RunningCluster
) -> None:
    for path in ("people", "admin"):
        hostile.evaluate(POPUP, f"{hub_of(domains)}/hub/{path}")
        opened = click_prize(hostile)
        expect(opened.get_by_role("link", name="People")).to_be_visible()
        assert hostile.evaluate(REACH_IN) == "nothing"
        opened.close()


def test_it_cannot_put_its_own_login_in_an_administrators_place(
    hostile: Page, domains: RunningCluster
) -> None:
    """A subdomain can set cookies for its parent domain; those with a longer path are sent first."""
    before = hostile.context.cookies()
    names = {one["name"].removeprefix("__Host-") for one in before}
    assert {"jupyterhub-hub-login", "service-minicluster", f"jupyterhub-user-{USER}"} <= names
    for name in names:
        for path in ("/", "/hub/", "/hub/people", JOBS_PATH):
            for prefix in ("", "__Host-"):
                cookie = f"{prefix}{name}=mallory; domain={DOMAIN}; path={path}; secure"
                hostile.evaluate("(cookie) => { document.cookie = cookie; }", cookie)
    other = hostile.context.new_page()
    assert "Add" in open_people(other, domains)
    other.goto(f"{service_of(domains)}{JOBS_PATH}jobs")
    expect(other.get_by_role("heading", name="Jobs")).to_be_visible()
    other.close()
    hostile.context.clear_cookies()
    hostile.context.add_cookies([cast("SetCookieParam", one) for one in before])


def test_no_cookie_goes_to_other_names(hostile: Page) -> None:
    """Subdomains of the hub get only the session id cookie, which gives no access."""
    shared = {one["name"] for one in hostile.context.cookies() if one["domain"].startswith(".")}
    assert shared <= {"jupyterhub-session-id"}


def test_by_the_hubs_name_the_service_knows_tokens_and_leads_people_home(
    hostile: Page, domains: RunningCluster
) -> None:
    local, named = f"https://127.0.0.1:{domains.port}{JOBS_PATH}health", {"Host": f"{DOMAIN}:{domains.port}"}
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
    answer = httpx.get(local, headers=named, trust_env=False, verify=trust)
    assert "wire_version" in answer.json()
    page = hostile.context.new_page()
    page.goto(f"{hub_of(domains)}{JOBS_PATH}cluster")
    expect(page.get_by_role("heading", name="Nodes", exact=True)).to_be_visible()
    assert page.url == f"{service_of(domains)}{JOBS_PATH}cluster"
    page.close()
