"""The two forms of a sandbox of policies: processes of the service, the server of the policy container."""

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from minicluster_hub.policy.custom_policy import CustomPolicies
from minicluster_hub.policy.sandbox import ContainerSandbox, ProcessSandbox

from ...patience import until


def listens(path):
    """Whether somebody listens at a socket; its file is there before."""
    with socket.socket(socket.AF_UNIX) as link:
        return link.connect_ex(str(path)) == 0


@contextmanager
def served(folder, path):
    """Run the server of the policy container, here without its container."""
    program = [sys.executable, "-P", "-m", "minicluster_hub.policy.sandbox_server", str(path), str(folder)]
    server = subprocess.Popen(program, env={**os.environ, "JUPYTERHUB_API_TOKEN": "not in the container"})
    try:
        until(lambda: listens(path))
        yield server
    finally:
        server.kill()
        server.wait()


@contextmanager
def custom_policies(form, folder):
    """Yield the policies of a folder, as they run in one of the two forms."""
    folder.mkdir(exist_ok=True)
    if form == "process":
        yield CustomPolicies(folder, ProcessSandbox(folder))
    else:
        path = Path(folder.parent, "socket")
        with served(folder, path):
            yield CustomPolicies(folder, ContainerSandbox(path))
