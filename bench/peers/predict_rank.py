"""A rank that trains one of predict_models: `MODEL STEPS [COMM]`. Prints a JSON line.

step_s: seconds of each of the last STEPS steps. growth_bytes: by how much the process grew at most.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from minicluster.dry_run.memory import ProcessMemory
from minicluster.dry_run.steps import WARM_STEPS
from minicluster.runtime import system
from minicluster.runtime.rank import zygote
from minicluster.train.comm import rank as comm

MODELS = Path(__file__).with_name("predict_models.py")


def main() -> None:
    name, steps = sys.argv[1], int(sys.argv[2])
    zygote.preload()
    # As ranks are: a fork has the memory of its parent, but not the pages of libraries.
    parent = os.getpid()
    if child := os.fork():
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    system.die_with_parent(parent)
    torch.set_num_threads(1)
    if os.environ["WORLD_SIZE"] != "1":
        dist.init_process_group("gloo")
    if len(sys.argv) > 3:
        comm.follow(sys.argv[3])
    os.setsid()
    Path("/proc/self/autogroup").write_text("-19")  # As for what predicts: see parts/priority.py.
    memory, ended = ProcessMemory(), [time.perf_counter()]
    growths: list[int] = []

    def stepped(*_: Any) -> None:
        if len(ended) == WARM_STEPS:
            growths.append(memory.growth_bytes)
        ended.append(time.perf_counter())
        if len(ended) > WARM_STEPS + steps:
            times = [after - before for before, after in pairwise(ended)]
            print(json.dumps({"step_s": times[WARM_STEPS:], "growth_bytes": growths[0]}), flush=True)
            os._exit(0)

    register_optimizer_step_post_hook(stepped)
    text = f"{MODELS.read_text()}\ntrain({name!r})"
    exec(compile(text, str(MODELS), "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
