"""The script for torchrun: one DDP step, or a no-op. Each rank prints when it has finished."""

import sys
import time


def one_step() -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()


if __name__ == "__main__":
    if sys.argv[1] == "step":
        one_step()
    # One write, so that lines of several ranks do not mix.
    sys.stdout.write(f"done {time.time()!r}\n")
    sys.stdout.flush()
