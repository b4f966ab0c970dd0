"""Calls accelerate's notebook_launcher, as from a notebook that has already imported it."""

import sys
import time


def step() -> None:
    from ddp_step import one_step

    one_step()
    report()


def report() -> None:
    sys.stdout.write(f"done {time.time()!r}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    from accelerate import notebook_launcher

    what, ranks = sys.argv[1], int(sys.argv[2])
    print(f"submitted {time.time()!r}", flush=True)
    notebook_launcher(step if what == "step" else report, num_processes=ranks)
