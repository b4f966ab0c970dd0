"""A model of 400 MB to three ranks and back, on one machine and on three hosts: against link and memory.

One machine: a kernel, the hub's proxy, the job service, agents, ranks. Three hosts: network namespaces with
limited cables; kernel, service and the first node on one of them, which sends the model once to each of the
two others over its cable. Seconds are those that a cell takes longer than the same cell without a model.
Their limits are measured in this run: `memory` is one pass of SHA-256, by which a value is found again, and
one copy; `link` is the same bytes over as many bare TCP connections. The three hosts share this machine's
cores.
Prints one line per target. Needs root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from notebook import Notebook, running_cluster
from parts.hosts_notebook import MODEL, SIDE
from parts.targets import Target, close
from parts.three_hosts import HOSTS, Hosts, three_hosts

from minicluster.pickling.parts import PicklePart, digests

PARTS = Path(__file__).parent / "parts"
RATES_GBIT = (1.0, 10.0)
SPEED_BOUND = 0.9
"""Of the link's or the memory's."""
SENT_BOUND, AGAIN_BOUND, BACK_BOUND = 1.02, 0.01, 1.05
WHY_ONE_MACHINE_IS_SHORT = (
    "a kernel hands a model to the service by HTTP through the hub's proxy: "
    "these three processes hash it twice and copy it several times"
)
WHY_THREE_HOSTS_ARE_SHORT = (
    "a layer crosses the link when the service has all of it, and all hosts share "
    "this machine's {cores} cores, which hash a model five times and copy it to and from sockets"
)
NOTHING = "import time\ndone = time.time()"
READ = "import time\nassert len(model)\ndone = time.time()"
LAYER_BYTES = 4 * SIDE * SIDE

Round = dict[str, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=400, help="of the model")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the best counts")
    parser.add_argument("--rates", type=float, nargs="*", default=RATES_GBIT, help="of the links, in Gbit/s")
    given = parser.parse_args()
    targets = [one_machine(given.mb, given.rounds)]
    with three_hosts() as hosts:
        found = {rate: on_hosts(hosts, rate, given.mb, given.rounds) for rate in given.rates}
    targets += [target for _, target in found.values()]
    rounds = [one for some, _ in found.values() for one in some]
    close([*targets, *(of_bytes(rounds, given.mb * 1_000_000) if rounds else ())])


def one_machine(mb: int, rounds: int) -> Target:
    with (
        tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder,
        running_cluster(Path(folder)) as cluster,
    ):
        found = asyncio.run(measure(cluster, mb, rounds))
    took_s, limit_s = (min(one) for one in zip(*found, strict=True))
    print(f"one machine: {took_s:.2f} s, memory {limit_s:.2f} s")
    value = limit_s / took_s
    return Target("to_ranks_one_machine", value, SPEED_BOUND, False, WHY_ONE_MACHINE_IS_SHORT)


async def measure(cluster: Any, mb: int, rounds: int) -> list[tuple[float, float]]:
    """Return the seconds of each round, and the memory's."""
    async with cluster.notebook() as notebook:
        await notebook.time_cell(HOSTS, NOTHING)
        return [(await send_s(notebook, mb), memory_s(mb)) for _ in range(rounds)]


async def send_s(notebook: Notebook, mb: int) -> float:
    await notebook.run(MODEL.format(side=SIDE, layers=mb * 1_000_000 // LAYER_BYTES))
    nothing = await notebook.time_cell(HOSTS, NOTHING)
    first = await notebook.time_cell(HOSTS, READ)
    return first.done_s - nothing.done_s


def memory_s(mb: int) -> float:
    """Return the seconds of one pass of SHA-256 over a model's layers, on all cores, and of one copy."""
    layers = [torch.rand(SIDE, SIDE) for _ in range(mb * 1_000_000 // LAYER_BYTES)]
    to = [torch.zeros(SIDE, SIDE) for _ in layers]
    began = time.perf_counter()
    digests([PicklePart(0, memoryview(layer.numpy()).cast("B")) for layer in layers])
    for layer, copy in zip(layers, to, strict=True):
        copy.copy_(layer)
    return time.perf_counter() - began


def on_hosts(hosts: Hosts, gbit: float, mb: int, rounds: int) -> tuple[list[Round], Target]:
    hosts.set_rate(gbit * 1000)
    link_s = min(bare_link_s(hosts, mb) for _ in range(rounds))
    words = (",".join(map(hosts.space, range(HOSTS))), hosts.address(0), str(mb), str(rounds))
    command = hosts.command(0, PARTS / "hosts_notebook.py", words)
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1800).stdout
    found: list[Round] = [json.loads(one[6:]) for one in printed.splitlines() if one.startswith("ROUND ")]
    took_s = min(one["first"]["done_s"] - one["nothing"]["done_s"] for one in found)
    print(f"three hosts, {gbit:g} Gbit/s: {took_s:.2f} s, link {link_s:.2f} s")
    for name in ("again", "one", "all"):
        print(f"  {name}: {statistics.median(one[name]['back_s'] for one in found):.2f} s")
    name, value = f"to_ranks_three_hosts_{gbit:g}gbit", link_s / took_s
    return found, Target(name, value, SPEED_BOUND, False, WHY_THREE_HOSTS_ARE_SHORT)


def bare_link_s(hosts: Hosts, mb: int) -> float:
    """Return the seconds in which the first host sends `mb` to each of the others over bare TCP."""
    return max(float(line) for line in hosts.run(PARTS / "bare_link.py", (str(mb),)) if line.strip())


def of_bytes(rounds: list[Round], size_bytes: int) -> list[Target]:
    """Return the targets that do not depend on time; the worst round counts."""
    others = HOSTS - 1
    return [
        Target("sent_bytes_per_node", worst(rounds, "first", "sent_bytes") / others / size_bytes, SENT_BOUND),
        Target("sent_again_bytes", worst(rounds, "again", "sent_bytes") / others / size_bytes, AGAIN_BOUND),
        Target("back_changed_bytes", worst(rounds, "one", "back_bytes") / LAYER_BYTES, BACK_BOUND),
        Target("back_all_bytes", worst(rounds, "all", "back_bytes") / size_bytes, BACK_BOUND),
        Target("back_unchanged_bytes", worst(rounds, "again", "back_bytes") / size_bytes, AGAIN_BOUND),
    ]


def worst(rounds: list[Round], cell: str, what: str) -> float:
    return max(one[cell][what] for one in rounds)


if __name__ == "__main__":
    main()
