"""The images that tasks run in, as the nodes report them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from minicluster_hub.engines.base import ImageUnknown
from minicluster_hub.engines.capabilities import TaskImages
from minicluster_hub.engines.kubernetes.cluster_view import ClusterView


class KubernetesImages(TaskImages):
    """own: the references that the engine's options offer, the default one first.

    A node reports its 50 largest images, unless its kubelet is configured otherwise.
    """

    def __init__(self, view: ClusterView, own: tuple[str, ...]) -> None:
        self._view = view
        self._own = own

    def own(self) -> tuple[str, ...]:
        return self._own

    def on_nodes(self) -> Mapping[str, Collection[str]]:
        found: dict[str, set[str]] = {}
        for node in self._view.nodes:
            for image in frozenset().union(*node.images):
                found.setdefault(image, set()).add(node.name)
        return found

    async def digest(self, reference: str) -> str:
        """Return the digest under which a node has a tag: nobody else says which one that is."""
        digests = {digest for node in self._view.nodes for digest in _digests(reference, node.images)}
        if len(digests) != 1:
            had = "no node has it yet" if not digests else "nodes have different images of that name"
            raise ImageUnknown(f"the digest of {reference} is not known: {had}; name it as NAME@sha256:...")
        return digests.pop()


def _digests(reference: str, images: Iterable[frozenset[str]]) -> set[str]:
    repository = reference.rpartition(":")[0] if ":" in reference.rpartition("/")[2] else reference
    names = (name for image in images if reference in image for name in image)
    return {name.partition("@")[2] for name in names if name.startswith(f"{repository}@")}


def by_own_name(reference: str, own: Iterable[str]) -> str:
    """Return an image's reference as the options have it; one that they do not offer as it is.

    A job that comes from another engine knows the same image by the name of that one's registry.
    """
    digest = reference.partition("@")[2]
    return next((one for one in own if digest and one.endswith(f"@{digest}")), reference)
