"""The process of a custom policy: it loads a file or an entry point, then answers snapshots with plans.

scheduling.own defines the form of the file. A policy that takes too long is interrupted, so that the answer
names the line. Its output is sent with the answers.
"""

from __future__ import annotations

import io
import linecache
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from minicluster_hub.policy.confine import confine
from minicluster_hub.policy.link import LinkLost, receive, send
from minicluster_hub.policy.messages import plan_to_json, snapshot_from_json
from minicluster_hub.policy.policy_files import ENTRY_POINTS, path_of
from minicluster_hub.scheduling.own import CustomPlan, PolicyFailed, policy_in
from minicluster_hub.support.processes import die_with_parent

PRINTED_CHARS = 4000
"""Most characters of a policy's output in one answer."""
_MOST_LINES = 3


class Overdue(BaseException):
    """A request took too long. Not an Exception, so that few policies catch it."""


class Printed(io.TextIOBase):
    """Replaces standard output, and stores the first PRINTED_CHARS."""

    def __init__(self) -> None:
        self._text = ""

    def write(self, text: str, /) -> int:
        self._text += text[: PRINTED_CHARS - len(self._text)]
        return len(text)

    def take(self) -> str:
        text, self._text = self._text, ""
        return text


class PolicyProcess:
    """link: to the job service. folder: of the lab's policies."""

    def __init__(self, link: socket.socket, folder: Path | None) -> None:
        self._link = link
        self._folder = folder
        self._printed = Printed()
        sys.stdout = sys.stderr = self._printed

    def run(self) -> None:
        """Answer until the link closes."""
        try:
            if loaded := self._answer(lambda asked: self._load(asked["load"])):
                while True:
                    self._answer(
                        lambda asked: (None, plan_to_json(loaded.plan(snapshot_from_json(asked["plan"]))))
                    )
        except (LinkLost, OSError):
            return

    def _load(self, asked: Mapping[str, Any]) -> tuple[CustomPlan, dict[str, Any]]:
        name = asked["name"]
        path = path_of(self._folder, name) if self._folder else None
        found = module_of(name, path.read_text("utf-8")) if path else _installed(name)
        policy = policy_in(found, asked["options"])
        return policy, {"moves_running": policy.preemptive, "elastic": policy.elastic}

    def _answer(self, make: Callable[[Any], tuple[CustomPlan | None, dict[str, Any]]]) -> CustomPlan | None:
        """Answer the next request with the result of `make`, or with its error and the lines at fault."""
        asked = receive(self._link)
        made, limit_s = None, asked["limit_s"]
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            made, answer = make(asked)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except PolicyFailed as error:
            answer = {"error": str(error)}
        except Overdue as error:
            answer = {"error": f"it took longer than {limit_s:g} s{_where(error)}"}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}{_where(error)}"}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        send(self._link, {**answer, "number": asked["number"], "printed": self._printed.take()})
        return made


def main() -> None:
    folder = Path(sys.argv[3]) if sys.argv[3] else None
    process = PolicyProcess(socket.socket(fileno=int(sys.argv[1])), folder)
    signal.signal(signal.SIGALRM, _interrupt)
    _discard_output()
    confine(folder)
    die_with_parent(int(sys.argv[2]))
    process.run()


def _discard_output() -> None:
    """Discard output that bypasses sys.stdout: it would fill the service's log."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Overdue


def _installed(name: str) -> object:
    """Load the entry point with that name. Raises PolicyFailed, and errors of its import."""
    found = [point for point in entry_points(group=ENTRY_POINTS) if point.name == name]
    if not found:
        raise PolicyFailed(f"there is no {name}.py in the policies' folder, and no package brings {name}")
    return found[0].load()


def module_of(name: str, source: str) -> ModuleType:
    module, path = ModuleType(name), f"<policy {name}>"
    linecache.cache[path] = len(source), None, source.splitlines(keepends=True), path
    sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102 - that is what this process is for
    return module


def _where(error: BaseException) -> str:
    """Return the last lines of the policy's own files in the traceback."""
    if isinstance(error, SyntaxError):
        return f" (line {error.lineno}: {(error.text or '').strip()})"
    ours = (str(Path(__file__).parents[1]), str(Path(os.__file__).with_name("importlib")), "<frozen ")
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(ours)]
    frames = [one for one in frames if one.filename.startswith("<policy ")] or frames
    lines = [
        f"{'' if one.filename.startswith('<policy ') else f'{Path(one.filename).name}, '}"
        f"line {one.lineno} in {one.name}: {one.line}"
        for one in frames[-_MOST_LINES:]
    ]
    return f" ({'; '.join(lines)})" if lines else ""


if __name__ == "__main__":
    main()
