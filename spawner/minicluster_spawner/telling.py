"""A start's error, as what its user, the hub's log and the metrics are told."""

from __future__ import annotations

from jupyterhub.spawner import SpawnException

from minicluster_hub.engines.swarm.docker import DockerAway, DockerError
from minicluster_spawner.ledger import LedgerAway, LedgerError
from minicluster_spawner.refusals import DOCTOR, Refused


def spawn_exception(error: DockerError | LedgerError | Refused) -> SpawnException:
    """Return what JupyterHub shows as plain text, without a traceback."""
    if isinstance(error, Refused):
        why = error.why
        return SpawnException(why.message, reason=why.reason, log_message=why.log or why.message)
    if isinstance(error, LedgerError):
        status = 503 if isinstance(error, LedgerAway) else 409
        return SpawnException(str(error), reason=error.code or "ledger", status_code=status)
    if isinstance(error, DockerAway):
        message = f"The cluster's manager does not answer; try again in a minute. {DOCTOR}"
        return SpawnException(message, reason="docker_away", log_message=str(error), status_code=503)
    message = f"Docker refused the server: {error}. {DOCTOR}"
    return SpawnException(message, reason="docker_refused", status_code=500)
