"""Ranks of plain Python: nothing is prepared, so that nothing of torch or of GPUs is in the way."""

from __future__ import annotations

from minicluster.runtime.rank.libraries.base import RankLibrary


class Plain(RankLibrary):
    """Ranks that train with nothing that is known here. mc.comm() passes objects between them."""
