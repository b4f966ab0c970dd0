"""The folder of results: for each part a junit file and its output."""

from __future__ import annotations

import os
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
RESULTS = Path(os.environ.get("MINICLUSTER_TEST_RESULTS") or TREE / ".test-results")
OTHERS_ENDED = RESULTS / "others-ended"
"""Created when all lanes except the lab's have ended; the lab's tests marked `alone` wait for it."""


def clear_results() -> None:
    """Delete the results of the last run."""
    RESULTS.mkdir(exist_ok=True)
    for path in (*RESULTS.glob("*.xml"), *RESULTS.glob("*.log"), OTHERS_ENDED):
        path.unlink(missing_ok=True)


def junit_file(name: str) -> Path:
    return RESULTS / f"{name}.xml"


def log_file(name: str) -> Path:
    return RESULTS / f"{name}.log"
