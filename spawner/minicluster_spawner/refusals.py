"""Why a notebook server did not start: a message for its user, and a label for the metrics; pure."""

from __future__ import annotations

import re

from minicluster.wire import DISK_FULL_EXIT
from minicluster_hub.engines.base import readable
from minicluster_hub.engines.swarm.docker import DockerError, DockerUnavailable
from minicluster_hub.engines.swarm.view import SwarmTask
from minicluster_spawner.container import HOME_LOST, HOME_UNUSABLE
from minicluster_spawner.failure import StartFailed
from minicluster_spawner.ledger import LedgerError, LedgerUnavailable

DOCTOR = "If it happens again, an admin should run `doctor` to find the cause."
_LINES, _LONGEST = 6, 700
_BY_WORDS: tuple[tuple[str, str, str], ...] = (
    (
        r"no space left on device",
        "disk_full",
        "The disk of {node} is full. Choose another node if your home allows it, or tell an admin.",
    ),
    (
        r"failed to mount|error while mounting|invalid mount|bind source path|no such file or directory",
        "mount_failed",
        "{node} could not mount the home or another folder of this server.",
    ),
    (
        r"no such image|pull access denied|manifest|repository .*not found|failed to resolve|"
        r"connection refused",
        "no_image",
        "{node} could not get the image {image}. Choose another image or node, or try again in a minute.",
    ),
    (
        r"insufficient resources",
        "no_room",
        "{node} has too little CPU or memory left for this server. Choose less, or another node.",
    ),
    (
        r"no suitable node",
        "no_suitable_node",
        "Swarm does not let this server onto {node}. Choose another node.",
    ),
    (
        r"could not find (plugin|network)|network .*not found|attaching to network",
        "network_failed",
        "{node} could not reach the cluster's network.",
    ),
)
_BY_CODE = {
    HOME_LOST: (
        "home_lost",
        "Your home on {node} is gone: an empty one is in its place, so nothing was started in it. Ask an "
        "admin to restore it; or, to continue with an empty home, start again with the option new_home.",
    ),
    HOME_UNUSABLE: (
        "home_unusable",
        "Your home on {node} is not writable: it belongs to another user, or its file server refuses.",
    ),
    137: (
        "killed",
        "The server on {node} was killed at its start, most likely for lack of memory. Choose more memory.",
    ),
}


class StartRefused(Exception):
    """A server does not start. reason: the metric's label. message: for the user. log: for the hub's log."""

    def __init__(self, reason: str, message: str, log: str = "") -> None:
        super().__init__(message)
        self.reason, self.message, self.log = reason, message, log


def is_over(task: SwarmTask) -> bool:
    """Return whether a task has ended or is about to end. Swarm shuts down the tasks of a lost node."""
    return not task.alive or task.desired in ("shutdown", "remove")


def filled_disk(task: SwarmTask) -> bool:
    """Return whether a server was ended because it filled its node's disk."""
    return task.exit_code == DISK_FULL_EXIT


def refusal(task: SwarmTask, node: str, image: str, log: str = "") -> StartRefused:
    """Return why a task did not become a server. log: the container's last lines."""
    error = task.error or f"Docker says only {task.state!r}"
    last = readable(log)[-_LONGEST:]
    reason, text = _cause(task, error)
    words = text.format(node=node, image=image)
    shown = last.splitlines()[-_LINES:] if reason == "ended_at_start" else []
    message = "\n".join([f"{words} ({error}) {DOCTOR}", *shown])
    return StartRefused(reason, message, f"{reason}: {error}\n{last}".strip())


def _cause(task: SwarmTask, error: str) -> tuple[str, str]:
    if task.exit_code in _BY_CODE:
        return _BY_CODE[task.exit_code]
    if task.exit_code is None or task.state == "rejected":
        for pattern, reason, text in _BY_WORDS:
            if re.search(pattern, error, re.IGNORECASE):
                return reason, text
    if task.exit_code is not None:
        return "ended_at_start", "The notebook server on {node} ended at its start."
    return "not_started", "The notebook server did not start on {node}."


def not_listening(node: str, host: str, port: int, log: str) -> StartRefused:
    """Return the refusal for a server that runs but does not accept connections."""
    message = (
        f"The notebook server runs on {node}, but the hub cannot reach it ({host}:{port}). Are the ports "
        f"2377/tcp, 7946/tcp, 7946/udp and 4789/udp open between the nodes? {DOCTOR}"
    )
    return StartRefused("unreachable", message, f"{host}:{port} does not answer\n{readable(log)[-_LONGEST:]}")


def spawn_exception(error: DockerError | LedgerError | StartRefused) -> StartFailed:
    """Return the exception that JupyterHub shows as plain text, without a traceback."""
    if isinstance(error, StartRefused):
        return StartFailed(error.message, reason=error.reason, log_message=error.log or error.message)
    if isinstance(error, LedgerError):
        status = 503 if isinstance(error, LedgerUnavailable) else 409
        return StartFailed(str(error), reason=error.code or "ledger", status_code=status)
    if isinstance(error, DockerUnavailable):
        message = f"The cluster's manager does not answer; try again in a minute. {DOCTOR}"
        return StartFailed(message, reason="docker_away", log_message=str(error), status_code=503)
    message = f"Docker refused the server: {error}. {DOCTOR}"
    return StartFailed(message, reason="docker_refused", status_code=500)
