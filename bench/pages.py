"""How long the lists and curves of many runs take, and the memory that the job service needs for them.

10,000 runs of one user with eight metrics each, and one run with a million points: the list by date, by a
metric, and searched; the curve as a whole and zoomed in. Prints one line per target.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
from parts.targets import Target, close

SERVICE = Path(__file__).with_name("parts") / "pages_service.py"
LIST_BOUND_S = 0.3
CURVE_BOUND_S = 1.0
GROWTH_BOUND_MB = 60.0
LISTS = {
    "list": "",
    "list_by_metric": "?sort=loss&order=asc",
    "list_searched": "?search=99",
    "list_last_page": "?offset=9900",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=15, help="requests of each kind; the median counts")
    options = parser.parse_args()
    command = [sys.executable, str(SERVICE), str(options.runs), str(options.points)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdin is not None and service.stdout is not None
        ready = json.loads(service.stdout.readline())
        targets = measured(ready, psutil.Process(service.pid), options.times)
        service.stdin.close()
    close(targets)


def measured(ready: dict[str, str], service: psutil.Process, times: int) -> list[Target]:
    headers = {"Authorization": "token ada-token"}
    with httpx.Client(base_url=ready["url"], headers=headers, timeout=60.0, verify=False) as client:
        client.get("api/runs?limit=1").raise_for_status()
        before = service.memory_info().rss
        lists = {name: median_s(client, f"api/runs{query}", times) for name, query in LISTS.items()}
        curves = f"api/runs/{ready['run']}/curves?name=loss"
        whole = median_s(client, curves, times)
        zoomed = median_s(client, f"{curves}&low=500000&high=500900", times)
        grown_mb = (service.memory_info().rss - before) / 1e6
    return [
        *(Target(f"pages_{name}_s", took_s, LIST_BOUND_S) for name, took_s in lists.items()),
        Target("pages_curve_of_a_million_points_s", whole, CURVE_BOUND_S),
        Target("pages_curve_zoomed_s", zoomed, CURVE_BOUND_S),
        Target("pages_memory_growth_mb", grown_mb, GROWTH_BOUND_MB),
    ]


def median_s(client: httpx.Client, path: str, times: int) -> float:
    """Return the median seconds of a request. Raises HTTPStatusError."""
    took: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        client.get(path).raise_for_status()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


if __name__ == "__main__":
    main()
