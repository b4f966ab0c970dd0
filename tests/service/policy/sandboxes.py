"""The two kinds of policy sandbox: processes of the service, and the policy container's server."""

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
    """Whether a server listens at a socket, whose file may exist before."""
    with socket.socket(socket.AF_UNIX) as link:
        return link.connect_ex(str(path)) == 0


@contextmanager
def served(folder, path):
    """Run the policy container's server, without the container."""
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
    """Yield a folder's policies, running in one kind of sandbox."""
    folder.mkdir(exist_ok=True)
    if form == "process":
        yield CustomPolicies(folder, ProcessSandbox(folder))
    else:
        path = Path(folder.parent, "socket")
        with served(folder, path):
            yield CustomPolicies(folder, ContainerSandbox(path))
