"""Ranks of TensorFlow: TF_CONFIG has the addresses of all ranks, as MultiWorkerMirroredStrategy wants them.

TensorFlow itself is imported by the cell alone, never by the zygote: its threads do not survive a fork.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from types import ModuleType
from typing import Any

from torch.distributed import DistNetworkError

from minicluster.runtime.rank.environment import THREADS
from minicluster.runtime.rank.imports import after_import
from minicluster.runtime.rank.libraries.base import RankLibrary, ReportWaiting, gpus_here
from minicluster.runtime.rank.libraries.meeting import Meeting, ReservedPort
from minicluster.wire import RunOrder

CONFIG = "TF_CONFIG"
_WHERE, _OVER, _DONE = "tensorflow-server", "tensorflow-over", "tensorflow-done"
_CHANGED = (AttributeError, RuntimeError, ValueError)
"""What a GPU of which TensorFlow knows nothing may raise: the cell's own first use of it says why."""


class TensorFlow(RankLibrary):
    """One rank of TensorFlow."""

    def __init__(self, order: RunOrder, local_rank: int) -> None:
        super().__init__(order, local_rank)
        self._meeting = Meeting(order, self.rank)
        self._port: ReservedPort | None = None

    def prepare(self) -> None:
        for name, value in self._defaults().items():
            os.environ.setdefault(name, value)
        os.environ[CONFIG] = json.dumps(self._config())
        after_import("tensorflow", self._configure)

    def meet(self, report_waiting: ReportWaiting) -> None:
        self._wait_for_all(_OVER, report_waiting)

    def end(self, report_waiting: ReportWaiting) -> None:
        """Leave together: a rank that leaves takes its server with it, and the others fail."""
        self._wait_for_all(_DONE, report_waiting)

    def _wait_for_all(self, what: str, report_waiting: ReportWaiting) -> None:
        if self._meeting.size == 1:
            return
        with suppress(DistNetworkError):  # The store has ended, and with it the attempt.
            self._meeting.tell(what, "yes")
            self._meeting.wait(
                what,
                range(self._meeting.size),
                lambda rank: report_waiting(f"rank {rank}, since TensorFlow's ranks end together"),
            )

    def _defaults(self) -> dict[str, str]:
        threads = os.environ[THREADS]
        return {
            "KERAS_BACKEND": "tensorflow",
            # The server takes the port that was reserved for it.
            "TF_GRPC_REUSE_PORT": "true",
            "TF_NUM_INTRAOP_THREADS": threads,
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            "TF_CPP_MIN_LOG_LEVEL": "1",
        }

    def _config(self) -> dict[str, Any]:
        """Return the addresses of all ranks; "worker" is TensorFlow's own word. Waits until all are known."""
        self._port = ReservedPort(self.order.master_addr)
        self._meeting.tell(_WHERE, self._port.address)
        addresses = self._meeting.hear(_WHERE, range(self._meeting.size))
        return {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": self.rank}}

    def _configure(self, tensorflow: ModuleType) -> None:
        if self.order.seed is not None:
            tensorflow.random.set_seed(self.order.seed + self.rank)
        count = gpus_here()
        with suppress(*_CHANGED):
            gpus = tensorflow.config.list_physical_devices("GPU") if count else []
            if gpus:
                tensorflow.config.set_visible_devices(gpus[self.local_rank % len(gpus)], "GPU")
