"""A cluster made by `up` on the lab's machines, accessed as administrators and users do."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from minicluster_hub.engines.swarm.names import label_filter
from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.kernel import KernelConnection, open_kernel
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.login.accounts_file import FIRST_USER

from .. import messages
from .machines import Lab, Node

SOCKET = "/var/run/docker.sock"
UP_WITHIN_S = 300
LABEL = "org.minicluster.cluster=minicluster"


@dataclass(frozen=True)
class Images:
    """The names of the images in the outside registry."""

    hub: str
    notebook: str
    registry: str


class LabCluster:
    """A cluster, controlled by commands on its first machine, as an administrator does."""

    def __init__(self, lab: Lab, images: Images) -> None:
        self.lab = lab
        self.images = images
        self.first = lab.nodes[0]
        self.said = ""
        self.token = ""
        """The first administrator's token, after the first log-in."""
        self._options: tuple[str, ...] | None = None

    def command(self, *words: str, check: bool = True, within_s: float = UP_WITHIN_S) -> str:
        """Run `docker run ... IMAGE words` on the first machine; return what it printed."""
        done = self.first.run(self.docker_run(*words), check=check, within_s=within_s)
        return done.stdout + done.stderr

    def doctor(self) -> list[dict[str, str]]:
        """Return what `doctor` finds: dicts with check, level, node, what, remedy."""
        output = self.command("doctor", "--json", check=False)
        return json.loads(output[output.index("[") :])

    def docker_run(self, *words: str, name: str = "", volumes: tuple[str, ...] = ()) -> list[str]:
        """Return the documented command. volumes: mounts in addition to the engine's socket."""
        named = ["--name", name] if name else []
        mounted = [f"--volume={volume}" for volume in (f"{SOCKET}:{SOCKET}", *volumes)]
        return ["docker", "run", "--rm", *named, *mounted, self.images.hub, *words]

    @property
    def up_words(self) -> list[str]:
        """Return `up` with the options of a site that reaches no registry but the lab's."""
        return [
            "up",
            f"--notebook-image={self.images.notebook}",
            f"--registry-image={self.images.registry}",
            f"--upstream=http://{self.lab.registry.host}",
            f"--advertise-addr={self.first.address}",
            "--service-option=--SwarmEngine.verify_gpus=False",
            "--data-cache=0",
            # All nodes share this machine's disk.
            "--disk-reserve=200m",
        ]

    def up(self, *options: str) -> str:
        """Create or complete the cluster; return the command's output."""
        self._options = None
        output = self.command(*self.up_words, *options)
        self._options = options
        self.said = self.said or output
        return output

    def set_options(self, *options: str) -> None:
        """Run `up` with these options, unless its last run had the same ones."""
        if options != self._options:
            self.up(*options)

    def forget_options(self) -> None:
        """Make the next `set_options` run `up` in any case, after a change of options by other means."""
        self._options = None

    def join(self) -> None:
        """Run the join command that `up` printed on the other machines."""
        for node in self.lab.nodes[1:]:
            self.lab.join(node, self.join_command)

    @property
    def join_command(self) -> str:
        return _found(r"(docker swarm join \S.*)", self.said)

    @property
    def url(self) -> str:
        return _found(rf"{messages.READY}(\S+)", self.said)

    @cached_property
    def password(self) -> str:
        return _found(r"password  (\S+)   \(shown only now\)", self.said)

    def add_user(self, name: str) -> str:
        """Create a user; return the password."""
        return _found(r"password\s+(\S+)", self.command("adduser", name))

    @asynccontextmanager
    async def person(self, name: str = FIRST_USER, password: str = "") -> AsyncIterator[Person]:
        """Yield a user who has logged in by the form."""
        async with Visitor(self.url, name, verify=False) as visitor:
            await visitor.log_in(password or self.password)
            yield Person(visitor)

    # --- for administrators only ----------------------------------------------------------------

    def docker(self, *words: str, node: Node | None = None) -> list[str]:
        """Run a docker command on a machine (the first one); return its lines."""
        return (node or self.first).run(["docker", *words]).stdout.split("\n")[:-1]

    def services(self, role: str | None = None) -> list[str]:
        """Return the names of the Swarm's services."""
        wanted = LABEL if role is None else f"org.minicluster.role={role}"
        return sorted(self.docker("service", "ls", "--filter", f"label={wanted}", "--format", "{{.Name}}"))

    def remains(self) -> list[str]:
        """Return the Swarm's services, networks and secrets of tasks."""
        with self.manager.docker() as client:
            found = {
                "service": client.services(filters=label_filter("task")),
                "secret": client.secrets(filters=label_filter("task")),
                "network": client.networks(filters=label_filter("gang")),
            }
        return [f"{kind} {one.get('ID') or one['Id']}" for kind, those in found.items() for one in those]

    @property
    def manager(self) -> Node:
        """Return a machine that is on and is a Swarm manager."""
        return self.first


@dataclass(frozen=True)
class Person:
    """A user with a session at the hub."""

    visitor: Visitor

    async def start_server(self, **choices: Any) -> None:
        """Start a server with these choices on the spawn page; wait until JupyterLab answers."""
        name = self.visitor.name
        await self.visitor.http.get("/hub/home")
        # Without this key, the hub would reuse the last choices.
        request = {"user_options": choices}
        await self.visitor.call("POST", f"/hub/api/users/{name}/server", "/hub/", json=request)
        await self.visitor.wait_server()
        await self.visitor.http.get(SERVICE_PATH)

    async def stop_server(self) -> None:
        """Stop the server; wait until it has stopped, since the hub may answer earlier."""
        user = f"/hub/api/users/{self.visitor.name}"
        await self.visitor.call("DELETE", f"{user}/server", "/hub/")
        async with asyncio.timeout(UP_WITHIN_S):
            while (status := await self.visitor.call("GET", user, "/hub/"))["server"] or status["pending"]:
                await asyncio.sleep(0.2)

    @asynccontextmanager
    async def kernel(self, notebook: str = "quickstart.ipynb") -> AsyncIterator[KernelConnection]:
        async with open_kernel(self.visitor, notebook) as kernel:
            yield kernel

    async def ask(self, path: str) -> Any:
        """Send a GET request to the job service."""
        return await self.visitor.call("GET", f"{SERVICE_PATH}{path}", SERVICE_PATH)


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, f"nothing like {pattern} in:\n{text}"
    return found.group(1)
