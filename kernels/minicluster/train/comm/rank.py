"""What a rank does about `--comm`. Only ranks that were given one import the rest of this folder."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minicluster.wire.comm import CommMethod

used = False
"""Whether a DistributedDataParallel was made, to which `--comm` applies."""
_followed = ""
_given_by = ""


def follow(text: str, given_by: str = "") -> None:
    """Communicate as `--comm` says from now on. given_by: another option that asks for it."""
    global _followed, _given_by
    from minicluster.train.comm.install import install

    _followed, _given_by = text, given_by or f"--comm {text}"
    install(text, _given_by)


def followed() -> CommMethod:
    """Return what `--comm` says; plain DDP if it is not given."""
    from minicluster.wire.comm import DDP, comm_method

    return comm_method(_followed or DDP)


def is_followed() -> bool:
    """Return whether `--comm`, or an option that asks for it, is given."""
    return bool(_followed)


def follow_strategy(name: str, period: int | None) -> None:
    """Communicate as mc.prepare(strategy=name) says from now on. Raises TwoWays."""
    from minicluster.train.comm.install import TwoWays
    from minicluster.train.live.settings import LIGHTHOUSE
    from minicluster.wire.comm import comm_method, not_fault_tolerant

    text = name if period is None else f"{name}:period={period}"
    if text == _followed:
        return
    if _followed:
        raise TwoWays(
            f'mc.prepare(strategy="{name}") is another way to communicate than {_given_by}.',
            "Leave one of them out. In a session, the first one holds until %distribute down.",
        )
    why = not_fault_tolerant(comm_method(text))
    if why and os.environ.get(LIGHTHOUSE):
        raise TwoWays(f"{why}.", "Leave --fault-tolerant out, or the strategy.")
    follow(text, f'strategy="{name}"')


def end() -> None:
    """Say it at the end of a job's cell if `--comm` had nothing to do."""
    if _followed and not used and os.environ.get("RANK") == "0" and os.environ.get("WORLD_SIZE") != "1":
        print(  # noqa: T201
            f"{_given_by} had no effect: the cell made no DistributedDataParallel. mc.prepare() makes one.",
            file=sys.stderr,
        )


def average_weights() -> None:
    """Make the weights of the cell's models equal on all ranks, which all call `mc.average_weights()`.

    With --comm localsgd, diloco or async, ranks train apart between two averagings. The end of the cell and
    mc.checkpoint() average by themselves; before torch.save() or a test that only some ranks make,
    call this on all ranks. Without such a --comm, weights are equal, and this does nothing.
    """
    if install := sys.modules.get("minicluster.train.comm.install"):
        install.settle()
    if live := sys.modules.get("minicluster.train.live.session"):
        live.settle()
