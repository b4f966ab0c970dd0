"""The cost of tracking a cell's changes and of returning them, in one process without a network.

Ratios of this run. `load`: unpickling a cell's names with change tracking, against without it. `detect`:
finding changes, against one pass of the digest over the same bytes. `back`: writing a fully changed model and
applying it to the notebook's, against pickling and unpickling its state. `nodes`: the same for many small
objects, whose pickle costs little. All seconds are CPU time, so that other load does not change a ratio.
"""

from __future__ import annotations

import argparse
import gc
import pickle
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from parts.targets import Target, close

from minicluster.changes.applying import SentObjects
from minicluster.changes.digest import digest
from minicluster.changes.returning import ResultWriter, ReturnRequest
from minicluster.pickling.parts import inline_parts, to_out_of_band
from minicluster.pickling.pickling import ANY_TARGET, load_shared, loads, pack_names
from minicluster.results.result_file import ResultFile, write_result_file
from minicluster.results.results import read_result

SIDE = 1000
HEAD_BOUND_MB = 5.0
BOUNDS = {
    "load_ratio": 2.0,
    "detect_ratio": 2.5,
    "back_ratio": 2.5,
    "nodes_load_ratio": 20.0,
    "nodes_detect_ratio": 12.0,
}
JOB: Any = types.SimpleNamespace(id=1)


class Node:
    def __init__(self, number: int) -> None:
        self.number, self.next = number, [number]


@dataclass
class Cell:
    """A cell's names in the notebook and on the rank."""

    names: dict[str, Any]
    data: bytes
    sent: SentObjects

    @classmethod
    def of(cls, value: Any) -> Cell:
        names = vars(types.ModuleType("__main__"))
        names["value"] = value
        packed = pack_names({"value": value}, names, "The names", 1 << 40)
        data = inline_parts(packed.data, ((part.at, part.data) for part in packed.parts))
        return cls(names, data, SentObjects(packed.shared, {"value": value}, names))

    def untracked(self) -> dict[str, Any]:
        return loads(self.data, vars(types.ModuleType("__main__")))

    def tracked(self) -> tuple[dict[str, Any], ResultWriter]:
        space = vars(types.ModuleType("__main__"))
        names, known = load_shared(
            to_out_of_band(self.data, (), memoryview), self.sent.shared.shared(), space, False
        )
        space.update(names)
        return space, ResultWriter(known, space, ANY_TARGET)

    def write(self, path: Path, back: ResultWriter) -> None:
        write_result_file(path, back, ReturnRequest([], limit_bytes=1 << 40))

    def put(self, path: Path) -> None:
        with path.open("rb") as file:
            read_result(ResultFile(file), JOB, self.names, self.sent).put(self.names, self.names.update)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=400, help="of the model")
    parser.add_argument("--nodes", type=int, default=100_000, help="small objects")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the median counts")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
        path = Path(folder) / "result"
        found = {**of_model(given.mb, given.rounds, path), **of_nodes(given.nodes, given.rounds)}
    head_mb = found.pop("head_mb")
    bounds = [Target(name, value, BOUNDS[name]) for name, value in found.items()]
    close([*bounds, Target("head_mb", head_mb, HEAD_BOUND_MB)])


def seconds(step: Callable[[], Any]) -> float:
    gc.collect()
    start = time.process_time()
    step()
    return time.process_time() - start


def median_s(name: str, rounds: int, step: Callable[[], Any]) -> float:
    taken = median(seconds(step) for _ in range(rounds))
    print(f"{name}: {taken * 1000:.0f} ms")
    return taken


def of_model(mb: int, rounds: int, path: Path) -> dict[str, float]:
    # A matrix has 4 bytes for each number.
    layers = mb * 1_000_000 // (4 * SIDE * SIDE)
    model = torch.nn.ParameterList(torch.randn(SIDE, SIDE) for _ in range(layers))
    cell = Cell.of(model)
    plain = median_s("model, load", rounds, cell.untracked)
    tracked = median_s("model, tracked load", rounds, cell.tracked)
    one_pass = median_s("model, digest", rounds, lambda: [digest(it.detach().numpy()) for it in model])
    space, back = cell.tracked()
    detect = median_s("model, detection", rounds, back._tracker.changed)
    state = model.state_dict()
    pickled = median_s("model, pickle there and back", rounds, lambda: pickle.loads(pickle.dumps(state, 5)))
    return {
        "load_ratio": tracked / plain,
        "detect_ratio": detect / one_pass,
        "head_mb": head_mb(cell, space, back, path),
        "back_ratio": back_s(model, path, rounds) / pickled,
    }


def head_mb(cell: Cell, space: dict[str, Any], back: ResultWriter, path: Path) -> float:
    """Return how many MB are returned if one layer changed."""
    with torch.no_grad():
        space["value"][0].add_(1)
    print(f"model, one layer back: {1000 * seconds(lambda: cell.write(path, back)):.0f} ms")
    size = path.stat().st_size / 1e6
    print(f"model, one layer put: {1000 * seconds(lambda: cell.put(path)):.0f} ms")
    assert torch.equal(cell.names["value"][0], space["value"][0])
    return size


def back_s(model: Any, path: Path, rounds: int) -> float:
    """Return the seconds to write, read and apply a model that a cell changed fully."""
    taken = []
    for _ in range(rounds):
        cell = Cell.of(model)
        space, back = cell.tracked()
        with torch.no_grad():
            for layer in space["value"]:
                layer.add_(1)
        taken.append(seconds(lambda c=cell, b=back: (c.write(path, b), c.put(path))))
    print(f"model, all of it back: {1000 * median(taken):.0f} ms")
    return median(taken)


def of_nodes(count: int, rounds: int) -> dict[str, float]:
    cell = Cell.of([Node(number) for number in range(count // 2)])
    pickled = pickle.dumps(cell.names["value"], 5)
    plain = median_s("nodes, load", rounds, lambda: pickle.loads(pickled))
    tracked = median_s("nodes, tracked load", rounds, cell.tracked)
    _, back = cell.tracked()
    detect = median_s("nodes, detection", rounds, back._tracker.changed)
    return {"nodes_load_ratio": tracked / plain, "nodes_detect_ratio": detect / plain}


if __name__ == "__main__":
    main()
