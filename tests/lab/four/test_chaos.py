"""For some minutes, one thing after the other befalls a cluster that trains: it goes on, and nothing is left.

Longer by hand: MINICLUSTER_CHAOS_S=3600. The same again: MINICLUSTER_SEED.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

from ..faults.chaos import Chaos, Tally
from ..faults.jobs import Jobs
from ..faults.recovering import training

CHAOS_S = float(os.environ.get("MINICLUSTER_CHAOS_S", "120"))
SEED = int(os.environ.get("MINICLUSTER_SEED", str(random.randrange(1 << 30))))
pytestmark = [
    pytest.mark.timeout(1500 + CHAOS_S),
    pytest.mark.alone("how soon the product reacts"),
    pytest.mark.apart("it makes machines of its own"),
]


def test_whatever_befalls_it_the_training_goes_on(jobs: Jobs, say: Callable[[str], None]) -> None:
    say(f"MINICLUSTER_SEED={SEED} MINICLUSTER_CHAOS_S={CHAOS_S:g}")
    tally = Tally()
    try:
        with training(jobs, timeout_s=None) as job:
            until = time.monotonic() + CHAOS_S
            chaos = Chaos(jobs, job, random.Random(SEED), tally, say)
            while time.monotonic() < until:
                chaos.one_more()
    finally:
        say(tally.table().replace("\n", "\n  "))
    assert tally.faults
