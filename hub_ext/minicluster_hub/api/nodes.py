"""The cluster's nodes and who holds their slots."""

from __future__ import annotations

from minicluster_hub.web.auth import UserHandler
from minicluster_hub.api.messages import NodeAddresses
from minicluster_hub.api.ops import OpenHandler


class NodesHandler(UserHandler):
    def get(self) -> None:
        self.reply(self.context.board.nodes())


class NodeAddressesHandler(OpenHandler):
    """For the nodes' firewalls, on the agents' port. Whoever is on the machines' network sees them anyway."""

    def get(self) -> None:
        nodes = self.context.board.node_views()
        addresses = {node.address for node in nodes if node.address}
        addresses |= self.context.board.keepers.addresses(node.name for node in nodes)
        self.reply(NodeAddresses(addresses=tuple(sorted(addresses))))
