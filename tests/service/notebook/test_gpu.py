"""Cells on a real GPU; skipped without one, even on CI, whose machines have none."""

import subprocess

import pytest
import torch

from minicluster.display.failures import DistributedCellError
from minicluster_hub.engines.local.engine import gpu_indexes

pytestmark = pytest.mark.skipif(not gpu_indexes(), reason="this machine has no NVIDIA GPU")

DATA = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
points = torch.rand(3000, 2)
labels = (points.sum(dim=1) > 1).long()
loader = DataLoader(TensorDataset(points, labels), batch_size=50, shuffle=True)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
"""
PREPARED = """%%distribute --nodes 1
import minicluster as mc
import torch.distributed as dist
model, optimizer, loader = mc.prepare(model, optimizer, loader)
for epoch in range(5):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x.to(mc.device())), y.to(mc.device()))
        optimizer.zero_grad(); loss.backward(); optimizer.step()
where, backend = next(model.parameters()).device.type, dist.get_backend()
initialized = torch.cuda.is_initialized()
"""
CLASSIC = """%%distribute --nodes 1
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("nccl")
device = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(device)
model.to(device)
wrapped = DistributedDataParallel(model, device_ids=[device])
optimizer = torch.optim.SGD(wrapped.parameters(), lr=1.0)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(wrapped(x.to(device)), y.to(device)).backward()
    optimizer.step()
total = torch.ones(1, device=device)
dist.all_reduce(total)
where, summed = next(model.parameters()).device.type, total.item()
"""


def right(names):
    """Return the accuracy of the notebook's own model."""
    model, points, labels = names["model"], names["points"], names["labels"]
    with torch.no_grad():
        found = model(points.to(next(model.parameters()).device)).argmax(dim=1).cpu()
    return (found == labels).float().mean().item()


def used_mb():
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return sum(int(line) for line in subprocess.check_output(asked, text=True).split())


def test_a_prepared_model_trains_on_the_gpu_and_comes_back_to_the_notebook(notebook):
    notebook.run(DATA)
    mine = notebook.names["model"]
    notebook.run(PREPARED)
    assert (notebook.names["where"], notebook.names["initialized"]) == ("cuda", True)
    assert "nccl" in notebook.names["backend"]
    assert notebook.names["model"] is mine
    assert right(notebook.names) > 0.95


def test_a_classic_script_with_nccl_trains_the_notebooks_model(notebook):
    notebook.run(DATA)
    mine = notebook.names["model"]
    notebook.run(CLASSIC)
    assert (notebook.names["where"], notebook.names["summed"]) == ("cuda", 1.0)
    assert notebook.names["model"] is mine
    assert right(notebook.names) > 0.9


def test_two_ranks_on_one_gpu_meet_over_gloo(notebook):
    notebook.run(
        "%%distribute --nodes 1 --ranks-per-node 2\n"
        "import torch, torch.distributed as dist\n"
        "one = torch.full((1,), float(dist.get_rank() + 1))\n"
        "dist.all_reduce(one)\n"
        "total, place, backend = one.item(), torch.cuda.current_device(), dist.get_backend()"
    )
    assert (notebook.names["total"], notebook.names["place"], notebook.names["backend"]) == (3.0, 0, "gloo")


def test_memory_of_the_gpu_is_free_after_a_cell_though_the_gang_stays_warm(notebook):
    before = used_mb()
    notebook.run(
        "%%distribute --nodes 1\nimport torch\n"
        "held = torch.zeros(1 << 28, device='cuda').sum().item()\npeak = torch.cuda.max_memory_allocated()"
    )
    assert notebook.names["peak"] >= 1 << 30
    assert used_mb() < before + 256


def test_a_gpu_without_memory_left_is_said_by_torchs_own_error(notebook):
    error = notebook.fails(
        "%%distribute --nodes 1\nimport torch\nx = torch.zeros(1 << 42, device='cuda')", DistributedCellError
    )
    assert "OutOfMemoryError" in str(error)
