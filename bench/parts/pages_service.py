"""The job service of bench/pages.py, in its own process: many runs of one user, one of them with many points.

Prints a line of JSON: the service's URL, and the ids of two runs with curves. Ends with its stdin.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import tempfile
from pathlib import Path

from sqlalchemy import insert

TREE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TREE))

from tests.service.api.conftest import serving  # noqa: E402

from minicluster.wire import JobSpec  # noqa: E402
from minicluster_hub.runs.series import Batch, SeriesFile  # noqa: E402
from minicluster_hub.store.tables.main import JOBS  # noqa: E402
from minicluster_hub.store.tables.runs import RUN_METRICS, RUN_TAGS, RUNS  # noqa: E402

METRICS = ("loss", "accuracy", "val/loss", "val/accuracy", "lr", "epoch", "gradient", "images_per_s")
AT_ONCE = 10_000


def add_runs(store, count: int) -> None:
    """Write finished runs with eight metrics and a tag each, as the service would have."""
    spec = JobSpec(payload_sha256="a" * 64, name="cell", nodes={"min": 1, "max": 3}).model_dump_json()
    ids = range(1, count + 1)
    jobs = [
        {"id": i, "owner": "ada", "idempotency_key": f"key-{i:08}", "spec": spec, "state": "succeeded"}
        | {
            "reason": "",
            "created_at": i,
            "started_at": i + 1,
            "ended_at": i + 90,
            "state_since": i,
            "attempts": 1,
        }
        for i in ids
    ]
    runs = [
        {"job_id": i, "owner": "ada", "name": f"resnet {i}", "note": "", "favourite": False, "origin": "{}"}
        for i in ids
    ]
    tags = [{"job_id": i, "tag": f"tag-{i % 7}", "place": 0} for i in ids]
    metrics = [
        {"job_id": i, "name": name, "value": i / count, "step": 100, "low": 0.0, "high": 1.0}
        for i in ids
        for name in METRICS
    ]
    with store._database.write() as connection:
        for table, rows in ((JOBS, jobs), (RUNS, runs), (RUN_TAGS, tags), (RUN_METRICS, metrics)):
            connection.execute(insert(table), rows)


def add_points(path: Path, count: int) -> None:
    file = SeriesFile(path)
    for first in range(0, count, AT_ONCE):
        steps = range(first, min(count, first + AT_ONCE))
        points = [(float(step), 1e9 + step, math.sin(step / 1e4)) for step in steps]
        file.append(Batch(1, {("loss", 0): points}))


async def main(runs: int, points: int) -> None:
    """Serve until stdin closes."""
    with tempfile.TemporaryDirectory(prefix="minicluster-pages-") as folder:
        async with serving(Path(folder)) as api:
            await asyncio.to_thread(add_runs, api.context.store, runs)
            await asyncio.to_thread(add_points, api.context.recorder.files.path(runs), points)
            print(json.dumps({"url": api.url, "run": runs}), flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
