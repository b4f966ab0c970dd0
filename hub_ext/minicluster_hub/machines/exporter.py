"""The newest readings of machines for Prometheus, read at each scrape. Old ones are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from minicluster.wire import GpuState, MachineReading

_GPU_LABELS = ("machine", "gpu", "uuid", "model")


class MachineCollector(Collector):
    """newest: returns the fresh readings by machine."""

    def __init__(self, newest: Callable[[], Mapping[str, MachineReading]]) -> None:
        self._newest = newest

    def describe(self) -> Iterable[Metric]:
        """Return nothing: registering does not read."""
        return ()

    def collect(self) -> Iterable[Metric]:
        readings = sorted(self._newest().items())
        yield from _machine_metrics(readings)
        gpus = [
            ((name, str(number), gpu.gpu, gpu.model), gpu)
            for name, reading in readings
            for number, gpu in enumerate(reading.gpus)
        ]
        yield from _gpu_metrics(gpus)


def _machine_metrics(readings: list[tuple[str, MachineReading]]) -> Iterator[Metric]:
    values: tuple[tuple[str, str, Callable[[MachineReading], float]], ...] = (
        ("cpu_ratio", "Use of all cores of a machine", lambda one: one.cpu_percent / 100),
        ("memory_bytes", "Memory of a machine in use", lambda one: one.memory_bytes),
        ("memory_total_bytes", "Memory of a machine", lambda one: one.memory_total_bytes),
        ("received_bytes_per_second", "What its network cards receive", lambda one: one.received_bytes_s),
        ("sent_bytes_per_second", "What its network cards send", lambda one: one.sent_bytes_s),
    )
    for name, text, value in values:
        family = GaugeMetricFamily(f"minicluster_machine_{name}", text, labels=("machine",))
        for machine, reading in readings:
            family.add_metric([machine], value(reading))
        yield family


def _gpu_metrics(gpus: list[tuple[tuple[str, str, str, str], GpuState]]) -> Iterator[Metric]:
    values: tuple[tuple[str, str, Callable[[GpuState], float | None]], ...] = (
        ("use_ratio", "Share of the time in which a kernel ran", lambda one: _ratio(one.use_percent)),
        ("memory_bytes", "Memory of a GPU in use", lambda one: one.memory_bytes),
        ("memory_total_bytes", "Memory of a GPU", lambda one: one.memory_total_bytes),
        ("temperature_celsius", "Temperature of a GPU", lambda one: one.temperature_c),
        ("power_watts", "Power that a GPU draws", lambda one: one.power_w),
    )
    for name, text, value in values:
        family = GaugeMetricFamily(f"minicluster_gpu_{name}", text, labels=_GPU_LABELS)
        for labels, gpu in gpus:
            found = value(gpu)
            if found is not None:
                family.add_metric(labels, found)
        yield family


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100
