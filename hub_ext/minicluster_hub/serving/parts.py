"""The parts of serving that handlers use."""

from __future__ import annotations

from dataclasses import dataclass

from minicluster_hub.serving.front.front import ModelFront
from minicluster_hub.serving.front.passing import Passing
from minicluster_hub.serving.manager import ModelManager
from minicluster_hub.serving.options import ServingLimits


@dataclass(frozen=True)
class Serving:
    """limits: of what an owner may have."""

    manager: ModelManager
    front: ModelFront
    passing: Passing
    limits: ServingLimits

    async def close(self) -> None:
        self.passing.close()
        await self.front.close()
