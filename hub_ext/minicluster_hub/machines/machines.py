"""The machines of the cluster: their newest readings, and a history of each on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from minicluster.wire import FieldHistory, History, Machine, MachineList, MachineReading
from minicluster_hub.machines.cells import Cell, Columns
from minicluster_hub.machines.ring import KEPT_S, Ring, fields_of

FRESH_S = 30.0
"""An older reading is not shown as what a machine does now. Agents report every few seconds."""
_WRITE_AGAIN_S = 60.0
"""Pause after the disk refused a reading."""
OWN = "localhost"
"""The name of the job service's own machine, if that is what all nodes are."""
_SUFFIX = ".ring"


@dataclass(frozen=True, slots=True)
class _Newest:
    reading: MachineReading
    at: float


class Machines:
    """own_nodes: the nodes that the job service's own machine stands for. Others are machines themselves."""

    def __init__(
        self, folder: Path, own_nodes: Sequence[str], clock: Callable[[], float], log: logging.Logger
    ) -> None:
        self.own_nodes = tuple(own_nodes)
        self._folder = folder
        self._clock = clock
        self._log = log
        self._newest: dict[str, _Newest] = {}
        self._rings: dict[str, Ring] = {}
        self._again_at = 0.0

    def receive(self, nodes: Iterable[str], readings: Sequence[MachineReading]) -> None:
        """Take readings from the agent of these nodes, the earliest first."""
        for name in dict.fromkeys(map(self._machine_of, nodes)):
            for reading in readings:
                self._take(name, reading)

    def newest(self) -> dict[str, MachineReading]:
        """Return the fresh readings, by machine."""
        since = self._clock() - FRESH_S
        return {name: one.reading for name, one in self._newest.items() if one.at >= since}

    def shown(self, nodes: Iterable[str]) -> MachineList:
        """Return the machines that these nodes are, with what they do now."""
        of: dict[str, list[str]] = {}
        for node in nodes:
            of.setdefault(self._machine_of(node), []).append(node)
        return MachineList(
            machines=tuple(self._message(name, tuple(mine)) for name, mine in of.items()), now=self._clock()
        )

    def fields(self, name: str) -> tuple[str, ...]:
        """Return the fields of which there is a history."""
        ring = self._rings.get(name)
        return ring.fields if ring else fields_of(self._path(name))

    def history(self, name: str, fields: Sequence[str], low: float, high: float, points: int) -> History:
        """Return some fields of a machine's history. It reads the disk. Raises OSError."""
        ring = self._rings.get(name)
        if ring is not None:
            return _history(name, ring.read(fields, low, high, points, self._clock()))
        ring = Ring(self._path(name), self.fields(name))
        try:
            return _history(name, ring.read(fields, low, high, points, self._clock()))
        finally:
            ring.close()

    def sweep(self) -> None:
        """Remove the files of machines that have not reported for as long as a history goes back."""
        since = self._clock() - KEPT_S
        for path in self._folder.glob(f"*{_SUFFIX}"):
            if unquote(path.stem) not in self._rings and path.stat().st_mtime < since:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        for ring in self._rings.values():
            ring.close()
        self._rings.clear()

    def _machine_of(self, node: str) -> str:
        return OWN if node in self.own_nodes else node

    def _message(self, name: str, nodes: tuple[str, ...]) -> Machine:
        newest, now = self._newest.get(name), self._clock()
        if newest is None or newest.at < now - FRESH_S:
            return Machine(name=name, nodes=nodes, fields=self.fields(name))
        reading = newest.reading.model_copy(update={"ago_s": max(0.0, now - newest.at)})
        return Machine(name=name, nodes=nodes, at=newest.at, reading=reading, fields=self.fields(name))

    def _take(self, name: str, reading: MachineReading) -> None:
        now = self._clock()
        at, newest = now - reading.ago_s, self._newest.get(name)
        if newest is None or at >= newest.at:
            self._newest[name] = _Newest(reading, at)
        if now < self._again_at:
            return
        try:
            values = field_values(reading)
            self._ring(name, values).add(at, values)
        except OSError as error:
            self._again_at = now + _WRITE_AGAIN_S
            self._log.warning("readings of %s are not in its history: %s", name, error)

    def _ring(self, name: str, values: Mapping[str, float]) -> Ring:
        """Return a machine's open file. A field that is new (a GPU) makes the file anew; none is removed."""
        ring = self._rings.get(name)
        if ring is None or not values.keys() <= set(ring.fields):
            fields = tuple(dict.fromkeys([*self.fields(name), *values]))
            if ring is not None:
                ring.close()
            self._folder.mkdir(parents=True, exist_ok=True)
            ring = self._rings[name] = Ring(self._path(name), fields)
        return ring

    def _path(self, name: str) -> Path:
        return self._folder / f"{quote(name, safe='')}{_SUFFIX}"


def field_values(reading: MachineReading) -> dict[str, float]:
    """Return a reading as the fields of a history. GPUs are numbered in the driver's order."""
    return dict(_values(reading))


def _values(reading: MachineReading) -> Iterator[tuple[str, float]]:
    yield "cpu_percent", reading.cpu_percent
    yield "memory_bytes", float(reading.memory_bytes)
    yield "received_bytes_s", reading.received_bytes_s
    yield "sent_bytes_s", reading.sent_bytes_s
    for number, gpu in enumerate(reading.gpus):
        found = {
            "use_percent": gpu.use_percent,
            "memory_bytes": float(gpu.memory_bytes),
            "temperature_c": gpu.temperature_c,
            "power_w": gpu.power_w,
        }
        for name, value in found.items():
            if value is not None:
                yield f"gpu{number}_{name}", value


def _history(name: str, found: Columns) -> History:
    return History(name=name, step_s=found.step_s, at=found.at, fields=field_histories(found))


def field_histories(found: Columns) -> tuple[FieldHistory, ...]:
    return tuple(
        FieldHistory(name=field, mean=tuple(map(_mean, cells)), high=tuple(map(_high, cells)))
        for field, cells in found.fields.items()
    )


def _mean(cell: Cell) -> float | None:
    return _short(cell.mean) if cell.count else None


def _high(cell: Cell) -> float | None:
    return _short(cell.high) if cell.count else None


def _short(value: float) -> float:
    """Return a value with as many digits as a picture needs: answers are half as long."""
    return float(f"{value:.5g}")
