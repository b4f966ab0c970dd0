"""Copies bytes from each GPU of this machine to each other one and compares them, by NVIDIA's driver alone.

On some machines, mostly with consumer cards, direct copies between GPUs (peer-to-peer) hang or bring wrong
bytes, though the driver offers them; then NCCL's sums hang or are wrong, too. The copies are made by a
process of its own (`python -m`), since one that hangs in the driver may not even end when it is killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from itertools import permutations
from typing import Any

from minicluster_hub.cluster.doctor.checks.gpu_copies import GpuCopies, GpuCopy

LIMIT_S = 6.0
COPY_BYTES = 16 << 20
LIBRARY = "libcuda.so.1"
_PIECE_BYTES = 1 << 20
_LEAVE_S = 0.5
_ALREADY_ENABLED = 704


class DriverError(Exception):
    """The driver refused a call."""


def measure_copies(gpus: int, library: str = LIBRARY, limit_s: float = LIMIT_S) -> GpuCopies:
    """Have a process make all copies; report those that it made until the limit. gpus: that are here."""
    if gpus < 2:
        return GpuCopies(gpus=gpus)
    with tempfile.TemporaryFile() as output:
        program = [sys.executable, "-P", "-m", __spec__.name if __spec__ else __name__, library]
        child = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL)
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            with suppress(subprocess.TimeoutExpired):
                child.wait(_LEAVE_S)
        output.seek(0)
        return _as_told(gpus, output.read().decode(errors="replace").splitlines(), child.returncode, limit_s)


def _as_told(gpus: int, lines: list[str], code: int | None, limit_s: float) -> GpuCopies:
    copies: dict[tuple[int, int], GpuCopy] = {}
    for line in lines:
        with suppress(ValueError):  # the last line of a killed process may be cut
            copy = GpuCopy.model_validate_json(line)
            copies[copy.source, copy.target] = copy
    error = ""
    if not copies:
        ended = f"it ended with code {code}" if code and code > 0 else f"it did not within {limit_s:.0f} s"
        error = next(iter(json.loads(line)["error"] for line in lines if '"error"' in line), ended)
    return GpuCopies(gpus=gpus, copies=tuple(copies.values()), error=error)


# --- the process that copies ------------------------------------------------------------------------


class Driver:
    """CUDA's driver interface, as far as copies need it. Raises DriverError."""

    def __init__(self, library: str) -> None:
        try:
            self._cuda = ctypes.CDLL(library)
        except OSError as error:
            raise DriverError(str(error)) from error
        self.call("cuInit", 0)
        self.gpus = self._number("cuDeviceGetCount")
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def call(self, name: str, *arguments: Any, allowed: tuple[int, ...] = ()) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code and code not in allowed:
            raise DriverError(f"{name} answers {code}")

    def offers(self, source: int, target: int) -> bool:
        """Return whether a GPU can read another one's memory."""
        return bool(self._number("cuDeviceCanAccessPeer", target, source))

    def copied(self, source: int, target: int, data: bytes) -> bytes:
        """Write bytes to one GPU, copy them directly to another one, and return what is there."""
        size, read = ctypes.c_size_t(len(data)), ctypes.create_string_buffer(len(data))
        there, here = self._allocated(source, size), self._allocated(target, size)
        try:
            self._use(source)
            self.call("cuMemcpyHtoD_v2", there, data, size)
            self._use(target)
            self.call("cuMemsetD8_v2", here, 0, size)
            self.call("cuCtxEnablePeerAccess", self._contexts[source], 0, allowed=(_ALREADY_ENABLED,))
            self.call("cuMemcpyPeer", here, self._contexts[target], there, self._contexts[source], size)
            self.call("cuCtxSynchronize")
            self.call("cuMemcpyDtoH_v2", read, here, size)
        finally:
            for gpu, memory in ((source, there), (target, here)):
                self._use(gpu)
                self.call("cuMemFree_v2", memory)
        return read.raw

    def _allocated(self, gpu: int, size: ctypes.c_size_t) -> ctypes.c_uint64:
        memory = ctypes.c_uint64()
        self._use(gpu)
        self.call("cuMemAlloc_v2", ctypes.byref(memory), size)
        return memory

    def _use(self, gpu: int) -> None:
        if gpu not in self._contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._number("cuDeviceGet", gpu))
            self._contexts[gpu] = context
        self.call("cuCtxSetCurrent", self._contexts[gpu])

    def _number(self, name: str, *arguments: int) -> int:
        found = ctypes.c_int()
        self.call(name, ctypes.byref(found), *arguments)
        return found.value


def copies(driver: Driver) -> Iterator[GpuCopy]:
    """Yield each copy twice: as hung before it begins, and then how it went."""
    data = os.urandom(_PIECE_BYTES) * (COPY_BYTES // _PIECE_BYTES)
    for source, target in permutations(range(driver.gpus), 2):
        pair = GpuCopy(source=source, target=target, outcome="hung")
        if not driver.offers(source, target):
            yield pair.model_copy(update={"outcome": "not offered"})
            continue
        yield pair
        try:
            outcome = "right" if driver.copied(source, target, data) == data else "wrong"
            yield pair.model_copy(update={"outcome": outcome})
        except DriverError as error:
            yield pair.model_copy(update={"outcome": "refused", "words": str(error)})


def main(library: str) -> int:
    try:
        for copy in copies(Driver(library)):
            print(copy.model_dump_json(), flush=True)  # noqa: T201
    except (DriverError, AttributeError) as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
