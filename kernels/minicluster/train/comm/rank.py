"""What a rank does about `--comm`. Only ranks that were given one import the rest of this folder."""

from __future__ import annotations

import sys

_INSTALL = "minicluster.train.comm.install"


def follow(text: str) -> None:
    """Communicate as `--comm` says from now on."""
    from minicluster.train.comm.install import install

    install(text)


def average_weights() -> None:
    """Make the weights of the cell's models equal on all ranks: `mc.average_weights()`, called by all of them.

    With --comm localsgd or diloco, ranks train apart between two averagings. The end of the cell and
    mc.checkpoint() average by themselves; before torch.save() or a test that only some ranks make,
    call this on all ranks. Without such a --comm, weights are equal, and this does nothing.
    """
    if install := sys.modules.get(_INSTALL):
        install.settle()
