"""The cluster's record, which a command stores for later ones: one Docker config, replaced as a whole."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minicluster_hub.cluster.daemon import Daemon
from minicluster_hub.cluster.plan.choices import Choices
from minicluster_hub.engines.swarm.names import CLUSTER, label_filter, labels

ROLE = "record"


@dataclass(frozen=True)
class PlatformImages:
    """The references that services use: by digest, or an image's id if it is only on the manager."""

    hub: str = ""
    registry: str = ""
    notebook: str = ""

    @property
    def hub_is_published(self) -> bool:
        """Whether a node other than the manager can get the hub image."""
        return "@" in self.hub


@dataclass(frozen=True)
class ClusterRecord:
    """manager_id: the node that holds the platform's data. former: the images before the last upgrade."""

    choices: Choices
    manager_id: str
    images: PlatformImages = field(default_factory=PlatformImages)
    former: PlatformImages | None = None

    def with_(self, **changes: Any) -> ClusterRecord:
        return dataclasses.replace(self, **changes)

    def text(self) -> str:
        return json.dumps({"version": 1, **dataclasses.asdict(self)}, sort_keys=True, indent=1)

    @classmethod
    def of(cls, text: str) -> ClusterRecord:
        document = json.loads(text)
        former = document.get("former")
        return cls(
            choices=Choices.of(document["choices"]),
            manager_id=document["manager_id"],
            images=PlatformImages(**document.get("images", {})),
            former=PlatformImages(**former) if former else None,
        )


def load(daemon: Daemon) -> ClusterRecord | None:
    """Return the newest record; None if there is none."""
    found = _all(daemon)
    if not found:
        return None
    data = daemon.call("inspect_config", found[-1]["ID"])["Spec"]["Data"]
    return ClusterRecord.of(base64.b64decode(data).decode())


def save(daemon: Daemon, record: ClusterRecord) -> None:
    """Store this record and remove the former one. After an interruption, the newer one counts."""
    text = record.text()
    name = f"{CLUSTER}_record_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    before = _all(daemon)
    if before and before[-1]["Spec"]["Name"] == name:
        return
    for config in before:
        if config["Spec"]["Name"] == name:  # an earlier record again: its config would not be the newest
            daemon.remove("remove_config", config["ID"])
    daemon.call("create_config", name, text.encode(), labels=labels(ROLE))
    for config in before:
        daemon.remove("remove_config", config["ID"])


def _all(daemon: Daemon) -> list[Mapping[str, Any]]:
    found = daemon.call("configs", filters=label_filter(ROLE))
    return sorted(found, key=lambda config: config["CreatedAt"])
