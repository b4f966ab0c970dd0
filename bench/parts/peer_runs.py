"""Runs programs of peers, again when they fail: Gloo aborts some of torchrun's ranks at their end."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

PEERS = Path(__file__).parents[1] / "peers"


def run_peer(command: Sequence[str], tries: int = 3) -> tuple[float, str]:
    """Run a peer until it succeeds; return its start time and output. Raises SystemExit."""
    began = time.time()
    done = subprocess.run(command, cwd=PEERS, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == 0:
        return began, done.stdout
    if tries == 1:
        raise SystemExit(f"{' '.join(command)} failed again and again:\n{done.stderr[-2000:]}")
    return run_peer(command, tries - 1)
