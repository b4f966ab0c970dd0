"""A notebook's namespace and a rank in another process; they exchange data without a cluster."""

from __future__ import annotations

import functools
import io
import json
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from minicluster.capture.cell import CellSource
from minicluster.capture.payload import LeftBehind
from minicluster.changes.applying import SentObjects
from minicluster.changes.continued_pickle import read_body
from minicluster.changes.returning import ResultWriter, ReturnRequest
from minicluster.changes.shared_objects import SharedObjects
from minicluster.pickling.parts import inline_parts, to_out_of_band
from minicluster.pickling.pickling import ANY_TARGET, load_shared, pack_names
from minicluster.results.result_file import ResultFile, write_result_file
from minicluster.results.results import Result, read_result
from minicluster.wire import Job

RANKS = """
import importlib, json, os, sys, traceback, types
from contextlib import suppress
from pathlib import Path
from minicluster.pickling.parts import OutOfBandPickle
from minicluster.pickling.pickling import load_shared, ANY_TARGET
from minicluster.capture.cell import CellSource
from minicluster.changes.returning import NOTHING, ResultWriter, ReturnRequest
from minicluster.results.result_file import write_result_file
for name in ("numpy", "torch"):
    with suppress(ImportError):
        importlib.import_module(name)

def run(folder):
    order = json.loads((folder / "order.json").read_text())
    sys.modules["__main__"] = types.ModuleType("__main__")
    namespace = vars(sys.modules["__main__"])
    cell = CellSource.parse(order["source"], "Cell In[1]")
    shared = (folder / "shared").read_bytes()
    given, known = load_shared(OutOfBandPickle((folder / "names").open("rb")), shared, namespace, False)
    namespace.update(given)
    back = ResultWriter(known, namespace, ANY_TARGET)
    exec(cell.body, namespace)
    value = eval(cell.value, namespace) if cell.value else NOTHING
    pull = order["pull"]
    names = cell.assigned if pull is None else pull
    wish = ReturnRequest(names, value, pull is not None, frozenset(given), order["limit"])
    write_result_file(folder / "result", back, wish)

for line in sys.stdin:
    if os.fork() == 0:
        try:
            run(Path(line.strip()))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""A process that imports torch once, and forks a rank for each folder name on its standard input."""
JOB: Any = SimpleNamespace(id=17)


class Ranks:
    """The process that forks a rank for each cell. It ends when its standard input closes."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", RANKS]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, folder: Path) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        stdin.write(f"{folder}\n")
        stdin.flush()
        assert stdout.readline() == "0\n", "the rank failed; its traceback stands above"


@functools.cache
def ranks() -> Ranks:
    return Ranks()


class Notebook:
    """A kernel's namespace, and a rank in another process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.module = types.ModuleType("__main__")
        self.names = vars(self.module)

    def cell(self, source: str) -> None:
        exec(source, self.names)

    def distribute(
        self, source: str, push: str = "", pull: list[str] | None = None, limit: int = 10**8
    ) -> Result:
        sent = self.send(source, push, pull, limit)
        result = self.read(sent)
        result.put(self.names, self.names.update)
        return result

    def send(
        self, source: str, push: str = "", pull: list[str] | None = None, limit: int = 10**8
    ) -> SentObjects:
        """Run a cell on the rank; it writes its result to a file."""
        names = {name: self.names[name] for name in push.split()}
        packed = pack_names(names, self.names, "The names")
        (self.folder / "names").write_bytes(packed.data)
        (self.folder / "shared").write_bytes(packed.shared.shared())
        sent = SentObjects(packed.shared, names, self.names)
        (self.folder / "order.json").write_text(json.dumps({"source": source, "pull": pull, "limit": limit}))
        ranks().run(self.folder)
        return sent

    def read(self, sent: SentObjects) -> Result:
        job: Job = JOB
        with self.result.open("rb") as file:
            return read_result(ResultFile(file), job, self.names, sent)

    @property
    def result(self) -> Path:
        return self.folder / "result"


def came_back(
    namespace: dict[str, Any], wish: ReturnRequest
) -> tuple[dict[str, Any], dict[str, Any], list[LeftBehind]]:
    """Write and read the result of a rank to which nothing was sent: names, value, objects left behind."""
    file = io.BytesIO()
    left = ResultWriter(SharedObjects({}), namespace, ANY_TARGET).write(file, wish)
    file.seek(0)
    body, _ = read_body(file, {}, False, None, {})
    return body["names"], body["value"], list(left)


def in_one_process(namespace: dict[str, Any], source: str, push: list[str]) -> Result:
    """Run a cell in a rank's namespace in this process, and apply its changes to the notebook's."""
    names = {name: namespace[name] for name in push}
    packed = pack_names(names, namespace, "The names")
    sent = SentObjects(packed.shared, names, namespace)
    rank: dict[str, Any] = vars(types.ModuleType("__main__"))
    data = inline_parts(packed.data, ((part.at, part.data) for part in packed.parts))
    given, known = load_shared(to_out_of_band(data, (), memoryview), packed.shared.shared(), rank, False)
    rank.update(given)
    back = ResultWriter(known, rank, ANY_TARGET)
    exec(source, rank)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result"
        write_result_file(
            path, back, ReturnRequest(CellSource.parse(source, "Cell In[1]").assigned, at_home=set(given))
        )
        with path.open("rb") as file:
            result = read_result(ResultFile(file), JOB, namespace, sent)
    result.put(namespace, namespace.update)
    return result
