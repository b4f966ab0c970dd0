"""What torchrun starts: one DDP step, or nothing at all. Prints when each rank was done with it."""

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
    # One write: the lines of several ranks must not mix.
    sys.stdout.write(f"done {time.time()!r}\n")
    sys.stdout.flush()
