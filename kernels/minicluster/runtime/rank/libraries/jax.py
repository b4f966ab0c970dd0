"""Ranks of JAX: `jax.distributed.initialize()` without arguments finds the coordinator, which is in rank 0.

JAX itself is imported by the cell alone. The zygote never imports it: its threads do not survive a fork.
"""

from __future__ import annotations

import atexit
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
_CHANGED = (ImportError, AttributeError, TypeError)
"""What another JAX than those known may raise: the environment variables are there all the same."""
_NO_JAX = "The ranks' image has no JAX: arrays of JAX came as NumPy's."


class Jax(RankLibrary):
    """One rank of JAX."""

    def __init__(self, order: RunOrder, local_rank: int) -> None:
        super().__init__(order, local_rank)
        self._meeting = Meeting(order, self.rank)
        self._port: ReservedPort | None = None
        self._begun = False

    def prepare(self) -> None:
        os.environ.update(self._addresses())
        os.environ.setdefault("KERAS_BACKEND", "jax")
        self.offer()

    def offer(self) -> None:
        """Let JAX find the ranks if the cell imports it, whatever trains in it."""
        for name, value in self._defaults().items():
            os.environ.setdefault(name, value)
        after_import("jax._src.clusters", self._join_clusters)
        after_import("jax.distributed", self._accept_a_second_call)
        after_import("jax", self._configure)
        after_import("jax._src.xla_bridge", self._choose_interface)

    def before_names(self, pickled: bytes) -> None:
        """Find the other ranks before arrays of JAX are made: those start its back end."""
        if jax_arrays.__name__.encode() not in pickled or _client() is not None:
            return
        if find_spec("jax") is None:
            if self.rank == 0:
                print(_NO_JAX, file=sys.stderr)  # noqa: T201 - for the user
        elif self.order.world_size > 1 and not self.order.fault_tolerant:
            import_module("jax").distributed.initialize()
            self._begun = True

    def meet(self, report_waiting: ReportWaiting) -> None:
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
            if _client() is not None:
                self._meeting.wait(
                    what,
                    range(self.order.world_size),
                    lambda rank: report_waiting(f"rank {rank}, since JAX's ranks end together"),
                )
        return _client() is not None

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
        with suppress(*_CHANGED):
            jax.config.update("jax_cpu_collectives_implementation", os.environ[_COLLECTIVES])

    def _join_clusters(self, clusters: ModuleType) -> None:
        """Put the job's ranks first among the environments that JAX looks for: a node may belong to Slurm."""
        with suppress(*_CHANGED):
            known = clusters.ClusterEnv._cluster_types
            made = _environment_of(clusters.ClusterEnv, self)
            known[:] = [made, *(one for one in known if one is not made)]

    def _accept_a_second_call(self, distributed: Any) -> None:
        """Let a cell initialize JAX although that was done for it, once."""
        distributed.initialize = _once_more(distributed.initialize, self._begun_for_the_cell)

    def _begun_for_the_cell(self) -> bool:
        begun, self._begun = self._begun, False
        return begun

    def _choose_interface(self, bridge: ModuleType) -> None:
        """Make Gloo use the interface that leads to the gang, not the one that the host's name leads to."""
        name = interface_to(self.order.master_addr)
        with suppress(*_CHANGED):
            native = getattr(bridge, "_jax", None) or bridge.xla_client._xla
            native.make_gloo_tcp_collectives = _with_interface(native.make_gloo_tcp_collectives, name)


def _environment_of(base: Any, ranks: Jax) -> Any:
    """Return the class by which JAX finds the job's ranks."""

    class MiniclusterEnv(base):
        name = "minicluster"

        @classmethod
        def is_env_present(cls) -> bool:
            return True

        @classmethod
        def get_coordinator_address(cls, *_: Any, **__: Any) -> str:
            return ranks.coordinator

        @classmethod
        def get_process_count(cls) -> int:
            return ranks.order.world_size

        @classmethod
        def get_process_id(cls) -> int:
            return ranks.rank

        @classmethod
        def get_local_process_id(cls) -> int | None:
            return None

    return MiniclusterEnv


def _once_more(initialize: Callable[..., None], begun: Callable[[], bool]) -> Callable[..., None]:
    @wraps(initialize)
    def once_more(*args: Any, **named: Any) -> None:
        if not begun():
            initialize(*args, **named)

    return once_more


def _with_interface(make: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    @wraps(make)
    def made(*args: Any, **named: Any) -> Any:
        if name and len(args) < 3:
            named.setdefault("interface", name)
        return make(*args, **named)

    return made


def _client() -> Any:
    """Return JAX's connection to the coordinator; None if the cell did not initialize it."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return getattr(state, "client", None)
