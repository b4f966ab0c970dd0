"""A CUDA context is made before the cell, never before a fork; memory is free afterwards; NVML is read."""

import os
from pathlib import Path

import httpx
import torch

from minicluster.machine.gpus import find_gpus

from ..patience import until

MB = 1 << 20
SLACK_BYTES = 64 * MB
HOLD = """%%distribute --nodes 1 --detach
import time, torch, minicluster as mc
held = torch.ones(1 << 28, device=mc.device())
print("held", held.sum().item(), flush=True)
time.sleep(600)
"""
CONTEXT = """%%distribute --nodes 1
import ctypes, os, threading, torch
zygote = os.getppid()
from pathlib import Path
of_zygote = [str(link.readlink()) for link in Path(f"/proc/{zygote}/fd").iterdir()]
threads = [thread.name for thread in threading.enumerate()]
forked_in_bad_state = torch.cuda._is_in_bad_fork() if hasattr(torch.cuda, "_is_in_bad_fork") else False
flags, active = ctypes.c_uint(), ctypes.c_int()
if torch.cuda.is_available():
    ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
active = active.value
"""


def test_a_rank_has_its_context_before_the_cell_and_the_zygote_has_none(device, notebook):
    for _ in range(2):  # the second one on the warm gang
        notebook.run(CONTEXT)
        names = notebook.names
        assert names["active"] == (device == "cuda")
        assert not names["forked_in_bad_state"] and "minicluster-cuda" not in names["threads"]
        assert not [path for path in names["of_zygote"] if path.startswith("/dev/nvidia")]


def test_memory_is_free_after_a_cell_though_the_gang_stays_warm(device, notebook, used_bytes):
    before = used_bytes()
    notebook.run(
        "%%distribute --nodes 1\nimport torch\n"
        "held = torch.zeros(1 << 28, device='cuda').sum().item()\npeak = torch.cuda.max_memory_allocated()"
    )
    assert notebook.names["peak"] >= 1 << 30
    until(lambda: used_bytes() < before + SLACK_BYTES)


def held(notebook, service):
    """Start a cell that holds 1 GB until it is stopped; return its job."""
    notebook.run(HOLD)
    (job, *_) = service.jobs()
    until(lambda: "held" in service.log(job.id, 0, 1000)[0])
    return job


def test_a_stopped_cell_leaves_no_process(device, cluster, notebook, service):
    job = held(notebook, service)
    before = {process.pid for process in cluster.tasks()}
    # On a GPU, the gigabyte is not the process's own memory.
    assert any(map(_holds_much, before)) or device == "cuda"
    service.stop(job.id)
    until(lambda: service.job(job.id).state.terminal)
    until(lambda: not any(map(_holds_much, before)))


def _holds_much(pid):
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > 900 * MB
    except OSError:
        return False


def test_memory_is_free_after_stop(device, notebook, service, used_bytes):
    before = used_bytes()
    job = held(notebook, service)
    assert used_bytes() > before + 1000 * MB
    service.stop(job.id)
    until(lambda: service.job(job.id).state.terminal)
    until(lambda: used_bytes() < before + SLACK_BYTES)


def asked(cluster, path):
    answer = httpx.get(f"{cluster.url}api/{path}", headers={"Authorization": "token ada-token"})
    answer.raise_for_status()
    return answer.json()


def test_the_machine_is_read_with_its_gpus(device, cluster):
    (machine,) = until(lambda: [one for one in asked(cluster, "machines")["machines"] if one["reading"]])
    gpus = machine["reading"]["gpus"]
    if device == "cpu":
        assert gpus == []
        return
    driver = find_gpus()
    assert [gpu["gpu"] for gpu in gpus] == list(driver.ids)
    assert 0 < gpus[0]["memory_bytes"] <= gpus[0]["memory_total_bytes"]
    assert gpus[0]["temperature_c"] > 0 and gpus[0]["power_w"] > 0
    assert gpus[0]["model"] == torch.cuda.get_device_name(0)


def test_what_a_rank_uses_is_kept_with_its_run(device, cluster, notebook, service):
    job = held(notebook, service)
    name = "gpu_memory_bytes" if device == "cuda" else "memory_bytes"

    def most():
        (rank,) = asked(cluster, f"runs/{job.id}/readings?points=100")["ranks"] or [{"fields": []}]
        means = [value for field in rank["fields"] if field["name"] == name for value in field["mean"]]
        return max(filter(None, means), default=0)

    until(lambda: most() >= 1000 * MB)
    service.stop(job.id)
    until(lambda: service.job(job.id).state.terminal)
