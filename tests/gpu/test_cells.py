"""What a cell finds: its device, its process group, its tensors, and torch's ways to be fast."""

import shutil

import pytest
import torch

from minicluster.display.failures import DistributedCellError

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
    mc.log(step=epoch, loss=loss)
where, backend = next(model.parameters()).device.type, dist.get_backend_config()
"""
CLASSIC = """%%distribute --nodes 1
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
model.to(device)
wrapped = DistributedDataParallel(model, device_ids=[device] if on_gpu else None)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=1.0)
for x, y in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(wrapped(x.to(device)), y.to(device)).backward()
    optimizer.step()
total = torch.ones(1, device=device)
dist.all_reduce(total)
where, summed, backend = next(model.parameters()).device.type, total.item(), dist.get_backend()
"""
MIXED = """%%distribute --nodes 1
import minicluster as mc
model, optimizer, loader = mc.prepare(model, optimizer, loader)
kind = mc.device().type
scaler = torch.amp.GradScaler(kind)
for x, y in loader:
    with torch.autocast(kind, dtype=torch.float16 if kind == "cuda" else torch.bfloat16):
        out = model(x.to(mc.device()))
        loss = torch.nn.functional.cross_entropy(out, y.to(mc.device()))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
half, whole = str(out.dtype), str(next(model.parameters()).dtype)
"""
COMPILED = """%%distribute --nodes 1
import minicluster as mc
model = mc.prepare(model)
x = points[:64].to(mc.device())
with torch.no_grad():
    alike = torch.allclose(torch.compile(model)(x), model(x), atol=1e-5)
where = x.device.type
"""


def right(names):
    """Return the accuracy of the notebook's own model."""
    model, points, labels = names["model"], names["points"], names["labels"]
    with torch.no_grad():
        found = model(points.to(next(model.parameters()).device)).argmax(dim=1).cpu()
    return (found == labels).float().mean().item()


def values(notebook, *names):
    return tuple(notebook.names[name] for name in names)


def test_the_slots_are_the_gpus_and_a_cell_sees_its_own(device, service, notebook):
    slots = [slot for node in service.nodes().nodes for slot in node.slots]
    assert {slot.kind for slot in slots} == {"gpu" if device == "cuda" else "cpu"}
    if device == "cuda":
        assert len(slots) == torch.cuda.device_count()
    notebook.run(
        "%%distribute --nodes 1 --gpus-per-node 1\nimport torch, minicluster as mc\n"
        "seen, chosen = torch.cuda.device_count(), str(mc.device())\n"
        "current = torch.cuda.current_device() if seen else None"
    )
    wanted = (1, "cuda:0", 0) if device == "cuda" else (0, "cpu", None)
    assert values(notebook, "seen", "chosen", "current") == wanted


def test_a_prepared_model_trains_and_comes_back_to_the_notebook(device, notebook):
    notebook.run(DATA)
    mine = notebook.names["model"]
    notebook.run(PREPARED)
    assert notebook.names["where"] == device
    assert ("cuda:nccl" in notebook.names["backend"]) == (device == "cuda")
    assert notebook.names["model"] is mine
    assert right(notebook.names) > 0.95


def test_a_script_with_its_own_group_of_one_rank_trains_the_notebooks_model(device, notebook):
    notebook.run(DATA)
    mine = notebook.names["model"]
    notebook.run(CLASSIC)
    backend = "nccl" if device == "cuda" else "gloo"
    assert values(notebook, "where", "summed", "backend") == (device, 1.0, backend)
    assert notebook.names["model"] is mine
    assert right(notebook.names) > 0.9


def test_tensors_of_cpu_and_gpu_are_reduced_in_one_group(device, notebook):
    notebook.run(
        "%%distribute --nodes 1\nimport torch, torch.distributed as dist, minicluster as mc\n"
        "here, there = torch.ones(2), torch.ones(2, device=mc.device())\n"
        "dist.all_reduce(here); dist.all_reduce(there)\n"
        "sums = here.sum().item(), there.sum().item(), there.device.type"
    )
    assert notebook.names["sums"] == (2.0, 2.0, device)


def test_two_ranks_on_one_device_meet_over_gloo(device, notebook):
    notebook.run(
        "%%distribute --nodes 1 --ranks-per-node 2\n"
        "import torch, torch.distributed as dist, minicluster as mc\n"
        "one = torch.full((1,), float(dist.get_rank() + 1))\n"
        "dist.all_reduce(one)\n"
        "total, place, backend = one.item(), mc.device().type, dist.get_backend()"
    )
    assert values(notebook, "total", "place", "backend") == (3.0, device, "gloo")


def test_tensors_travel_there_and_back_on_their_device_and_stay_the_same_object(device, notebook):
    notebook.run(f"import torch\nmine = torch.arange(6.0, device='{device}')\nview, held = mine[:2], [mine]")
    mine = notebook.names["mine"]
    notebook.run(
        "%%distribute --nodes 1\nmine *= 2\nheld[0][5] = 1.0\n"
        "made = mine.sum()\ncame = mine.device.type\nview"
    )
    names = notebook.names
    assert (names["came"], names["mine"] is mine, names["held"][0] is mine) == (device, True, True)
    assert (names["made"].device.type, mine.device.type) == (device, device)
    assert mine.tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 1.0]
    assert names["view"].tolist() == [0.0, 2.0] and names["made"].item() == 21.0


def test_mixed_precision_with_a_scaler(device, notebook):
    notebook.run(DATA)
    notebook.run(MIXED)
    half = "torch.float16" if device == "cuda" else "torch.bfloat16"
    assert values(notebook, "half", "whole") == (half, "torch.float32")
    assert right(notebook.names) > 0.9


def test_a_compiled_model_computes_the_same(device, notebook, needs):
    needs(shutil.which("gcc") or shutil.which("clang"), "torch.compile needs a C compiler")
    notebook.run(DATA)
    notebook.run(COMPILED)
    assert values(notebook, "alike", "where") == (True, device)


def test_names_on_a_sessions_ranks_stay_on_their_device(device, notebook):
    notebook.run("%distribute up --nodes 1")
    try:
        notebook.run(
            "%%distribute\nimport torch, minicluster as mc\nweights = torch.ones(4, device=mc.device())"
        )
        notebook.run("%%distribute --pull total\nweights += 1\ntotal = weights.sum()")
        assert (notebook.names["total"].item(), notebook.names["total"].device.type) == (8.0, device)
    finally:
        notebook.run("%distribute down")


def test_more_memory_than_there_is_is_torchs_own_error(device, notebook):
    source = f"%%distribute --nodes 1\nimport torch\nx = torch.zeros(1 << 46, device='{device}')"
    error = notebook.fails(source, DistributedCellError)
    assert ("OutOfMemoryError" if device == "cuda" else "RuntimeError") in str(error)


SNAPSHOT = """%%distribute --nodes 1
import minicluster as mc
from minicluster.train.snapshots.session import finish_writing
model, optimizer = mc.prepare(model, optimizer)
def steps(count):
    for _ in range(count):
        x = torch.rand(50, 2, device=mc.device())  # from the device's own random state
        loss = model(torch.nn.functional.dropout(x)).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    return loss.item()
steps(3)
mc.checkpoint(model, optimizer, step=3, every=1)
finish_writing()
first = steps(4)
step = mc.resume(model, optimizer)
again = steps(4)
momentum = next(iter(optimizer.state.values()))["momentum_buffer"].device.type
"""


def test_a_snapshot_has_the_devices_weights_momentum_and_random_state(device, notebook):
    notebook.run(DATA)
    notebook.run(SNAPSHOT)
    assert values(notebook, "step", "momentum") == (3, device)
    assert notebook.names["first"] == pytest.approx(notebook.names["again"], abs=1e-7)


def test_a_value_that_is_logged_is_read_as_it_was_at_the_call(device, notebook, service):
    notebook.run(
        "%%distribute --nodes 1\nimport torch, minicluster as mc\n"
        "loss = torch.ones((), device=mc.device(), dtype=torch.bfloat16, requires_grad=True)\n"
        "busy = torch.rand(1024, 1024, device=mc.device())\n"
        "for _ in range(20):\n    busy = busy @ busy\n"
        "mc.log(step=1, loss=loss)\n"
        "with torch.no_grad():\n    loss.fill_(7.0)\n"
        "mc.log(step=2, loss=loss)"
    )
    (job, *_) = service.jobs()
    (series,) = service.curves([job.id], ["loss"], 100).curves
    assert series.value == (1.0, 7.0)
