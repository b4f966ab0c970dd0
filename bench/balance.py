"""`--balance` with two fast and two slow cards, against the sum of the speeds that each has alone.

Four ranks on this machine, whose cards are simulated by a time for each sample in which the rank sleeps: the
cores of one machine could not be four cards of their own. The ranks' own work (loading, averaging, sharing)
is real, and shares the cores. Equal shares are the peer. Prints one line per target.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from parts.targets import Target, close

CARD = Path(__file__).parent / "peers" / "balance_rank.py"
FAST_S, SLOW_S = 0.004, 0.010
"""Seconds of the two kinds of cards for a sample."""
CARDS = (FAST_S, SLOW_S, FAST_S, SLOW_S)
STEPS, LAST = 40, 20
ALONE_STEPS, ALONE_LAST = 9, 6
SUM_BOUND = 0.95
GAIN_BOUND = 1.5


def main() -> None:
    alone = [speed([card], ALONE_STEPS, ALONE_LAST) for card in CARDS]
    equal = speed(CARDS, STEPS, LAST)
    balanced = speed(CARDS, STEPS, LAST, "--balance")
    print(f"alone: {', '.join(f'{one:.1f}' for one in alone)} samples/s, together {sum(alone):.1f}")
    print(f"equal shares: {equal:.1f} samples/s, {equal / sum(alone):.3f} of the sum")
    print(f"--balance: {balanced:.1f} samples/s, {balanced / sum(alone):.3f} of the sum\n")
    close(
        [
            Target("balanced_of_sum", balanced / sum(alone), SUM_BOUND, at_most=False),
            Target("balanced_of_equal", balanced / equal, GAIN_BOUND, at_most=False),
        ]
    )


def speed(cards: list[float] | tuple[float, ...], steps: int, last: int, *words: str) -> float:
    """Return how many samples a second cards train on together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(CARD)]
    ranks = [
        subprocess.Popen(
            [*command, str(card), str(steps), str(last), *words],
            env={**os.environ, **places(rank, len(cards), port)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, card in enumerate(cards)
    ]
    try:
        printed = [rank.communicate(timeout=600)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"{CARD.name} failed:\n" + "\n".join(printed))
    found = [json.loads(line) for line in printed]
    samples = sum(sum(one["shares"][-last:]) for one in found)
    return samples / last / max(one["step_s"] for one in found)


def places(rank: int, count: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }


if __name__ == "__main__":
    main()
