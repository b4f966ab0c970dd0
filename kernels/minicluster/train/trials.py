"""The trial of a sweep that this rank runs: what it asks of the job service, and how it ends early.

A rank asks through its agent: a line on the pipe of `runtime.rank`, and a line back on another pipe. The job
service draws each parameter once and stores it, so that all ranks and all attempts get the same answer.

A pruned trial ends at the same call of mc.log on all ranks. The word comes to each node at another moment. So
the first rank that has it writes the number of its next call into the job's store, where all look at each
call. Ranks that train together exchange gradients between two calls, so none can be beyond that call by then.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Container, Mapping
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from minicluster.errors import MiniclusterError
from minicluster.train import place
from minicluster.wire.sweeps.trials import TrialRef

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

TRIAL, CONTROL_FD, ANSWERS_FD = "MINICLUSTER_TRIAL", "MINICLUSTER_CONTROL_FD", "MINICLUSTER_ANSWERS_FD"
"""Variables that `runtime.rank` sets for the cell."""
_LEAVE_AT = "minicluster-leave-at"
_STORE_WITHIN = timedelta(seconds=30)
_LEFT_WITHIN_S = 5.0
_READ_BYTES = 1 << 16


class TrialPruned(SystemExit):
    """The trial ends here: others were better by then. As sys.exit(0), it ends the cell without an error."""

    def __init__(self, message: str) -> None:
        super().__init__(0)
        self.message = message


class SuggestFailed(MiniclusterError):
    """A parameter cannot be drawn."""


class TrialChannel:
    """One rank's connection to its agent. Lines are JSON."""

    def __init__(self, control_fd: int, answers_fd: int) -> None:
        self._control_fd = control_fd
        self._answers_fd = answers_fd
        self._rest = b""
        self._answers: dict[int, dict[str, Any]] = {}
        self._asked = 0
        self._lock = threading.Lock()
        self.leave = False
        """Whether the agent said that the trial is pruned."""

    def ask(self, what: str, body: Mapping[str, Any], within_s: float | None = None) -> dict[str, Any] | None:
        """Send a question; return the answer, or None if none came in time."""
        until = None if within_s is None else time.monotonic() + within_s
        with self._lock:
            self._asked += 1
            number = self._asked
            question = {"event": "ask", "id": number, "what": what, "body": dict(body)}
            os.write(self._control_fd, json.dumps(question).encode() + b"\n")
            while number not in self._answers:
                left_s = None if until is None else max(0.0, until - time.monotonic())
                if not self._read(left_s):
                    return None
            return self._answers.pop(number)

    def look(self) -> None:
        """Take what the agent said by now."""
        with self._lock:
            while self._read(0.0):
                pass

    def _read(self, wait_s: float | None) -> bool:
        """Read once; return False if nothing came in time, or if the agent is gone."""
        if self._answers_fd < 0:
            return False
        readable, _, _ = select.select([self._answers_fd], [], [], wait_s)
        if not readable:
            return False
        data = os.read(self._answers_fd, _READ_BYTES)
        if not data:
            self._answers_fd = -1
            return False
        lines, _, self._rest = (self._rest + data).rpartition(b"\n")
        for line in lines.splitlines():
            message = json.loads(line)
            self.leave |= bool(message.get("leave"))
            if "id" in message:
                self._answers[message["id"]] = message
        return True


class LeaveAgreement:
    """At which call of mc.log all ranks leave. connect: opens the job's store, which all ranks reach."""

    def __init__(self, world_size: int, connect: Callable[[], TCPStore]) -> None:
        self._alone = world_size == 1
        self._connect = connect
        self._store: TCPStore | None = None

    def leave_now(self, call: int, told: bool) -> bool:
        """Return whether this rank leaves at this call. told: whether it knows that the trial is pruned."""
        if self._alone:
            return told
        try:
            self._store = store = self._store or self._connect()
            if told:
                # Answers once the store has it: a rank that looks later sees it.
                return call >= int(store.compare_set(_LEAVE_AT, "", str(call + 1)))
            return bool(store.check([_LEAVE_AT])) and call >= int(store.get(_LEAVE_AT))
        except RuntimeError:
            return False  # The store has ended, and with it the attempt.


class RunningTrial:
    """The trial of this process."""

    def __init__(self, ref: TrialRef, channel: TrialChannel, agreement: LeaveAgreement) -> None:
        self.ref = ref
        self.channel = channel
        self._agreement = agreement
        self._calls = 0
        self.pid = os.getpid()

    def logged(self, names: Container[str], step: float | None) -> None:
        """Take note of a call of mc.log. Raises TrialPruned if the trial ends here."""
        if self.ref.metric not in names or os.getpid() != self.pid:
            return
        self._calls += 1
        if not self.ref.prunes:
            return
        self.channel.look()
        if self._agreement.leave_now(self._calls, self.channel.leave):
            self._leave(step)

    def _leave(self, step: float | None) -> NoReturn:
        self.channel.ask("leave", {"call": self._calls, "step": step}, _LEFT_WITHIN_S)
        where = f"call {self._calls}" if step is None else f"step {step:g}"
        message = f"Trial {self.ref.number} is pruned at {where}: others were better by then."
        if place.rank() == 0:
            print(message, file=sys.stderr)  # noqa: T201
        raise TrialPruned(message)


@cache
def running_trial() -> RunningTrial | None:
    """Return this process's trial; None outside of a sweep."""
    with contextlib.suppress(KeyError, ValueError):
        ref = TrialRef.model_validate_json(os.environ[TRIAL])
        channel = TrialChannel(int(os.environ[CONTROL_FD]), int(os.environ[ANSWERS_FD]))
        return RunningTrial(ref, channel, LeaveAgreement(place.world_size(), _connect))
    return None


def _connect() -> TCPStore:
    from torch._C._distributed_c10d import TCPStore

    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(*address, is_master=False, timeout=_STORE_WITHIN)
