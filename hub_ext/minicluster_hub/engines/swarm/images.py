"""The images that tasks run in, as a Swarm knows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from minicluster_hub.engines.base import ImageUnknown
from minicluster_hub.engines.capabilities import TaskImages
from minicluster_hub.engines.swarm.docker import Docker, DockerError
from minicluster_hub.engines.swarm.reflector import Reflector


class SwarmImages(TaskImages):
    """own: the references that the options offer, the default one first."""

    def __init__(self, docker: Docker, view: Reflector, own: tuple[str, ...]) -> None:
        self._docker = docker
        self._view = view
        self._own = own

    def own(self) -> tuple[str, ...]:
        return self._own

    def on_nodes(self) -> Mapping[str, Collection[str]]:
        names = {node.id: node.name for node in self._view.nodes}
        found: dict[str, set[str]] = {}
        for image, node_id in self._view.images:
            if node_id in names:
                found.setdefault(image, set()).add(names[node_id])
        return found

    async def digest(self, reference: str) -> str:
        try:
            found = await self._docker.call("inspect_distribution", reference)
        except DockerError as error:
            raise ImageUnknown(str(error)) from error
        return str(found["Descriptor"]["digest"])
