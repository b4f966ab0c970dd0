"""A lab's own policy: it runs in a process of its own, which is ended when it takes too long.

The child gets snapshots and answers in JSON: nothing of it is run, imported or unpickled here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from multiprocessing import Pipe
from typing import Any

from minicluster.wire import OptionValue
from minicluster_hub.scheduling.base import Grant, Plan, Snapshot
from minicluster_hub.scheduling.own import PolicyFailed, sound

START_S = 10.0
PLAN_S = 1.0
_GRACE_S = 0.5
"""For the child to say where it was interrupted, before it is ended."""
_PASSED_ON = ("PATH", "LANG", "PYTHONPATH", "VIRTUAL_ENV")
"""All of the service's variables that the child gets: its token is not among them."""
_FEW_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Each thread of theirs takes of the memory that there is for the child."""


class OwnPolicy:
    """The service's end of it. `load` before anything else; all but `close` takes its time.

    source: of a file; None: `entry` names the object of an installed package, as entry points do.
    Close it, or the child stays. From another thread, that ends what is being asked.
    """

    def __init__(
        self, name: str, options: Mapping[str, OptionValue], source: str | None, entry: str = ""
    ) -> None:
        self.moves_running = False
        self.elastic = False
        self._asked = {"name": name, "options": dict(options), "source": source, "entry": entry}
        self._number = 0
        self._overdue = False
        self._asking = threading.Lock()
        self._link, theirs = Pipe()
        environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        with theirs:
            self._child = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "minicluster_hub.rules.child",
                    f"{theirs.fileno()}",
                    f"{os.getpid()}",
                ],
                pass_fds=[theirs.fileno()],
                env={**environment, **_FEW_THREADS},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def load(self) -> None:
        """Load it in the child. Raises PolicyFailed with what is wrong with it."""
        told = self._ask({**self._asked, "path": [entry for entry in sys.path if entry]}, START_S)
        self.moves_running = bool(told["moves_running"])
        self.elastic = bool(told["elastic"])

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return the child's plan if it can be. Raises PolicyFailed."""
        told = self._ask(snapshot, PLAN_S)
        try:
            grants = tuple(Grant(job_id, chunks) for job_id, chunks in told["grants"])
            plan = Plan(grants, told["again_at"], told["in_turn"], told["kept"])
        except (KeyError, TypeError, ValueError) as error:
            raise PolicyFailed(f"its answer is no plan ({error})") from error
        return sound(snapshot, plan)

    def close(self) -> None:
        """End the child, with whatever it has started."""
        self._kill()
        self._child.wait()
        with self._asking:
            self._link.close()

    def _kill(self) -> None:
        if self._child.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _ask(self, question: object, limit_s: float) -> dict[str, Any]:
        """Return the answer. A child that does not give one is ended. Raises PolicyFailed."""
        self._number += 1
        watch = threading.Timer(limit_s + _GRACE_S, self._give_up)
        try:
            with self._asking:
                watch.start()
                self._link.send((self._number, limit_s, question))
                told = json.loads(self._link.recv_bytes(64 << 20))
        except (OSError, EOFError, ValueError) as error:
            self._kill()
            raise PolicyFailed(self._why_gone(error, limit_s)) from error
        finally:
            watch.cancel()
        if not isinstance(told, dict) or told.get("number") != self._number:
            raise PolicyFailed("its answer is no plan")
        if "error" in told:
            raise PolicyFailed(str(told["error"]))
        return told

    def _give_up(self) -> None:
        self._overdue = True
        self._kill()

    def _why_gone(self, error: Exception, limit_s: float) -> str:
        if self._overdue:
            return f"it took longer than {limit_s:g} s"
        if isinstance(error, ValueError):
            return "its answer is no plan"
        code = self._child.wait()
        how = f"with code {code}" if code >= 0 else f"by signal {-code}"
        return f"its process ended {how}"

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
