"""The job service's ports, accessed by a stranger on the machines' network and by the cluster's machines."""

from __future__ import annotations

import socket
import ssl

import httpx
import pytest

from minicluster.runtime.settings import service_trust

from ..behind import containers
from ..cluster import LabCluster
from ..machines import LabError
from ..machines.processes import wait_for

PREFIX = "/services/minicluster/"
WITHIN_S = 300
AGENTS, FORMER, USERS = 8083, 8082, 8082
TOKEN = "/run/secrets/keeper_token"
REACHES = "import socket,sys; sys.exit(socket.socket().connect_ex((sys.argv[1], int(sys.argv[2]))))"


def ask(cluster: LabCluster, path: str, **headers: str) -> httpx.Response:
    """Send a request to the first machine's agents' port; check the certificate as agents do."""
    url = f"https://{cluster.first.address}:{AGENTS}{PREFIX}{path}"
    context = service_trust(environment(cluster, "keeper"))
    assert context is not None
    return httpx.get(url, headers=headers, verify=context, trust_env=False, timeout=20)


def environment(cluster: LabCluster, role: str) -> dict[str, str]:
    return next(one.environment for one in containers(cluster.lab) if one.role == role)


def tokens(cluster: LabCluster) -> dict[str, str]:
    """Return the token of each machine's data set agent."""
    agents = (one for one in containers(cluster.lab) if one.role == "keeper")
    nodes = {node.name: node for node in cluster.lab.nodes}
    return {
        one.node: cluster.docker("exec", one.id, "head", "-n1", TOKEN, node=nodes[one.node])[0]
        for one in agents
    }


def test_a_stranger_finds_nothing_of_users(cluster: LabCluster) -> None:
    token = {"Authorization": "token x"}
    assert ask(cluster, "health").status_code == 200
    for path in ("", "api/jobs", "metrics", "api/openapi.json", "oauth_callback", "static/service.js"):
        assert ask(cluster, path, **token).status_code == 404
    assert ask(cluster, "api/tasks/orders", **{"Minicluster-Wire": "1"}).status_code == 401


def test_nothing_of_the_job_service_is_plain_http(cluster: LabCluster) -> None:
    """Not even at its container's addresses on its own machine."""
    for port in (AGENTS, FORMER):
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://{cluster.first.address}:{port}{PREFIX}health", timeout=20)
    (service,) = [one for one in containers(cluster.lab) if one.role == "service"]
    addresses = cluster.docker("exec", service.id, "hostname", "-I")[0].split()
    assert len(addresses) > 1, "one of the platform's network, one of its machine's"
    for address in addresses:
        with pytest.raises(LabError):
            cluster.first.run(["python3", "-c", REACHES, address, str(USERS)])


def test_only_the_clusters_own_authority_vouches_for_it(cluster: LabCluster) -> None:
    with (
        socket.create_connection((cluster.first.address, AGENTS), 20) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        ssl.create_default_context().wrap_socket(plain, server_hostname=cluster.first.address)


def test_each_machine_speaks_for_itself(cluster: LabCluster) -> None:
    wait_for(lambda: len(tokens(cluster)) == 3, "a data set agent on each machine", WITHIN_S, 1)
    found = tokens(cluster)
    names = {node.name for node in cluster.lab.nodes}
    assert len(set(found.values())) == len(names)
    for node, token in found.items():
        as_node = {"Authorization": f"keeper {token}"}
        assert ask(cluster, f"api/keepers/orders?node={node}", **as_node).status_code == 200
        for other in names - {node}:
            assert ask(cluster, f"api/keepers/orders?node={other}", **as_node).status_code == 403
            forged = {"Authorization": f"keeper {token.replace(node, other)}"}
            assert ask(cluster, f"api/keepers/orders?node={other}", **forged).status_code == 401
        assert ask(cluster, f"api/keepers/pieces/{'a' * 64}", **as_node).status_code == 403


def secrets_of(cluster: LabCluster, service: str) -> set[str]:
    """Return the ids of a service's secrets; none if the service is gone by now."""
    form = "{{range .Spec.TaskTemplate.ContainerSpec.Secrets}}{{.SecretID}} {{end}}"
    arguments = ["docker", "service", "inspect", service, "--format", form]
    return set(cluster.first.run(arguments, check=False).stdout.split())


def test_the_secret_that_makes_tokens_is_the_job_services_alone(cluster: LabCluster) -> None:
    """The key of its certificate, too, is in no other container."""
    listed = cluster.docker("secret", "ls", "--format", "{{.ID}} {{.Name}}")
    kept = {name: secret_id for secret_id, name in (line.split() for line in listed)}
    wanted = {
        secret_id
        for name, secret_id in kept.items()
        if name.startswith(("minicluster_keeper_token", "minicluster_service_key"))
    }
    assert len(wanted) == 2
    holders = {name for name in cluster.services() if wanted & secrets_of(cluster, name)}
    assert holders == {"minicluster_service"}
