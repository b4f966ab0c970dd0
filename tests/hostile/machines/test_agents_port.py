"""The agents' port: TLS by the cluster's authority, no users' API, and tokens valid for one node."""

import asyncio
import hashlib
import logging
import socket
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from tornado.netutil import bind_sockets

from minicluster.runtime.agent.client import AgentClient, ServiceUnavailable
from minicluster.runtime.settings import CA_ENV, service_trust
from minicluster.wire import DataManifest, TaskReport
from minicluster_hub.cluster.plan import secrets
from minicluster_hub.control.leader_election import LeaderElection
from minicluster_hub.former_agents import FormerAgents
from minicluster_hub.http_server import API, PAGES, make_servers
from minicluster_hub.support.tls import ServiceTls
from minicluster_hub.web.route import Who, routes_in

from ...patience import WITHIN_S, eventually
from ...service.api.client import PREFIX
from ...service.api.people.test_access import name, path_of
from ...service.two_services import free_port

SECRET = b"a test's secret of 32 bytes ...."
VERSION = {"Minicluster-Wire": "1"}
OF_AGENTS = (Who.TASK, Who.DATA_AGENT, Who.MACHINE)
USERS_ROUTES = [route for route in (*routes_in(API), *routes_in(PAGES)) if route.who not in OF_AGENTS]
AGENTS_ROUTES = [route for route in routes_in(API) if route.who in OF_AGENTS]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The job service's certificate as `up` makes it, as files."""
    folder = tmp_path_factory.mktemp("tls")
    for item, text in secrets.service_certificate().make().items():
        (folder / item).write_text(text)
    return folder


@dataclass
class Ports:
    """Both ports of a service. users, agents: their URLs."""

    users: str
    agents: str
    ca_pem: str
    tls: ServiceTls

    @property
    def trust(self):
        return service_trust({CA_ENV: self.ca_pem})

    def agent(self, verify=None, cert=None, **headers):
        return httpx.AsyncClient(
            base_url=self.agents, headers=headers, verify=verify or self.trust, timeout=60
        )


@asynccontextmanager
async def serving(api, files, leader_election):
    """Listen as a service in a Swarm does, with the state of the test's service."""
    tls = ServiceTls(*(str(files / f"service_{what}") for what in ("cert", "key", "ca")))
    servers = make_servers(api.context, SECRET, leader_election, tls)
    users, agents = bind_sockets(0, "127.0.0.1"), bind_sockets(0, "127.0.0.1")
    servers.listen(users, agents)
    urls = (
        f"{way}://127.0.0.1:{of[0].getsockname()[1]}{PREFIX}"
        for way, of in (("http", users), ("https", agents))
    )
    try:
        yield Ports(*urls, (files / "service_ca").read_text(), tls)
    finally:
        servers.stop()
        await servers.close()


@pytest.fixture
async def leader_election():
    alone = LeaderElection(None, logging.getLogger("minicluster-test"))
    await alone.take()
    alone.begin()
    return alone


@pytest.fixture
async def ports(api, files, leader_election):
    async with serving(api, files, leader_election) as made:
        yield made


def code(answer):
    return answer.status_code, answer.json()["error"]["code"] if answer.content else ""


# --- its API --------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", USERS_ROUTES, ids=name)
async def test_nothing_of_users_is_there(ports, route):
    tokens = ("ada-token", "root-token", "spawner-token", "prometheus-token")
    async with ports.agent() as client:
        for token in tokens:
            answer = await client.request(
                route.method,
                path_of(route),
                headers={"Authorization": f"token {token}"},
            )
            assert answer.status_code == (200 if route.path == "health" else 404), answer.text


async def test_nor_the_login_nor_static_files(ports):
    async with ports.agent() as client:
        for path in ("oauth_callback", "static/service.js", "jobs", "", "../../hub/api"):
            assert (await client.get(path)).status_code == 404


@pytest.mark.parametrize("route", AGENTS_ROUTES, ids=name)
async def test_nothing_of_agents_is_where_users_come_in(api, ports, route):
    _, (agent,), _ = await api.running()
    token = agent.http.headers["Authorization"]
    async with httpx.AsyncClient(base_url=ports.users, timeout=WITHIN_S) as client:
        answer = await client.request(
            route.method, path_of(route), headers={"Authorization": token, **VERSION}
        )
    assert answer.status_code == 404


# --- TLS ------------------------------------------------------------------------------------------


async def test_plain_http_is_refused(ports):
    async with httpx.AsyncClient(base_url=ports.agents.replace("https", "http"), timeout=WITHIN_S) as client:
        with pytest.raises(httpx.TransportError):
            await client.get("health")


async def test_old_versions_of_tls_are_refused(ports):
    old = service_trust({CA_ENV: ports.ca_pem})
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
    async with ports.agent(old) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get("health")


async def test_an_agent_speaks_to_the_real_service_alone(api, ports, files):
    _, (agent,), (run,) = await api.running()
    token = agent.http.headers["Authorization"].split()[1]
    link = AgentClient([ports.agents], token, trust=ports.trust)
    assert (await link.report(TaskReport(ready=True, attempt=run.attempt))).sizes["rank-0"] == 0
    await link.close()
    others = secrets.service_certificate().make()["service_ca"]
    link = AgentClient([ports.agents], token, trust=service_trust({CA_ENV: others}))
    with pytest.raises(ServiceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        await link.orders("")
    await link.close()


# --- spoofing -------------------------------------------------------------------------------------

SPOOFED = {
    "X-Forwarded-For": "10.9.8.7",
    "X-Real-Ip": "10.9.8.7",
    "X-Forwarded-Host": "hub.example.org",
    "X-Forwarded-Proto": "http",
    "X-Scheme": "http",
    "Host": "hub.example.org",
    "Minicluster-Passed-On": "1",
    "Cookie": "service-minicluster=ada; _xsrf=x",
}


async def test_headers_of_a_proxy_change_nothing(ports, caplog):
    with caplog.at_level(logging.INFO, "minicluster-test"):
        async with ports.agent(**SPOOFED) as client:
            answer = await client.get("api/jobs", headers={"Authorization": "token ada-token"})
            orders = await client.get("api/tasks/orders", headers=VERSION)
    assert (code(answer), code(orders)) == ((404, "unknown_path"), (401, "not_authenticated"))
    records = [record.getMessage() for record in caplog.records if " from " in record.getMessage()]
    assert len(records) == 2 and all(line.endswith("from 127.0.0.1") for line in records), records


# --- between job services -------------------------------------------------------------------------


class StandsBy:
    """A fake leadership that says that another service leads, since no other service runs here."""

    leads = False

    def __init__(self, leader_url):
        self.leader_url = leader_url
        self.moved = asyncio.Event()


async def test_a_service_that_stands_by_passes_users_on_with_its_certificate(api, ports, files, caplog):
    job = await api.submit(nodes=5)
    caplog.set_level(logging.INFO, "minicluster-test")
    stop, proxied = f"api/jobs/{job.id}/stop", {"X-Forwarded-For": "10.9.8.7"}
    async with (
        serving(api, files, StandsBy(ports.agents)) as other,
        httpx.AsyncClient(base_url=other.users, headers=proxied, timeout=WITHIN_S) as client,
    ):
        stopped = await client.post(stop, headers={"Authorization": "token ada-token"})
        refused = await client.post(stop)
    assert (stopped.status_code, refused.status_code) == (200, 401)
    # The leader's log has the address of the original client, as seen by the hub's proxy.
    assert any(record.getMessage().endswith("from 10.9.8.7") for record in caplog.records)


async def test_only_a_job_service_may_pass_on(ports, tmp_path):
    """A certificate of another authority gives no access, and ends the connection."""
    for item, text in secrets.service_certificate().make().items():
        (tmp_path / item).write_text(text)
    forged = ports.trust
    forged.load_cert_chain(tmp_path / "service_cert", tmp_path / "service_key")
    async with ports.agent(forged, **SPOOFED) as client:
        with pytest.raises(httpx.TransportError):
            await client.get("api/jobs", headers={"Authorization": "token ada-token"})


# --- nodes ----------------------------------------------------------------------------------------


def node_client(api, ports, *nodes):
    token = api.context.status_cache.data_set_tracker.tokens.issue(nodes)
    return ports.agent(Authorization=f"keeper {token}")


async def test_a_token_of_one_node_does_not_speak_for_another(api, ports):
    use = {"nodes": ["node-2"], "sets": []}
    async with node_client(api, ports, "node-1") as client:
        own = await client.post("api/keepers/report", json={**use, "nodes": ["node-1"]})
        report = await client.post("api/keepers/report", json=use)
        both = await client.post("api/keepers/report", json={**use, "nodes": ["node-1", "node-2"]})
        orders = await client.get("api/keepers/orders", params={"node": "node-2"})
    assert own.status_code == 204
    assert code(report) == code(both) == code(orders) == (403, "not_your_node")


async def test_a_node_that_left_has_no_say(api, ports):
    async with node_client(api, ports, "stolen-pc") as client:
        assert code(await client.get("api/keepers/orders")) == (403, "not_your_node")


async def reported_addresses(client):
    return set((await client.get("api/nodes/addresses")).json()["addresses"])


async def test_a_nodes_addresses_are_those_that_it_told_itself(api, ports):
    """Nodes block users' containers from all these addresses, by rules made of addresses only."""
    use = {"nodes": ["node-1"], "sets": [], "addresses": ["10.0.0.1", "10.66.0.1", "FD00:0::1"]}
    async with node_client(api, ports, "node-1") as client:
        assert (await client.post("api/keepers/report", json=use)).status_code == 204
        assert {"10.66.0.1", "fd00::1"} <= await reported_addresses(client)
        for text in ("fe80::1%eth0", "fd00::2%x\n-A INPUT -j ACCEPT", "0.0.0.0/0", "pc-1", "10.66.0.2 "):
            refused = await client.post("api/keepers/report", json={**use, "addresses": [text]})
            assert refused.status_code == 422, text
        many = {**use, "addresses": [f"10.67.{one >> 8}.{one & 255}" for one in range(2000)]}
        assert (await client.post("api/keepers/report", json=many)).status_code == 204
        assert len([one for one in await reported_addresses(client) if one.startswith("10.67")]) == 256
    async with node_client(api, ports, "node-2") as client:
        assert code(await client.post("api/keepers/report", json=use)) == (403, "not_your_node")


async def test_a_changed_or_former_token_opens_nothing(api, ports):
    tokens = api.context.status_cache.data_set_tracker.tokens
    _, (agent,), _ = await api.running()
    genuine = tokens.issue(["node-1"])
    tried = [
        "keeper " + genuine.replace("node-1", "node-2"),
        "keeper " + api.context.status_cache.data_set_tracker._secret,
        "task " + genuine,
        "token " + genuine,
        agent.http.headers["Authorization"].replace("task", "keeper"),
    ]
    for header in tried:
        async with ports.agent(Authorization=header) as client:
            assert code(await client.get("api/keepers/orders")) == (401, "not_authenticated")


async def pushed(api, data_name, content):
    """Push a data set of one file as Ada; return the hashes of its piece and its manifest."""
    sha256 = hashlib.sha256(content).hexdigest()
    piece = {"sha256": sha256, "size_bytes": len(content)}
    manifest = DataManifest.model_validate({"files": [("a", len(content))], "pieces": [piece]})
    text = manifest.model_dump_json().encode()
    its_own = hashlib.sha256(text).hexdigest()
    for name_of, data in ((sha256, content), (its_own, text)):
        assert (await api.ask("PUT", f"api/data/pieces/{name_of}", content=data)).status_code == 200
    made = await api.ask("PUT", f"api/data/sets/{data_name}", json={"manifest_sha256": its_own})
    assert made.status_code == 200, made.text
    return sha256, its_own


async def test_a_node_reads_what_it_is_to_have_and_nothing_else(api, ports):
    wanted, others = await pushed(api, "pets", b"the pets"), await pushed(api, "secret", b"not for this node")
    job = await api.submit(nodes=1, data=[{"name": "pets"}])
    (agent,) = await api.agents(job.id)
    (its_node,) = {task.node for task in api.context.store.open_state().tasks if task.id == agent.task_id}
    other_node = next(name for name in ("node-1", "node-2") if name != its_node)
    async with node_client(api, ports, its_node) as client:
        for sha256 in wanted:
            assert (await client.get(f"api/keepers/pieces/{sha256}")).status_code == 200
        for sha256 in (*others, "f" * 64):
            assert code(await client.get(f"api/keepers/pieces/{sha256}")) == (403, "not_your_piece")
    async with node_client(api, ports, other_node) as client:
        for sha256 in wanted:
            assert code(await client.get(f"api/keepers/pieces/{sha256}")) == (403, "not_your_piece")


# --- agents of the former release -----------------------------------------------------------------


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_plain_http_is_answered_while_a_task_of_the_former_release_lives(
    api, ports, files, leader_election, tmp_path
):
    job, (agent,), (run,) = await api.running()
    port, log, status_cache = free_port(), logging.getLogger("minicluster-test"), api.context.status_cache
    server = make_servers(api.context, SECRET, leader_election, ports.tls).former
    former = FormerAgents(tmp_path / "newest", f"http://127.0.0.1:{port}", log)
    answering = asyncio.create_task(former.run(server, status_cache))
    await eventually(lambda: listens(port))
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}{PREFIX}", timeout=WITHIN_S) as client:
        token = {"Authorization": agent.http.headers["Authorization"], **VERSION}
        orders = (await client.get("api/tasks/orders", headers=token)).json()
        assert orders["run"]["attempt"] == run.attempt
        refused = await client.get("api/jobs", headers={"Authorization": "token ada-token"})
        assert code(refused) == (404, "unknown_path")
        await agent.finish(run)
        await api.until(job.id, "succeeded")
        newer = await api.submit("bob", nodes=1, payload=b"of this release")
        await api.agents(newer.id)
        for task in api.context.store.open_state().tasks:
            if task.id == agent.task_id:
                await api.engine.end(task.id)
        await asyncio.wait_for(answering, WITHIN_S)
    assert not listens(port)
    # At the next start, no task is older than this release.
    await FormerAgents(tmp_path / "newest", f"http://127.0.0.1:{port}", log).run(server, status_cache)
    assert not listens(port)


async def test_without_such_a_task_plain_http_is_never_answered(api, ports, leader_election, tmp_path):
    port, log = free_port(), logging.getLogger("minicluster-test")
    server = make_servers(api.context, SECRET, leader_election, ports.tls).former
    former = FormerAgents(tmp_path / "newest", f"http://127.0.0.1:{port}", log)
    await former.run(server, api.context.status_cache)
    await api.running()
    await former.run(server, api.context.status_cache)
    assert not listens(port)
