"""Why a notebook server did not start, as JupyterHub shows it."""

from __future__ import annotations

from typing import Any

from jupyterhub.spawner import SpawnException


class StartFailed(SpawnException):
    """Shown as plain text, without a traceback, also on the page of a start that failed after the answer.

    That page shows only what has this attribute, and JupyterHub's own class does not set it.
    """

    def __init__(self, message: str, **named: Any) -> None:
        super().__init__(message, **named)
        self.jupyterhub_message = message
