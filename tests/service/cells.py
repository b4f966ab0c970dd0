"""Submits cells as a notebook does."""

from __future__ import annotations

from typing import Any

from minicluster.capture.payload import CellPayload
from minicluster.client.client import JobServiceClient
from minicluster.pickling.pickling import dumps
from minicluster.wire import CountRange, JobSpec

TRAINING = """
import time, torch, minicluster as mc
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(4096, 8), torch.randn(4096, 1))
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer, loader = mc.prepare(model, optimizer, DataLoader(data, batch_size=4, shuffle=True))
step = mc.resume(model, optimizer, loader)
print(f"from {step} on {mc.world_size()}", flush=True)
while step < 100_000:
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        mc.checkpoint(model, optimizer, loader, step=step, every=10)
        print(f"step {step} on", mc.world_size(), flush=True)
        time.sleep(0.02)
"""
"""Prints its first step, and each step with the number of ranks; runs for hours."""


def submit(service: JobServiceClient, source: str, least: int, most: int, **spec: Any) -> int:
    """Submit a cell that reads no names, on a range of nodes; return the job's id."""
    body = CellPayload(source=source, filename="cell.py", names=dumps({}, {}, "the cell")).to_bytes()
    nodes = CountRange(min=least, max=most)
    return service.submit(JobSpec(payload_sha256=service.put_blob(body).sha256, nodes=nodes, **spec)).id
