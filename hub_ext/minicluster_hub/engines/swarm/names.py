"""The names and labels of everything that Minicluster makes in a Swarm."""

from __future__ import annotations

import hashlib
import re

CLUSTER = "minicluster"
_PREFIX = "org.minicluster."
CLUSTER_LABEL, ROLE_LABEL = f"{_PREFIX}cluster", f"{_PREFIX}role"
NAME_LABEL = f"{_PREFIX}name"
TASK_LABEL, GANG_LABEL, OWNER_LABEL = f"{_PREFIX}task", f"{_PREFIX}gang", f"{_PREFIX}owner"
JOB_LABEL, ATTEMPT_LABEL = f"{_PREFIX}job", f"{_PREFIX}attempt"
SERVER_LABEL = f"{_PREFIX}server"
NODE_LABEL = f"{_PREFIX}node"
SLOT_LABEL = f"{_PREFIX}slot"
SPEC_LABEL = f"{_PREFIX}spec"
"""A digest of what a service was made of, by which a change is noticed."""
ADDRESS_LABEL = f"{_PREFIX}address"
"""Of a lighthouse: where the ranks reach it."""
SLOTS_LABEL = f"{_PREFIX}slots"
"""On a node, set by an admin: how many jobs' tasks it takes at a time where it has no GPU."""

CLUSTER_FILTER = {"label": [f"{CLUSTER_LABEL}={CLUSTER}"]}
_LONGEST = 63
"""Characters of a service's name, and of a label in DNS."""
_MADE = re.compile(r"(^|-)x[0-9a-f]{12}$")
_SAFE = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def labels(role: str, **more: object) -> dict[str, str]:
    """Return the labels of an object of that role; further ones by their short names.

    A service carries them twice, at itself and at its ContainerSpec, there with its own name
    (`name=`): Docker's list of tasks tells only the latter.
    """
    common = {CLUSTER_LABEL: CLUSTER, ROLE_LABEL: role}
    return common | {f"{_PREFIX}{name}": str(value) for name, value in more.items() if value is not None}


def label_filter(role: str) -> dict[str, list[str]]:
    """Return the filter that makes the daemon list only objects of that role."""
    return {"label": [f"{CLUSTER_LABEL}={CLUSTER}", f"{ROLE_LABEL}={role}"]}


SERVES_NETWORK = f"{CLUSTER}-serves"
"""Where the job services reach the replicas of served models. No job has it that is no replica."""
DATA_ROLE = "keeper"
DATA_VOLUME = f"{CLUSTER}_{DATA_ROLE}"
"""On each node: its cache of data sets, which the data set agent fills and tasks read."""


def task_name(task_id: int) -> str:
    return f"{CLUSTER}-task-{task_id}"


def lighthouse_name(gang_id: int) -> str:
    return f"{CLUSTER}-lighthouse-{gang_id}"


def gang_network(gang_id: int) -> str:
    return f"{CLUSTER}-gang-{gang_id}"


def home_volume(owner: str) -> str:
    return f"{CLUSTER}-home-{safe(owner)}"


def server_name(owner: str, server: str) -> str:
    """Return the service's name of a notebook server; `server` is "" for the user's default one."""
    name = f"{CLUSTER}-server-{safe(owner)}" + (f"--{safe(server)}" if server else "")
    return name if len(name) <= _LONGEST else f"{CLUSTER}-server-{safe(f'{owner}/{server}')}"


def safe(name: str) -> str:
    """Turn any name into one that Docker and DNS take; different names stay different.

    At most 40 characters. A name that looks like a result of this function is changed, too: else its user
    would have another user's home.
    """
    if _SAFE.fullmatch(name) and "--" not in name and not _MADE.search(name):
        return name
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:16]
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return f"{readable}-x{digest}" if readable else f"x{digest}"
