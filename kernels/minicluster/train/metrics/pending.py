"""Logged values that a GPU has not computed yet: sent in order once it has; the step does not wait."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from minicluster.train.metrics import sending

if TYPE_CHECKING:
    import torch

_LOOK_S = 0.02
_MOST_PENDING = 4096
"""Entries; beyond it, mc.log waits for the GPU."""
END_WAIT_S = 1.0
"""How long a rank's end waits for the GPU: after an error it may never answer."""


class Reading(Protocol):
    """Numbers that are being copied from a device."""

    def ready(self) -> bool: ...

    def numbers(self) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Entry:
    """One call of mc.log. values: in the call's order; None: it stands in one of `readings`."""

    rank: int
    at: float
    step: float | None
    values: Mapping[str, float | None]
    readings: tuple[Reading, ...] = ()

    def ready(self) -> bool:
        return all(reading.ready() for reading in self.readings)

    def line(self) -> bytes:
        read: dict[str, float] = {}
        for reading in self.readings:
            read.update(reading.numbers())
        values = {name: read[name] if value is None else value for name, value in self.values.items()}
        return sending.log_line(self.rank, self.at, self.step, values)


class GpuReading:
    """Copies of one GPU's tensors, made on its current stream: later changes of the tensors do not matter."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], device: torch.device) -> None:
        import torch

        self._names = tuple(tensors)
        self._host = torch.empty(len(tensors), dtype=torch.float64, pin_memory=True)
        for place, tensor in zip(self._host, tensors.values(), strict=True):
            place.copy_(tensor.detach().reshape(()), non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record(torch.cuda.current_stream(device))

    def ready(self) -> bool:
        return self._copied.query()

    def numbers(self) -> Mapping[str, float]:
        return dict(zip(self._names, self._host.tolist(), strict=True))


def read_later(tensors: Mapping[str, torch.Tensor]) -> tuple[Reading, ...]:
    """Begin to copy GPU tensors of one element each; return what will have the numbers."""
    devices = dict.fromkeys(tensor.device for tensor in tensors.values())
    return tuple(
        GpuReading({name: tensor for name, tensor in tensors.items() if tensor.device == device}, device)
        for device in devices
    )


class Queue:
    """Sends entries in the order of the calls. A thread looks after those that wait for a GPU."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._lock = threading.RLock()
        self._some = threading.Event()
        self._thread: threading.Thread | None = None
        self._told = False

    @property
    def waiting(self) -> bool:
        """Whether a further entry has to wait for others."""
        return bool(self._entries)

    def add(self, entry: Entry) -> None:
        """Send an entry, now or when it and all before it are ready."""
        if not self._entries and not entry.readings:
            sending.write(entry.line())
            return
        with self._lock:
            self._entries.append(entry)
            self._send_ready()
            if self._entries and self._thread is None:
                self._thread = threading.Thread(target=self._follow, daemon=True, name="minicluster-metrics")
                self._thread.start()
        self._some.set()
        while len(self._entries) > _MOST_PENDING:
            time.sleep(_LOOK_S)

    def finish(self, wait_s: float = END_WAIT_S) -> int:
        """Send what is ready within a time; return how many entries are lost with the GPU's values."""
        until = time.monotonic() + wait_s
        while self._entries and time.monotonic() < until:
            with self._lock:
                self._send_ready()
            if self._entries:
                time.sleep(0.001)
        lost = len(self._entries)
        self._entries.clear()
        return lost

    def _follow(self) -> None:
        while True:
            self._some.wait()
            self._some.clear()
            with suppress(OSError):  # The agent is gone.
                while self._entries:
                    with self._lock:
                        self._send_ready()
                    time.sleep(_LOOK_S)

    def _send_ready(self) -> None:
        try:
            while self._entries and self._entries[0].ready():
                sending.write(self._entries[0].line())
                self._entries.popleft()
        except RuntimeError as error:
            # After an error on the GPU none of its values can be read; the training itself raises it, too.
            left = [entry for entry in self._entries if not entry.readings]
            self._entries.clear()
            for entry in left:
                sending.write(entry.line())
            if not self._told:
                self._told = True
                print(f"mc.log: values on the GPU are lost: {error}", file=sys.stderr)  # noqa: T201


queue = Queue()


def _forget_entries() -> None:
    global queue
    queue = Queue()


# A forked child must not send what its parent will send, and has no thread.
os.register_at_fork(after_in_child=_forget_entries)


def add(entry: Entry) -> None:
    """Send an entry of mc.log by this process's queue."""
    queue.add(entry)


def finish() -> None:
    """Send what is left, at the end of a rank; say what is lost."""
    with suppress(OSError):  # The agent is gone.
        lost = queue.finish()
        sending.flush()
        if lost:
            text = f"mc.log: the values of the last {lost} calls are lost: the GPU did not compute them"
            print(f"{text} within {END_WAIT_S:g} s.", file=sys.stderr)  # noqa: T201
