"""The names and labels of everything that Minicluster makes in a Kubernetes namespace: pure."""

from __future__ import annotations

from dataclasses import dataclass

from minicluster_hub.engines.safe_names import safe

CLUSTER = "minicluster"
PREFIX = "minicluster.org/"
CLUSTER_LABEL, ROLE_LABEL = f"{PREFIX}cluster", f"{PREFIX}role"
TASK_LABEL, GANG_LABEL, OWNER_LABEL = f"{PREFIX}task", f"{PREFIX}gang", f"{PREFIX}owner"
NODE_LABEL = f"{PREFIX}node"
SLOTS_MARK = f"{PREFIX}slots"
"""On a task's pod, the numbers of its slots. On a node, set by an admin: how many jobs' tasks it takes at a
time where it has no GPU."""
GPUS_MARK = f"{PREFIX}gpus"
"""On a task's pod, how many of its slots are GPUs."""
SPEC_MARK = f"{PREFIX}spec"
"""A digest of what an object was made of, by which a change is noticed."""
OWNER_MARK = f"{PREFIX}owner-name"
"""An owner's whole name, which may be no label: an e-mail address, say."""

TASK, LIGHTHOUSE, DATA, GANG, QUEUE = "task", "lighthouse", "data", "gang", "queue"
"""Roles: of pods, and of what all pods of a gang share."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one Minicluster in a namespace. cluster: its own name, in case there are several."""

    cluster: str = CLUSTER

    def labels(self, role: str, **more: object) -> dict[str, str]:
        """Return the labels of an object of that role; further ones by their short names.

        Values have to be labels already: 63 letters, digits, "-", "_" or ".".
        """
        common = {CLUSTER_LABEL: self.cluster, ROLE_LABEL: role}
        return common | {f"{PREFIX}{name}": str(value) for name, value in more.items() if value is not None}

    def selector(self, *roles: str) -> str:
        """Return the label selector of all objects of these roles; of all roles if none is named."""
        mine = f"{CLUSTER_LABEL}={self.cluster}"
        return f"{mine},{ROLE_LABEL} in ({','.join(roles)})" if roles else mine

    def gang_labels(self, gang_id: int) -> dict[str, str]:
        """Return the labels that all pods of a gang have, and no other pod."""
        return {CLUSTER_LABEL: self.cluster, GANG_LABEL: str(gang_id)}

    def task(self, task_id: int) -> str:
        return f"{self.cluster}-task-{task_id}"

    def gang(self, gang_id: int) -> str:
        """Return the name of a gang's Secret and of its NetworkPolicy."""
        return f"{self.cluster}-gang-{gang_id}"

    def lighthouse(self, gang_id: int) -> str:
        """Return the name of a gang's lighthouse: of its pod, and of the Service that leads there."""
        return f"{self.cluster}-lighthouse-{gang_id}"

    def data_agent(self, node: str) -> str:
        """Return the name of a node's data set agent: of its pod, its Secret and its claim."""
        return f"{self.cluster}-data-{safe(node)}"


def owner_label(owner: str) -> str:
    return safe(owner)


def token_key(task_id: int) -> str:
    """Return the key of a task's token in its gang's Secret."""
    return f"task-{task_id}"
