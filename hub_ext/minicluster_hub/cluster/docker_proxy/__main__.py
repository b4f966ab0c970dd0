"""`run docker-proxy`: runs HAProxy before the Docker socket, and the gate; if one ends, both do."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from pathlib import Path

from minicluster_hub.cluster.docker_proxy import gate
from minicluster_hub.cluster.docker_proxy.rules import RuleSettings
from minicluster_hub.cluster.docker_proxy.settings import GATE_ENV, RULES_ENV, SOCKET_ENV

CONFIG = Path(__file__).with_name("haproxy.cfg")
_MEMORY = "/dev/shm"  # noqa: S108 - of its own container, whose disk is read-only


async def run() -> int:
    """Serve until a signal; return the exit code."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        listen = Path(folder, "gate.sock")
        settings = RuleSettings.of(os.environ.get(RULES_ENV, "{}"))
        server = gate.serve(listen, os.environ[SOCKET_ENV], settings)
        environment = {**os.environ, GATE_ENV: str(listen)}
        haproxy = await asyncio.create_subprocess_exec("haproxy", "-db", "-f", str(CONFIG), env=environment)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, haproxy.terminate)
        code = await haproxy.wait()
        server.stop()
        return 0 if code in (0, -signal.SIGTERM) else 1


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return asyncio.run(run())


if __name__ == "__main__":
    raise SystemExit(main())
