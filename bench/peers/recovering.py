"""The script for torchrun in bench/recovery.py: a training that saves its state and resumes from it.

It has the model, data, batch and pause of Minicluster's cell. Rank 0 prints each step with its time.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(kept: Path, every: int) -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8192, 64), torch.randint(10, (8192,)))
    layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    step = resume(kept, model, optimizer)
    while True:
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % every == 0 and dist.get_rank() == 0:
                keep(kept, model, optimizer, step)
            if dist.get_rank() == 0:
                sys.stdout.write(f"step {step} {time.time()!r}\n")
                sys.stdout.flush()
            time.sleep(0.05)


def resume(kept: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    if not kept.exists():
        return 0
    state = torch.load(kept)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def keep(kept: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    fresh = kept.with_suffix(f".{os.getpid()}")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, fresh)
    fresh.replace(kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
