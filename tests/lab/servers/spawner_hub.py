"""A hub with the Swarm spawner, in a container on the first machine, used by REST."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from minicluster_hub.engines.node_tokens import NodeTokens

from ..machines import Lab, Node
from ..machines.images import HUB_IMAGE, NOTEBOOK_IMAGE

_TREE = Path(__file__).resolve().parents[3]
_PACKAGES = "/opt/minicluster/lib/python3.11/site-packages"
_ROOMS = {
    "minicluster": "kernels/minicluster",
    "minicluster_hub": "hub_ext/minicluster_hub",
    "minicluster_spawner": "spawner/minicluster_spawner",
}
_PORT = 18000
STANDING = "MINICLUSTER_LAB"
_ROLE = "--filter=label=org.minicluster.role"
_DATA_DIR = "/srv/minicluster"
WITHIN_S = 180
"""Long, since other parts of the suite run in parallel."""
NETWORK, NAME, DATA = "spawner-test", "spawner-test-hub", "spawner-test-data"


class SpawnerHub:
    """Its images are in the outside registry. mount_tree: mount this tree's packages over outdated images."""

    def __init__(self, lab: Lab, *, mount_tree: bool, internal_ssl: bool = False) -> None:
        self.lab = lab
        self.first = lab.nodes[0]
        self._image = f"{lab.registry.host}/{HUB_IMAGE}"
        self._mounts = {str(_TREE / room): f"{_PACKAGES}/{name}" for name, room in _ROOMS.items()}
        self._mounts = self._mounts if mount_tree else {}
        self._told = {
            "image": f"{lab.registry.host}/{NOTEBOOK_IMAGE}",
            "network": NETWORK,
            "internal_ssl": internal_ssl,
            "volumes": self._mounts,
            **{name: secrets.token_hex(20) for name in ("spawner_token", "service_token", "test_token")},
        }
        self._http = httpx.Client(
            base_url=f"http://{self.first.address}:{_PORT}",
            headers={"Authorization": f"token {self._told['test_token']}"},
            timeout=60,
            trust_env=False,
        )

    # --- the hub itself -------------------------------------------------------------------------

    def start(self) -> None:
        # A removed network's name remains in use for a moment.
        wait(self._make_network, WITHIN_S, "the network is made")
        config = Path(__file__).with_name("spawner_hub_config.py")
        volumes = {
            "/var/run/docker.sock": "/var/run/docker.sock",
            DATA: "/srv/minicluster",
            str(config): "/c.py",
        }
        arguments = ["run", "--detach", f"--name={NAME}", f"--network={NETWORK}", "--network-alias=hub"]
        arguments += [f"--volume={source}:{target}" for source, target in (volumes | self._mounts).items()]
        arguments += [
            f"--publish={_PORT}:8000",
            f"--env=SPAWNER_TEST={json.dumps(self._told)}",
            "--entrypoint=python",
        ]
        self.docker(*arguments, self._image, "-P", "-m", "jupyterhub", "-f", "/c.py")
        self.wait_up()

    def wait_up(self) -> None:
        wait(self._answers, WITHIN_S, "the hub answers")

    def kill(self) -> None:
        """Kill hub, proxy and job service at once."""
        self.docker("kill", NAME)

    def start_again(self) -> None:
        # The engine takes the network off a machine with the last container there: for a moment, "not found".
        wait(self._started, WITHIN_S, "the hub's container starts")
        self.wait_up()

    def _started(self) -> bool:
        return self.first.run(["docker", "start", NAME], check=False).returncode == 0

    def remove(self) -> None:
        """Remove the hub and everything that tests have left."""
        # Remove the hub first: it would create removed objects again.
        for arguments in (["rm", "--force", "--volumes", NAME], ["volume", "rm", "--force", DATA]):
            self.first.run(["docker", *arguments], check=False)
        left_over = ("server", "gpus", "keeper")
        for kind, role in [(kind, role) for kind in ("service", "secret") for role in left_over]:
            for left in self.docker(kind, "ls", f"{_ROLE}={role}", "--quiet").split():
                self.docker(kind, "rm", left)
        wait(self._without_network, WITHIN_S, "the network is gone")

    def _make_network(self) -> bool:
        arguments = ["docker", "network", "create", "--driver=overlay", "--attachable", NETWORK]
        return self.first.run(arguments, check=False).returncode == 0

    def _without_network(self) -> bool:
        """Remove the network if no server uses it any more; return whether it is gone."""
        self.first.run(["docker", "network", "rm", NETWORK], check=False)
        return NETWORK not in self.docker("network", "ls", "--format={{.Name}}").split()

    def close(self) -> None:
        self._http.close()

    def log(self) -> str:
        done = self.first.run(["docker", "logs", NAME], check=False)
        return done.stdout + done.stderr

    def _answers(self) -> bool:
        try:
            places = self._http.get("/services/minicluster/api/servers")
            return places.status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    # --- users and servers ----------------------------------------------------------------------

    def add_user(self, name: str) -> None:
        self._http.post(f"/hub/api/users/{name}").raise_for_status()

    def start_server(self, user: str, server: str = "", **options: Any) -> httpx.Response:
        """Request a server; the hub answers once it runs or is refused, or after 10 s."""
        path = f"/hub/api/users/{user}/servers/{server}" if server else f"/hub/api/users/{user}/server"
        return self._http.post(path, json={"user_options": options})

    def run_server(self, user: str, server: str = "", **options: Any) -> dict[str, Any]:
        """Start a server and wait until it is ready."""
        answer = self.start_server(user, server, **options)
        assert answer.status_code in (201, 202), answer.text
        wait(lambda: not self._is_pending(user, server), WITHIN_S, f"the start of {user}'s server is over")
        found = self.server(user, server)
        assert found and found["ready"], f"the server of {user} did not start"
        return found

    def _is_pending(self, user: str, server: str) -> bool:
        return (self.server(user, server) or {}).get("pending") is not None

    def refused(self, user: str, **options: Any) -> str:
        """Start a server that is refused or fails; return the message for the user."""
        answer = self.start_server(user, **options)
        if answer.status_code == httpx.codes.ACCEPTED:
            return self.progress(user)[-1]["message"]
        assert answer.status_code >= 400, answer.text
        return answer.json()["message"]

    def stop_server(self, user: str, server: str = "") -> None:
        path = f"/hub/api/users/{user}/servers/{server}" if server else f"/hub/api/users/{user}/server"
        assert self._http.delete(path).status_code in (202, 204)
        wait(lambda: self.server(user, server) is None, WITHIN_S, f"the server of {user} is stopped")

    def server(self, user: str, server: str = "") -> dict[str, Any] | None:
        answer = self._http.get(f"/hub/api/users/{user}")
        return answer.json().get("servers", {}).get(server)

    def progress(self, user: str) -> list[dict[str, Any]]:
        """Follow a start to its end."""
        with self._http.stream("GET", f"/hub/api/users/{user}/server/progress") as events:
            return [json.loads(line[5:]) for line in events.iter_lines() if line.startswith("data:")]

    def ask_server(self, user: str, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request to the notebook server itself, through the proxy."""
        return self._http.request(method, f"/user/{user}/{path}", **more)

    # --- for administrators only ----------------------------------------------------------------

    def docker(self, *words: str, node: Node | None = None) -> str:
        return (node or self.first).run(["docker", *words]).stdout.strip()

    def node_of(self, service: str) -> Node:
        name = self.docker("service", "ps", service, "--format={{.Node}}", "--filter=desired-state=running")
        return next(node for node in self.lab.nodes if node.name == name)

    def inside(self, service: str, *words: str) -> str:
        """Run a command in a server's container."""
        node = self.node_of(service)
        container = self.docker("ps", "--quiet", f"--filter=name={service}.1", node=node)
        return self.docker("exec", container, *words, node=node)

    def names(self, kind: str, role: str) -> list[str]:
        """Return the names of a role's services or secrets."""
        return self.docker(kind, "ls", f"{_ROLE}={role}", "--format={{.Name}}").split()

    def play_data_agent(self, node: str, gpus: Sequence[str], idle_s: float) -> None:
        """Report idle GPUs, as a node's data set agent does, since these machines have no GPU to measure."""
        path = f"{_DATA_DIR}/service/service/keeper_token"
        secret = self.first.run(["docker", "exec", NAME, "od", "-An", "-tx1", "-v", path]).stdout
        token = NodeTokens("".join(secret.split())).issue([node])
        readings = [{"gpu": gpu, "idle_s": idle_s, "held_bytes": 0} for gpu in gpus]
        self._http.post(
            "/services/minicluster/api/keepers/report",
            json={"nodes": [node], "gpus": readings},
            headers={"Authorization": f"keeper {token}"},
        ).raise_for_status()

    def places(self) -> list[dict[str, Any]]:
        return self._http.get("/services/minicluster/api/servers").json()["servers"]

    def remains(self) -> dict[str, Any]:
        """Return the objects of notebook servers, by kind; all are empty if no server runs."""
        return {
            "services": self.names("service", "server") + self.names("service", "gpus"),
            "secrets": self.names("secret", "server"),
            "places": [(place["owner"], place["server"]) for place in self.places()],
        }


@contextmanager
def running_hub(request: pytest.FixtureRequest, *, internal_ssl: bool = False) -> Iterator[SpawnerHub]:
    """Yield a hub on $MINICLUSTER_LAB (a standing Swarm with the images), or on the session's own Swarm."""
    standing = os.environ.get(STANDING)
    lab: Lab = Lab.attach(standing) if standing else request.getfixturevalue("swarm")
    hub = SpawnerHub(lab, mount_tree=bool(standing), internal_ssl=internal_ssl)
    hub.remove()
    try:
        hub.start()
        yield hub
    finally:
        print(hub.log())
        hub.remove()
        hub.close()


def wait(condition: Callable[[], Any], within_s: float, what: str) -> None:
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, f"waited {within_s:g} s in vain until {what}"
        time.sleep(0.1)
