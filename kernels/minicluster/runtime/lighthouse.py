"""The lighthouse of a fault-tolerant job: tells its ranks which of them take part in each step.

A process of the platform, on no task's back, so that no training node is special. torchft's server
is loaded without torch, which the package would import: 14 MB of memory instead of 300.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import importlib.util
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import ModuleType

HEARTBEAT_TIMEOUT_MS = 700
"""A rank that is silent for so long takes no part. Ranks beat each 100 ms, whatever they compute."""
JOIN_TIMEOUT_MS = 60_000
"""How long a rank that beats, but does not come to the step (it evaluates, say), is waited for."""
TICK_MS = 50
QUIET_START_S = 2.0
"""How long a restarted lighthouse waits for all ranks to find it."""
_NOBODY = "rank-nobody"
_BEAT_S = 0.2


class TorchftMissing(Exception):
    """torchft is not installed where the lighthouse is to run."""


def native() -> ModuleType:
    """Load torchft's native module by its file. Raises TorchftMissing."""
    package = importlib.util.find_spec("torchft")
    folders = package.submodule_search_locations if package else None
    found = [path for folder in folders or () for path in Path(folder).glob("_torchft.*.so")]
    if not found:
        raise TorchftMissing("torchft is not installed: --fault-tolerant needs it")
    loader = importlib.machinery.ExtensionFileLoader("_torchft", str(found[0]))
    spec = importlib.machinery.ModuleSpec("_torchft", loader, origin=str(found[0]))
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def serve(bind: str) -> None:
    """Serve at `bind` until SIGTERM or SIGINT."""
    # Its log has a line per tick.
    os.environ.setdefault("RUST_LOG", "error")
    torchft = native()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server = torchft.LighthouseServer(
        bind=bind,
        min_replicas=1,
        join_timeout_ms=JOIN_TIMEOUT_MS,
        quorum_tick_ms=TICK_MS,
        heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS,
    )
    _hold_the_start(torchft, bind, ended)
    ended.wait()
    server.shutdown()


def _hold_the_start(torchft: ModuleType, bind: str, ended: threading.Event) -> None:
    """Delay the first decision until the ranks of a running job had time to find the new lighthouse.

    Otherwise the first rank to find it would go on alone. A replica that only beats delays the step.
    """
    client = torchft.LighthouseClient(f"http://{reached(bind)}", timedelta(seconds=5))
    until = time.monotonic() + QUIET_START_S
    while time.monotonic() < until and not ended.is_set():
        client.heartbeat(_NOBODY, timedelta(seconds=5))
        ended.wait(_BEAT_S)


def reached(bind: str) -> str:
    """Return the address at which this machine itself reaches a server bound to `bind`."""
    host, _, port = bind.rpartition(":")
    return f"127.0.0.1:{port}" if host in ("", "0.0.0.0", "[::]") else bind  # noqa: S104 - compared


def main() -> int:
    parser = argparse.ArgumentParser(description="The lighthouse of a fault-tolerant job.")
    parser.add_argument("--bind", required=True, metavar="HOST:PORT")
    bind = parser.parse_args().bind
    try:
        serve(bind)
    except (TorchftMissing, RuntimeError) as error:
        sys.stderr.write(f"The lighthouse cannot listen on {bind}: {error}.\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
