"""`python -m minicluster_hub.launch.hub`: JupyterHub itself, imported faster, that says when it is ready."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from minicluster_hub.hub.quick_import import import_quickly

READY_FD = "MINICLUSTER_READY_FD"


_LONGEST_WAIT_S = 0.2


def look_often() -> None:
    """Shorten JupyterHub's waits for a server to come up.

    They double up to 5 s, so that a service which is there after 1.2 s is seen after 4. On one
    machine a look costs nothing.
    """
    from jupyterhub import utils

    patient: Any = utils.exponential_backoff
    utils.exponential_backoff = partial(patient, max_wait=_LONGEST_WAIT_S)


def main() -> None:
    """Run JupyterHub; write to the pipe named in the environment when all its routes are there."""
    import_quickly()
    from jupyterhub.app import JupyterHub

    look_often()
    ready_fd = os.environ.pop(READY_FD, None)

    class Hub(JupyterHub):
        """JupyterHub with one more step at its start."""

        async def start(self) -> None:
            await super().start()
            if ready_fd is not None:
                os.write(int(ready_fd), b"ready")
                os.close(int(ready_fd))

    Hub.launch_instance()


if __name__ == "__main__":
    main()
