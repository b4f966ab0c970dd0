"""`run docker-proxy`: HAProxy before the Docker socket, with the gate beside it; when one ends, both do."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from pathlib import Path

from minicluster_hub.cluster.docker_proxy import gate, rules
from minicluster_hub.cluster.docker_proxy.settings import GATE_ENV, SOCKET_ENV, TOLD_ENV

CONFIG = Path(__file__).with_name("haproxy.cfg")
_MEMORY = "/dev/shm"  # noqa: S108 - of its own container, whose disk is read-only


async def run() -> int:
    """Serve until a signal asks for the end; return the exit code."""
    with tempfile.TemporaryDirectory(dir=_MEMORY) as folder:
        listen = Path(folder, "gate.sock")
        told = rules.Told.of(os.environ.get(TOLD_ENV, "{}"))
        server = gate.serve(listen, os.environ[SOCKET_ENV], told)
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
