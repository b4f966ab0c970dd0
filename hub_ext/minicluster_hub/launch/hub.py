"""`python -m minicluster_hub.launch.hub`: JupyterHub, which starts faster and reports when it is ready."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from minicluster_hub.hub.quick_import import import_quickly

READY_FD = "MINICLUSTER_READY_FD"
_LONGEST_WAIT_S = 0.2


def poll_often() -> None:
    """Shorten the pauses between JupyterHub's checks whether a server is up.

    They double up to 5 s: the hub would notice after 4 s a service that answers after 1.2 s. A check on
    this machine costs nothing.
    """
    from jupyterhub import utils

    patient: Any = utils.exponential_backoff
    utils.exponential_backoff = partial(patient, max_wait=_LONGEST_WAIT_S)


def main() -> None:
    """Run JupyterHub. When it has all its routes, write to the pipe that the environment names."""
    import_quickly()
    from jupyterhub.app import JupyterHub

    poll_often()
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
