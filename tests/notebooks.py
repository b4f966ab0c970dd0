"""Runs the example notebooks through a real kernel, cell by cell, and checks what they promise.

The same checks hold on one machine (tests/hub) and on three hosts (tests/lab).
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode

from minicluster_hub.launch.kernel import KernelConnection

EXPERIMENT = "cinic10.ipynb"
FEW_PICTURES = "digits = {'train': 3, 'valid': 1, 'test': 2}"
"""Setting of the experiment: so many of each class, in place of some hundred in all."""
_AS_JSON = """
def as_json(it):
    import json

    table = hasattr(it, "to_json")
    return it.reset_index().to_json(orient="records") if table else json.dumps(it)
"""


def code_cells(tree: Path, name: str) -> list[NotebookNode]:
    notebook = nbformat.read(tree / "notebooks" / name, as_version=4)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


async def run_all(
    kernel: KernelConnection,
    tree: Path,
    name: str,
    settings: str = "",
    after: Callable[[NotebookNode], None] = lambda cell: None,
) -> list[NotebookNode]:
    """Run the notebook's cells in order; return those with code, with their outputs.

    settings: run after the cell with the tag `parameters`. after: called after each cell.
    """
    cells = code_cells(tree, name)
    for cell in cells:
        cell.outputs = await run_cell(kernel, cell.source)
        after(cell)
        if "parameters" in cell.metadata.get("tags", ()):
            await run_cell(kernel, settings)
    return cells


async def run_cell(kernel: KernelConnection, source: str) -> list[NotebookNode]:
    """Run a cell and return its outputs; fail if one is an error."""
    outputs = await kernel.run(source)
    errors = [output for output in outputs if output.output_type == "error"]
    assert not errors, f"{source}\n" + "\n".join(errors[0].traceback)
    return outputs


async def value(kernel: KernelConnection, expression: str) -> Any:
    """Return the value of an expression: plain Python, or rows of a pandas table."""
    await kernel.run(_AS_JSON)
    return json.loads(ast.literal_eval(await kernel.evaluate(f"as_json({expression})")))


def cell_with(cells: list[NotebookNode], text: str) -> NotebookNode:
    """Return the only cell whose source has this text."""
    (found,) = [cell for cell in cells if text in cell.source]
    return found


def shown(cell: NotebookNode, mime: str) -> str:
    """Return the first output of this kind."""
    found = [output.data[mime] for output in cell.outputs if mime in output.get("data", {})]
    assert found, f"no {mime} under:\n{cell.source}"
    return found[0]


def printed(cell: NotebookNode) -> str:
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def check_tables(cells: list[NotebookNode], *last_lines: str) -> None:
    """Check that cells with these last lines show a table."""
    for line in last_lines:
        (cell,) = [cell for cell in cells if cell.source.splitlines()[-1] == line]
        assert "<table" in shown(cell, "text/html")


def pictures(cells: list[NotebookNode]) -> int:
    return sum("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)


# --- the paper's experiment: cinic10.ipynb ---------------------------------------------------------


async def check_experiment(kernel: KernelConnection, cells: list[NotebookNode]) -> None:
    """Check the runs on one, two and three nodes, the table and the plot at the end."""
    runs = [await value(kernel, name) for name in ("one", "two", "three")]
    settings, digits = await value(kernel, "settings"), await value(kernel, "digits")
    network = "cinic10_data.MODELS[settings['model']](10).parameters()"
    gradient_bytes = await value(kernel, f"sum(each.nbytes for each in {network})")
    for ranks, run in enumerate(runs, start=1):
        assert run["ranks"] == ranks
        assert len(run["history"]) == settings["epochs"]
        assert run["history"][1]["loss"] != run["history"][0]["loss"]
        assert run["gradient_bytes"] == gradient_bytes
        # Each rank took its share of the pictures, and each held-out one was looked at once.
        assert run["steps"] == ceil(ceil(10 * digits["train"] / ranks) / settings["batch"])
        right = run["accuracy"] * 10 * digits["test"]
        assert right == pytest.approx(round(right))
        # A ring all-reduce sends 2 (n - 1) times the gradients per step; the counter must show at least this.
        least = 2 * (ranks - 1) * gradient_bytes * run["steps"]
        assert all(least <= epoch["sent"] for epoch in run["history"])
    lines = [line.strip("| ").split(" | ") for line in shown(cells[-2], "text/markdown").splitlines()]
    assert lines[0] == [
        *("nodes", "time per epoch", "images/s", "speed-up"),
        *("the paper's", "sent per epoch", "all-reduce", "accuracy"),
    ]
    assert [line[0] for line in lines[2:]] == ["1", "2", "3"]
    assert {line[4] for line in lines[2:]} == {"not published"}
    ring = [2 * (run["ranks"] - 1) * gradient_bytes * run["steps"] for run in runs]
    assert [line[6] for line in lines[2:]] == [f"{sent / 1e6:.0f} MB" for sent in ring]
    assert pictures(cells) == 1


# --- one mix of jobs, three policies: schedulearn.ipynb --------------------------------------------

SHORT_MIX = "rounds, size, device_s, gap_s = 1, 0.34, 0.01, 0.1"


async def check_policies(kernel: KernelConnection, cells: list[NotebookNode]) -> None:
    """Check that each policy ran the same jobs in the same order, and that the former one is active again."""
    mix = [job for job, *_ in await value(kernel, "mix")]
    rounds = await value(kernel, "rounds")
    jobs = await value(kernel, "jobs")
    policies = await value(kernel, "names")
    assert policies == ["fifo", "round_robin", "elastic_fifo"]
    for policy in policies:
        for number in range(rounds):
            of_run = [job for job in jobs if (job["policy"], job["round"]) == (policy, number)]
            assert [job["job"] for job in of_run] == mix
            submitted = [job["submitted"] for job in of_run]
            assert submitted == sorted(submitted) and submitted[0] == 0
            assert all(job["submitted"] <= job["started"] <= job["ended"] for job in of_run)

    found = {row["policy"]: row for row in await value(kernel, "middle")}
    assert all(row["makespan"] > row["turnaround"] > row["waited"] >= 0 for row in found.values())
    assert found["elastic_fifo"]["nodes"] < found["fifo"]["nodes"], "those that wait share the nodes"
    check_tables(cells, "shown")
    assert pictures(cells) == 2
    active = await value(kernel, "policy_trial.active()")
    assert active == await value(kernel, "before")


async def check_one_policy(kernel: KernelConnection, cells: list[NotebookNode]) -> None:
    """Check what somebody gets who may not choose: the run under the active policy, and who could choose."""
    told = printed(cell_with(cells, "POLICIES = {"))
    assert "custom:minicluster:policy" in told and "An administrator may choose the policy" in told
    assert await value(kernel, "names") == [(await value(kernel, "before"))["policy"]]
    check_tables(cells, "shown")
    assert pictures(cells) == 2


# --- where ranks are: placement.ipynb --------------------------------------------------------------

SHORT_TRAFFIC = "steps, width = 10, 256"


@dataclass(frozen=True)
class Traffic:
    """Bytes that ranks told ranks of other nodes, and those that a ring has to send, by placement."""

    between: dict[str, float]
    ring: dict[str, float]


async def check_traffic(kernel: KernelConnection, cells: list[NotebookNode]) -> Traffic:
    """Check the bytes between nodes of three placements, and the simulated ones."""
    names = {"spread": 3, "packed": 2, "one-node": 1}
    runs = await value(kernel, "runs")
    between = await value(kernel, "{name: between(run) for name, run in runs.items()}")
    ring = await value(kernel, "{name: of_a_ring(run) for name, run in runs.items()}")
    for name, nodes in names.items():
        assert len(runs[name]["nodes"]) == 6 and len(set(runs[name]["nodes"])) == nodes
        assert between[name] == pytest.approx(ring[name], rel=0.1), name
    assert between["one-node"] == 0 < between["packed"] < between["spread"]
    assert await value(kernel, "within(one_node)") > 0
    simulated = {row["placement"]: row for row in await value(kernel, "simulated")}
    traffic = {name: row["traffic, of spread"] for name, row in simulated.items()}
    assert traffic["locality"] < traffic["dltap"] < traffic["spread"] == 1
    check_tables(cells, "traffic", "simulated")
    assert pictures(cells) == 1
    return Traffic(between, ring)


async def check_nothing_to_choose(kernel: KernelConnection, cells: list[NotebookNode]) -> None:
    assert await value(kernel, "placed") == {}
    assert "A node has 1 slot here" in printed(cell_with(cells, "placed = {}"))


async def check_placed(kernel: KernelConnection) -> None:
    """Check where the scheduler put jobs of two ranks on nodes with two slots, of which one is held."""
    nodes = await value(kernel, "{way: run['nodes'] for way, run in placed.items()}")
    spans = {way: len(set(names)) for way, names in nodes.items()}
    assert list(spans) == ["spread", "pack", "dltap", "locality"]
    # The other two depend on which slots idle ranks of earlier cells still hold: free ones come first.
    assert (spans["spread"], spans["locality"]) == (2, 1), spans
    between = await value(kernel, "{way: between(run) for way, run in placed.items()}")
    sends = {way for way, count in between.items() if count > 0}
    assert sends == {way for way, names in nodes.items() if len(set(names)) > 1}, between


# --- a node is lost: fault_tolerance.ipynb ---------------------------------------------------------


async def check_losses(kernel: KernelConnection, cells: list[NotebookNode]) -> None:
    """Check what each training lost: one that goes on, one with snapshots, one with neither."""
    lost = {row["training"]: row for row in await value(kernel, "lost")}
    steps = await value(kernel, "steps")
    assert [row["steps that count"] for row in lost.values()] == [steps] * 3
    assert {name: row["attempts"] for name, row in lost.items()} == {
        **{"goes-on": 1, "from-snapshot": 2, "begins-anew": 2}
    }
    again = {name: row["steps done again"] for name, row in lost.items()}
    assert again["goes-on"] <= 1 < again["from-snapshot"] < again["begins-anew"]
    assert lost["goes-on"]["ranks"].startswith("2, least 1")
    history = [entry for _, *entry in (await value(kernel, "goes_on"))["history"]]
    assert {ranks for _, ranks in history} == {1, 2}
    check_tables(cells, "lost")
    assert pictures(cells) == 1


# --- large pictures: storm_images.ipynb ------------------------------------------------------------

FEW_STORMS = "settings, epochs, track_epochs = {**settings, 'storms': 100, 'photographed': 30}, 8, 15"


async def check_storms(kernel: KernelConnection, cells: list[NotebookNode], machines: int) -> None:
    """Check both networks against guesses without one, and that no node fetched anything twice."""
    first, again = [cell for cell in cells if cell.source.startswith("%distribute data push")]
    assert "0 bytes sent in 0 pieces" in shown(again, "text/plain"), first.outputs
    fetched = await value(kernel, "fetched")
    assert len({row["node"] for row in fetched}) == 3
    assert all(row["files"] > 100 and row["bytes fetched again"] == 0 for row in fetched)
    files = await value(kernel, "[list(files.values()) for _, files in first]")
    copies = {tuple(map(tuple, sorted(of_node))) for of_node in files}
    assert len(copies) == machines
    assert await value(kernel, "ranks") == 3
    centre = {row["index"]: row["km from the centre, median"] for row in await value(kernel, "centre")}
    assert centre["the network"] < centre["middle of the picture"] / 4
    *_, last = await value(kernel, "continuation")
    assert last["hours ahead"] == 48 and last["the network"] < last["the last step again"]
    assert await value(kernel, "served_tile") == await value(kernel, "own_tile")
    check_tables(cells, "fetched", "centre", "continuation")
    assert pictures(cells) == 2


# --- those that were there before ------------------------------------------------------------------


async def check_quickstart(kernel: KernelConnection, cells: list[NotebookNode]) -> None:
    assert await value(kernel, "ranks") == 3
    assert await value(kernel, "accuracy") > 0.95
    assert pictures(cells) == 1


async def check_fast_hands(kernel: KernelConnection, cells: list[NotebookNode]) -> None:
    assert await value(kernel, "accuracy") > 0.9
    predicted = cell_with(cells, "--dry-run").outputs
    assert any("Memory of a rank" in str(output.get("data", "")) for output in predicted)
