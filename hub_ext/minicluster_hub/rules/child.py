"""The process of a lab's own policy: it loads a file or an entry point, then answers snapshots.

What the file may hold: see scheduling.own. What it prints goes into the service's log. It may start no
processes and has so much memory; what takes too long is interrupted, so that the answer names the line.
"""

from __future__ import annotations

import json
import linecache
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from minicluster_hub.processes import die_with_parent
from minicluster_hub.scheduling.own import OwnPlan, PolicyFailed, policy_in

MEMORY_BYTES = 2 << 30
GROUP = "minicluster.policies"
_PROCESSES = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "subprocess.Popen",
}
_MOST_LINES = 3


class Overdue(BaseException):
    """The question took too long. No Exception, so that few policies catch it."""


def main() -> None:
    die_with_parent(int(sys.argv[2]))
    sys.stdout = sys.stderr
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    sys.addaudithook(_start_nothing)
    signal.signal(signal.SIGALRM, _interrupt)
    link, loaded = Connection(int(sys.argv[1])), list[OwnPlan]()
    try:
        _answer(link, lambda asked: _load(asked, loaded))
        while loaded:
            _answer(link, lambda snapshot: _as_json(loaded[0].plan(snapshot)))
    except (EOFError, OSError):
        return


def _start_nothing(event: str, _arguments: object) -> None:
    if event in _PROCESSES:
        raise PermissionError("a policy may start no process")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Overdue


def _load(asked: Mapping[str, Any], loaded: list[OwnPlan]) -> dict[str, Any]:
    sys.path[:] = asked["path"]
    name = asked["name"]
    if asked["source"] is None:
        found = EntryPoint(name, asked["entry"], GROUP).load()
    else:
        found = module_of(name, asked["source"])
    loaded.append(policy_in(found, asked["options"]))
    return {"moves_running": loaded[0].moves_running, "elastic": loaded[0].elastic}


def module_of(name: str, source: str) -> ModuleType:
    module, path = ModuleType(name), f"<policy {name}>"
    linecache.cache[path] = len(source), None, source.splitlines(keepends=True), path
    sys.modules[name] = module
    exec(compile(source, path, "exec"), module.__dict__)  # noqa: S102 - that is what the child is for
    return module


def _as_json(plan: Any) -> dict[str, Any]:
    grants = [[grant.job_id, grant.chunks] for grant in plan.grants]
    return {"grants": grants, "again_at": plan.again_at, "in_turn": plan.in_turn, "kept": plan.kept}


def _answer(link: Connection, make: Callable[[Any], dict[str, Any]]) -> None:
    """Send what `make` makes of the next question, or its error with the lines where it was raised."""
    number, limit_s, question = link.recv()
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        told = make(question)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except PolicyFailed as error:
        told = {"error": str(error)}
    except Overdue as error:
        told = {"error": f"it took longer than {limit_s:g} s{_where(error)}"}
    except Exception as error:
        told = {"error": f"{type(error).__name__}: {error}{_where(error)}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    link.send_bytes(json.dumps({**told, "number": number}).encode())


def _where(error: BaseException) -> str:
    """Return the last lines of the policy's own files that led there."""
    if isinstance(error, SyntaxError):
        return f" (line {error.lineno}: {(error.text or '').strip()})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    own = [frame for frame in frames if frame.filename.startswith("<policy ")] or frames
    lines = [
        f"{_of(frame.filename)}line {frame.lineno} in {frame.name}: {frame.line}"
        for frame in own[-_MOST_LINES:]
    ]
    return f" ({'; '.join(lines)})" if lines else ""


def _is_own(filename: str) -> bool:
    """Whether a file is neither of this package nor what imports others."""
    return not filename.startswith(
        (str(Path(__file__).parents[1]), str(Path(os.__file__).with_name("importlib")), "<f")
    )


def _of(filename: str) -> str:
    return "" if filename.startswith("<policy ") else f"{Path(filename).name}, "


if __name__ == "__main__":
    main()
