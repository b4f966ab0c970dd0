"""Steps of DDP, for torchrun and for a session's cell: `step_s` is the median of their seconds."""

import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
if not dist.is_initialized():
    dist.init_process_group("gloo")
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(64, 256)
times = []
for _ in range(120):
    began = time.perf_counter()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
step_s = statistics.median(times[20:])
# One write, so that lines of several ranks do not mix.
sys.stdout.write(f"step {step_s:.6f}\n")
