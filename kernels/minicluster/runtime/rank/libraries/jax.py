"""Ranks of JAX: `jax.distributed.initialize()` without arguments finds the coordinator, which is in rank 0.

JAX itself is imported by the cell alone. The zygote never imports it: its threads do not survive a fork.
"""

from __future__ import annotations

import atexit
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property, wraps
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from torch.distributed import DistNetworkError

from minicluster.pickling import jax_arrays
from minicluster.runtime.network import interface_to
from minicluster.runtime.rank.imports import after_import
from minicluster.runtime.rank.libraries.base import RankLibrary, ReportWaiting, gpus_here
from minicluster.runtime.rank.libraries.meeting import Meeting, ReservedPort
from minicluster.wire import RunOrder
from minicluster.wire.machines.gpu_share import SHARE_VARIABLE

COORDINATOR, _BIND = "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS"
_COLLECTIVES, _GLOO = "JAX_CPU_COLLECTIVES_IMPLEMENTATION", "gloo"
_KERAS = "KERAS_DISTRIBUTION"
_WHERE, _OVER, _DONE = "jax-coordinator", "jax-over", "jax-done"
_AT_EXIT = (
    ("jax._src.api", "clean_up"),
    ("jax._src.dispatch", "wait_for_tokens"),
    ("jax._src.distributed", "shutdown"),
)
"""What JAX, in one release or another, calls when a process ends, and waits for other ranks in."""
_FRACTION = 0.75
"""Of a GPU's memory, which JAX takes at its start: its own default."""
_DETECTION = "cluster_detection_method"
_MAKE_GLOO = "make_gloo_tcp_collectives"
_ALONE = (
    "JAX computed on each rank by itself, the same on all of them unless the cell told them apart: "
    "jax.distributed.initialize() as its first line lets them compute together."
)
_NO_JAX = "The ranks' image has no JAX: arrays of JAX came as NumPy's."
_NO_INTERFACE = (
    f"JAX {{version}} has no {_MAKE_GLOO} where earlier releases have it. On nodes with several networks, "
    "ranks on CPUs may look for each other on the wrong one. With JAX 0.10 they do not."
)


class Jax(RankLibrary):
    """One rank of JAX."""

    def __init__(self, order: RunOrder, local_rank: int) -> None:
        super().__init__(order, local_rank)
        self._meeting = Meeting(order, self.rank)
        self._port: ReservedPort | None = None
        self._begun = False
        self._leads = False

    def prepare(self) -> None:
        self._leads = True
        os.environ.update(self._addresses())
        os.environ.setdefault("KERAS_BACKEND", "jax")
        self.offer()

    def offer(self) -> None:
        """Let JAX find the ranks if the cell imports it, whatever trains in it."""
        for name, value in self._defaults().items():
            os.environ.setdefault(name, value)
        after_import("jax.distributed", self._add_the_ranks)
        after_import("jax", self._configure)
        after_import("jax._src.xla_bridge", self._choose_interface)

    def before_names(self, pickled: bytes) -> None:
        """Find the other ranks before arrays of JAX are made: those start its back end."""
        if jax_arrays.__name__.encode() not in pickled or _is_connected():
            return
        if find_spec("jax") is None:
            if self.rank == 0:
                print(_NO_JAX, file=sys.stderr)  # noqa: T201 - for the user
        elif self.order.world_size > 1 and not self.order.fault_tolerant:
            import_module("jax").distributed.initialize()
            self._begun = True

    def meet(self, report_waiting: ReportWaiting) -> None:
        several = self._leads and self.rank == 0 and self.order.world_size > 1
        if several and "jax" in sys.modules and not _is_connected():
            print(_ALONE, file=sys.stderr)  # noqa: T201 - for the user
        self._wait_for_all(_OVER, report_waiting)

    def end(self, report_waiting: ReportWaiting) -> None:
        """Leave together: each rank needs the coordinator, which is in rank 0."""
        if self._wait_for_all(_DONE, report_waiting):
            with suppress(RuntimeError):  # All have come this far: nothing is lost if one ended since.
                sys.modules["jax"].distributed.shutdown()

    def _wait_for_all(self, what: str, report_waiting: ReportWaiting) -> bool:
        """Wait for all ranks to come as far. Return False at once if they are not connected by JAX."""
        if "jax" not in sys.modules or self.order.world_size == 1 or self.order.fault_tolerant:
            return False
        with suppress(DistNetworkError):  # The store has ended, and with it the attempt.
            self._meeting.tell(what, "yes")
            if _is_connected():
                self._meeting.wait(
                    what,
                    range(self.order.world_size),
                    lambda rank: report_waiting(f"rank {rank}, since JAX's ranks end together"),
                )
        return _is_connected()

    def abandon(self) -> None:
        """Do not wait for the others: JAX would, for minutes."""
        for module, name in _AT_EXIT:
            if function := getattr(sys.modules.get(module), name, None):
                atexit.unregister(function)

    # Where the ranks are.

    def _addresses(self) -> dict[str, str]:
        ranks = {"NUM_PROCESSES": str(self.order.world_size), "PROCESS_ID": str(self.rank)}
        of_jax = {f"JAX_{name}": value for name, value in ranks.items()}
        of_jax[COORDINATOR] = self.coordinator
        if self.rank == 0:
            # By default it listens on all addresses of the machine.
            of_jax[_BIND] = self.coordinator
        of_keras = {f"{_KERAS}_{name}": value for name, value in ranks.items()}
        return {**of_jax, **of_keras, f"{_KERAS}_JOB_ADDRESSES": self.coordinator}

    @cached_property
    def coordinator(self) -> str:
        """The address of the coordinator. Rank 0 chooses it; the others wait until it has."""
        if self.rank == 0:
            self._port = ReservedPort(self.order.master_addr)
            self._meeting.tell(_WHERE, self._port.address)
            return self._port.address
        return self._meeting.hear(_WHERE, [0])[0]

    def _defaults(self) -> Mapping[str, str]:
        # Its handler of SIGTERM would keep ranks alive that are to end, and hide where they were.
        found = {_COLLECTIVES: _GLOO, "JAX_ENABLE_PREEMPTION_SERVICE": "false"}
        if (gpu := self._gpu) is not None:
            found["JAX_CUDA_VISIBLE_DEVICES"] = str(gpu)
            sharing = -(-self.order.local_world_size // gpus_here())
            share = float(os.environ.get(SHARE_VARIABLE) or 1) / sharing
            if share < 1:
                found["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{_FRACTION * share:.3f}"
        return found

    @property
    def _gpu(self) -> int | None:
        """The number of this rank's GPU; None if there is none."""
        count = gpus_here()
        return self.local_rank % count if count else None

    # What JAX gets once it is imported.

    def _configure(self, jax: ModuleType) -> None:
        # A JAX that was there before this rank has read its variables already.
        with suppress(AttributeError):  # In a later one, the variable is there all the same.
            jax.config.update("jax_cpu_collectives_implementation", os.environ[_COLLECTIVES])

    def _add_the_ranks(self, distributed: Any) -> None:
        """Let `jax.distributed.initialize()` find the ranks, and do nothing if that was done for the cell."""
        distributed.initialize = _of_the_job(distributed.initialize, self)

    def begun_for_the_cell(self) -> bool:
        begun, self._begun = self._begun, False
        return begun

    def complete(self, given: dict[str, Any]) -> None:
        """Add what a call of `jax.distributed.initialize` leaves out. given: its arguments.

        JAX then looks for no ranks itself: a node may belong to Slurm. A cell may still say how it shall.
        """
        if given.get(_DETECTION) is not None:
            return
        own = {"num_processes": self.order.world_size, "process_id": self.rank, _DETECTION: "deactivate"}
        given.update({name: value for name, value in own.items() if given.get(name) is None})
        if given.get("coordinator_address") is None:
            given["coordinator_address"] = self.coordinator

    def _choose_interface(self, bridge: Any) -> None:
        """Make Gloo use the interface that leads to the gang, not the one that the host's name leads to."""
        # An older JAX has it in another module; a later one may have it nowhere.
        native = getattr(bridge, "_jax", None) or getattr(getattr(bridge, "xla_client", None), "_xla", None)
        make = getattr(native, _MAKE_GLOO, None)
        if make is not None:
            setattr(native, _MAKE_GLOO, _with_interface(make, interface_to(self.order.master_addr)))
        elif self.rank == 0 and self.order.world_size > 1 and not gpus_here():
            version = getattr(sys.modules.get("jax"), "__version__", "")
            print(_NO_INTERFACE.format(version=version), file=sys.stderr)  # noqa: T201 - for the user


def _of_the_job(initialize: Callable[..., None], ranks: Jax) -> Callable[..., None]:
    signature = inspect.signature(initialize)

    @wraps(initialize)
    def begin(*args: Any, **named: Any) -> None:
        if ranks.begun_for_the_cell():
            return
        given = signature.bind(*args, **named).arguments
        ranks.complete(given)
        # An older JAX has no argument for what looks for ranks.
        initialize(**{name: value for name, value in given.items() if name in signature.parameters})

    return begin


def _with_interface(make: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    @wraps(make)
    def made(*args: Any, **named: Any) -> Any:
        if name and len(args) < 3:
            with suppress(TypeError):  # A later JAX may take other arguments.
                return make(*args, **{"interface": name, **named})
        return make(*args, **named)

    return made


def _is_connected() -> bool:
    """Return whether the cell has connected this rank to the coordinator."""
    is_initialized = getattr(sys.modules.get("jax.distributed"), "is_initialized", None)
    return is_initialized is not None and is_initialized()
