"""What a rank holds of a divided model, against plain DDP in the same run: on Gloo, with 2 and 4 ranks.

Weights, gradients and Adam's state are counted as bytes of tensors; the growth of a rank's own memory is
printed beside them. Prints a table, and one line per target.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from parts.targets import Target, close

PEER = Path(__file__).parent / "peers" / "large_model_rank.py"
STRATEGIES = ("ddp", "fsdp", "tensor", "pipeline", "hybrid")
GROUP = 2
"""Ranks among which "hybrid" divides a model. The groups hold it as often as there are groups."""
SLACK = 1.05
"""Over an equal share: norms that tensor parallelism keeps whole, and stages that are not equally large."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=(2, 4))
    targets: list[Target] = []
    for ranks in parser.parse_args().ranks:
        found = {strategy: trained(strategy, ranks) for strategy in STRATEGIES}
        whole = found["ddp"]
        for strategy, one in found.items():
            shown = f"{one['state'] / 1e6:7.1f} MB state, {one['growth'] / 1e6:7.1f} MB grown"
            print(f"{ranks} ranks, {strategy:8}: {shown}, {one['step_s'] * 1000:6.0f} ms a step", flush=True)
            if strategy != "ddp":
                parts = GROUP if strategy == "hybrid" else ranks
                ratio = one["state"] / whole["state"] * parts
                targets.append(Target(f"state_{strategy}_{ranks}_of_an_equal_share", ratio, SLACK))
                grown = one["growth"] / whole["growth"]
                targets.append(Target(f"growth_{strategy}_{ranks}_of_ddps", grown, 0.5 + 0.5 / parts))
    close(targets)


def trained(strategy: str, ranks: int) -> dict[str, float]:
    """Train on some ranks; return the largest figures of any of them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, str(PEER), strategy, str(GROUP)]
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **places, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if failed := [rank for rank, process in enumerate(processes) if process.returncode]:
        sys.exit(f"{strategy} on {ranks} ranks: ranks {failed} failed, see above.")
    answers: list[dict[str, Any]] = [json.loads(output) for output in outputs]
    return {name: max(answer[name] for answer in answers) for name in answers[0]}


if __name__ == "__main__":
    main()
