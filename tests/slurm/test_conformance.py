"""The engine `slurm` passes the suite for engines, with real daemons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..service.engines.conformance import EngineConformance
from .daemons import SlurmDaemons
from .harness import SlurmHarness


class TestSlurm(EngineConformance):
    @pytest.fixture
    def harness(self, slurm: SlurmDaemons, tmp_path: Path) -> Iterator[SlurmHarness]:
        slurm.wait_idle()
        yield SlurmHarness(slurm, tmp_path)
