"""What a rank does about `--balance`. Only ranks that were given it import the rest of this folder."""

from __future__ import annotations

import os
import sys

from minicluster.train.comm import rank as comm

used = False
"""Whether mc.prepare() made a loader whose shares follow the speeds."""
_wanted = False


def follow(comm_text: str | None) -> None:
    """Divide batches by speed from now on. comm_text: what `--comm` says, if it is given."""
    global _wanted
    from minicluster.train.balance.weights import install

    _wanted = True
    install()
    comm.follow(comm_text or "ddp", given_by="" if comm_text else "--balance")


def wanted() -> bool:
    """Whether `--balance` is given."""
    return _wanted


def memory_hint() -> str:
    """Return what to do if this rank's GPU is full; "" if its share is no larger than without `--balance`."""
    module = sys.modules.get("minicluster.train.balance.steps")
    portion = module.steps().portion if module else None
    if not portion or portion.part * int(os.environ.get("WORLD_SIZE", "1")) <= 1:
        return ""
    return (
        f"The GPU's memory is full. --balance gave this rank {len(portion.samples)} samples of the step, "
        f"{portion.part:.0%} of all. Lower the loader's batch_size: all shares get smaller in proportion. Or "
        "leave --balance out."
    )


def end() -> None:
    """Say it at the end of a job's cell if `--balance` had nothing to divide."""
    if _wanted and comm.used and not used and os.environ.get("RANK") == "0":
        print(  # noqa: T201
            "--balance had no effect: it divides the batches of a loader that mc.prepare() got together with "
            "model and optimizer, and there was none.",
            file=sys.stderr,
        )
