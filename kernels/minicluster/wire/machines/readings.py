"""Readings: what machines and ranks use of CPU, memory, network and GPUs, as their agents report it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from minicluster.wire.base import Count, Message

GPUS_OF_MACHINE = 64
READINGS_OF_REPORT = 60
"""Two minutes: what an agent keeps while the service is away."""

Amount = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)]
Ago = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]


class GpuState(Message):
    """What a GPU does. gpu: its id, as nvidia-smi prints it. None: the driver does not tell.

    use_percent: share of the time in which a kernel ran.
    """

    gpu: str = Field(min_length=1, max_length=128)
    model: str = Field(default="", max_length=128)
    use_percent: Percent | None = None
    memory_bytes: Count = 0
    memory_total_bytes: Count = 0
    temperature_c: float | None = Field(default=None, ge=-100, le=1000, allow_inf_nan=False)
    power_w: Amount | None = None
    power_limit_w: Amount | None = None


class MachineReading(Message):
    """What a machine did in the last seconds.

    ago_s: seconds from the reading to this message: the clocks of two machines may differ.
    cpu_percent: of all its cores together, 0 to 100. memory_bytes: in use, without the page cache.
    received_bytes_s, sent_bytes_s: of its network cards, in a second.
    """

    ago_s: Ago = 0.0
    cpu_percent: Percent
    cores: Amount = 0.0
    memory_bytes: Count
    memory_total_bytes: Count
    received_bytes_s: Amount = 0.0
    sent_bytes_s: Amount = 0.0
    gpus: tuple[GpuState, ...] = Field(default=(), max_length=GPUS_OF_MACHINE)


class RankReading(Message):
    """What a rank and all that it started used in the last seconds. cpu_percent: of one core, so 400 is four.

    memory_bytes: resident, with what processes share counted in each of them.
    gpu_percent, gpu_memory_bytes: of the rank's GPU; None without one, or if the driver does not tell.
    received_bytes_s, sent_bytes_s: of the task's container, for its lowest rank; None without a network of
    its own.
    """

    rank: Count
    ago_s: Ago = 0.0
    cpu_percent: Percent
    memory_bytes: Count
    gpu_percent: Percent | None = None
    gpu_memory_bytes: Count | None = None
    received_bytes_s: Amount | None = None
    sent_bytes_s: Amount | None = None
