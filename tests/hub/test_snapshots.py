"""Snapshots end to end: a cell saves them, the job's storage has them, the owner downloads one."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path

import httpx
import pytest

from minicluster.train.snapshots import state

from .jobs import submit

KEEP = """
import torch, minicluster as mc
model, optimizer = mc.prepare(torch.nn.Linear(2, 1), torch.optim.SGD([torch.zeros(1)], lr=0.5))
for step in range(mc.resume(model, optimizer) + 1, 9):
    mc.checkpoint(model, optimizer, step=step, every=4)
"""


async def over(api: httpx.AsyncClient, job_id: int) -> dict[str, object]:
    async with asyncio.timeout(120):
        while (job := (await api.get(f"api/jobs/{job_id}")).json())["ended_at"] is None:
            await asyncio.sleep(0.1)
    return job


@pytest.mark.asyncio
@pytest.mark.full("tests/runtime/test_snapshots has it without a hub")
async def test_a_jobs_last_snapshot_is_in_its_storage_when_it_ends(
    ada_api: httpx.AsyncClient, grace_api: httpx.AsyncClient, tmp_path: Path
) -> None:
    job_id = (await submit(ada_api, KEEP, nodes=2)).json()["id"]
    job = await over(ada_api, job_id)
    assert job["state"] == "succeeded", job
    (newest, *_) = (await ada_api.get(f"api/jobs/{job_id}/snapshots")).json()["snapshots"]
    assert (newest["step"], newest["attempt"]) == (8, 1)
    archive = (await ada_api.get(f"api/jobs/{job_id}/snapshots/8")).content
    assert len(archive) == newest["size_bytes"]
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(tmp_path)
    tensors, _ = state.read_files(tmp_path)
    assert tensors["state.model.weight"].shape == (1, 2)
    assert (await grace_api.get(f"api/jobs/{job_id}/snapshots/8")).status_code == 404
