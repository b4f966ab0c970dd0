"""A fault-tolerant job's steps on one rank: participating ranks, the all-reduce, whether the step counts."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import TCPStore
from torch.distributed import AllreduceOptions, ReduceOp
from torch.futures import Future
from torch.optim import Optimizer

from minicluster.errors import MiniclusterError
from minicluster.train.live import settings
from minicluster.train.live.manager import LiveManager
from minicluster.train.live.settings import LiveSettings
from minicluster.train.live.watchdogs import LighthouseWatchdog, PeerWatchdog
from minicluster.train.metrics import sending

_RETRY_S = 0.2
State = Callable[[], dict[str, Any]]
Load = Callable[[dict[str, Any]], Any]

_KEY = "minicluster-live-start"
_LOOK_S = 0.02


class LighthouseGone(MiniclusterError):
    """The job's lighthouse has not answered for too long, so training cannot continue."""


class Apart(Protocol):
    """A model whose ranks train apart, see LocalSteps. means: is called on all participating ranks alike."""

    @property
    def is_due(self) -> bool: ...

    @property
    def apart(self) -> int: ...

    def means(self) -> Any: ...
    def take(self, means: Any) -> None: ...


class LiveSession:
    """One rank's part in the steps. All participating ranks take a step, or none does.

    begin: agree on the participating ranks, and load the state of ranks that are ahead. sum: the
    all-reduce. commit: return whether the step counts; if not, the optimizer must not step, and the data are
    repeated.
    """

    def __init__(self, around: LiveSettings) -> None:
        self._around = around
        self._kept: list[tuple[str, Load, State]] = []
        self.optimizers: list[Optimizer] = []
        self._cut = False
        self._on_commit: list[Callable[[bool], None]] = []
        self._made: LiveManager | None = None
        self._begun = False
        self._apart: list[Apart] = []
        self._steps_apart = 0
        self._works = 0
        self._members: tuple[int, ...] = ()
        self._lock = threading.Lock()
        self._lighthouse_watchdog = LighthouseWatchdog(around.lighthouse, around.replica, self._let_go)
        self._peer_watchdog = PeerWatchdog(lambda: self._manager.group.peers, self._silent)
        if not around.joins:
            self._patiently(lambda: self._manager)
            wait_for_all(around)

    @property
    def members(self) -> tuple[int, ...]:
        """Return the numbers of the participating ranks; empty before the first step."""
        return self._members

    @property
    def place(self) -> int:
        """Return this rank's index among the participating ranks."""
        return self._members.index(self._around.rank)

    @property
    def step(self) -> int:
        """Return the number of steps that counted, on any ranks."""
        if self._apart:
            return self._steps_apart
        return self._made.current_step() if self._made else 0

    def keep(self, name: str, load: Load, state: State) -> None:
        """Register state that a joining rank gets from its peers."""
        self._kept.append((f"{name}-{len(self._kept)}", load, state))
        if self._made:
            self._made.register_state_dict_fn(*self._kept[-1])

    def after_commit(self, call: Callable[[bool], None]) -> None:
        self._on_commit.append(call)

    def resumed(self, step: int) -> None:
        """Continue from a snapshot's step; called before the first step."""
        self._steps_apart = step
        self._manager.load_state_dict({"step": step, "batches_committed": 0})

    def begin(self) -> None:
        """Agree on the next step's ranks, if not yet done. May load a peer's state."""
        if self._begun:
            return
        if not self._apart:
            self._agree()
            if self._apart:  # By its peers' state this rank has joined ranks that average now.
                self._average()
        elif not self._members or any(model.is_due for model in self._apart):
            self._meet()

    def _agree(self) -> None:
        self._patiently(self._quorum)
        while self._manager.errored():
            # The group could not be made, as one of its ranks was lost. Nothing was computed yet.
            self._manager.should_commit()
            self._patiently(self._quorum)
        self._begun = True
        self._tell()

    @property
    def count(self) -> int:
        """Return the number of participating ranks."""
        return len(self._members)

    def train_apart(self, model: Apart) -> None:
        """Let the ranks make steps of their own, which count at once; they meet when an average is due."""
        self._steps_apart = self.step
        self._apart.append(model)
        # Of the step that they have agreed on, each now makes its own.
        self._confirm()

    def goes_on_apart(self, step: int) -> None:
        """Count from the steps that the other ranks have made."""
        self._steps_apart = step

    def train_together(self, model: Apart) -> None:
        """End what `train_apart` began, right after the ranks have met."""
        self._apart.remove(model)
        if not self._apart:
            self.resumed(self._steps_apart)

    def settle(self) -> None:
        """Make the weights of ranks that train apart equal; all participating ranks call this."""
        while any(model.apart for model in self._apart):
            self._meet()

    def sum(self, tensor: torch.Tensor) -> Future[torch.Tensor]:
        """Sum a tensor over the participating ranks, in place. After an error the step does not count."""
        self.begin()
        if self._manager.errored():
            return _done(tensor)
        options = AllreduceOptions()
        options.reduceOp = ReduceOp.SUM  # pyright: ignore[reportAttributeAccessIssue]
        with self._lock:
            self._works += 1
            number = self._works
        self._peer_watchdog.begun(number)
        try:
            work = self._manager.group.allreduce([tensor], options)
            if tensor.is_cuda:
                work.wait()
            future = work.get_future()
        except Exception as error:
            self._peer_watchdog.ended(number)
            self._spoil(error)
            return _done(tensor)
        return future.then(lambda done: self._finished(done, number, tensor))

    def commit(self) -> bool:
        """Return whether the step counts."""
        if self._apart:
            self._steps_apart += 1
            taken = True
        else:
            taken = self._confirm()
        for call in self._on_commit:
            call(taken)
        return taken

    def _confirm(self) -> bool:
        """Return whether all that was summed since the ranks agreed is right."""
        if not self._begun:
            return False
        self._begun = False
        return self._manager.should_commit()

    def _meet(self) -> None:
        """Average what the ranks have learned apart. If one is lost meanwhile, they try again later."""
        self._agree()
        self._average()

    def _average(self) -> None:
        means = [(model, model.means()) for model in self._apart if model.apart]
        if self._confirm():
            for model, mean in means:
                model.take(mean)

    def _finished(self, done: Future[Any], number: int, tensor: torch.Tensor) -> torch.Tensor:
        self._peer_watchdog.ended(number)
        try:
            done.value()
        except Exception as error:
            self._spoil(error)
        return tensor

    def _spoil(self, error: Exception) -> None:
        """Give up the step, and end the operations for which peers still wait."""
        self._manager.report_error(error)
        self._manager.group.break_off()

    def _silent(self, peer: int) -> None:
        self._spoil(TimeoutError(f"the rank in place {peer} does not answer"))

    def _quorum(self) -> None:
        if self._cut:
            self._cut = False
            self._made = self._successor()
        manager = self._manager
        with self._lighthouse_watchdog:
            manager.start_quorum_anew()

    def _let_go(self) -> None:
        """End the call of a manager whose lighthouse was replaced."""
        self._cut = True
        self._manager.let_go()

    @property
    def _manager(self) -> LiveManager:
        """Return the manager. A joining rank creates it at its first step, since others then wait for it."""
        if self._made is None:
            self._made = self._new_manager()
        return self._made

    def _new_manager(self) -> LiveManager:
        manager = LiveManager(self._around)
        for kept in self._kept:
            manager.register_state_dict_fn(*kept)
        return manager

    def _successor(self) -> LiveManager:
        """Create a manager with new connections that continues from the former one's state."""
        self._manager.group.abort()
        manager = self._new_manager()
        manager.load_state_dict(self._manager.state_dict())
        return manager

    def _patiently(self, call: Callable[[], Any]) -> Any:
        """Retry a call that needs the lighthouse until it succeeds."""
        deadline = time.monotonic() + settings.LIGHTHOUSE_AWAY_S
        while True:
            try:
                return call()
            except (TimeoutError, RuntimeError, OSError) as error:
                if time.monotonic() > deadline:
                    raise LighthouseGone(
                        f"The lighthouse at {self._around.lighthouse} did not answer for"
                        f" {settings.LIGHTHOUSE_AWAY_S:.0f} s: {error}"
                    ) from error
                time.sleep(_RETRY_S)

    def _tell(self) -> None:
        """Store the participating ranks for mc.rank(); print a message if ranks left or joined."""
        members, before = self._manager.members, self._members
        if members == before:
            return
        self._members = members
        os.environ[settings.LIVE_RANK] = str(members.index(self._around.rank))
        sending.begin()
        os.environ[settings.LIVE_WORLD_SIZE] = str(len(members))
        if before and members[0] == self._around.rank:
            print(membership_sentence(before, members, self.step), file=sys.stderr, flush=True)  # noqa: T201


def membership_sentence(before: tuple[int, ...], now: tuple[int, ...], step: int) -> str:
    """Return a sentence with the ranks that left or joined, and the number that continue."""
    left = [f"rank {rank} is gone" for rank in before if rank not in now]
    came = [f"rank {rank} has joined" for rank in now if rank not in before]
    return f"{', '.join(left + came)}: {len(now)} go on after step {step}."


def _done(tensor: torch.Tensor) -> Future[torch.Tensor]:
    future: Future[torch.Tensor] = Future()
    future.set_result(tensor)
    return future


def settle() -> None:
    """Make the weights of ranks that train apart equal, if this process has such."""
    if session.cache_info().currsize:
        session().settle()


@functools.cache
def session() -> LiveSession:
    """Return this process's session."""
    return LiveSession(LiveSettings.from_environ())


# The first step of a fault-tolerant attempt waits for all ranks that were started with it.


def wait_for_all(around: LiveSettings) -> None:
    """Wait until all of the attempt's first ranks have started, for at most START_WAIT_S.

    Otherwise the fastest rank would take its first steps alone. A rank that starts later does not wait.
    """
    if around.joins or around.world_size == 1:
        return
    deadline = time.monotonic() + settings.START_WAIT_S
    try:
        store = TCPStore(*around.store, is_master=False, timeout=timedelta(seconds=5))
        store.add(_KEY, 1)
        while store.add(_KEY, 0) < around.world_size and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
    except (RuntimeError, OSError):
        # The store's node was lost: start with the present ranks.
        return
