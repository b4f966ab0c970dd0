"""For some minutes, one thing after the other befalls a cluster that trains: it goes on, and nothing is left.

Longer by hand: MINICLUSTER_CHAOS_S=3600. The same again: MINICLUSTER_SEED.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from .chaos import Chaos, Tally
from .cluster import Images, LabCluster
from .faults import WITHIN_S, Jobs, administrator, check_nothing_of_jobs_left
from .machines import Lab
from .machines.processes import wait_for
from .recovering import training

CHAOS_S = float(os.environ.get("MINICLUSTER_CHAOS_S", "300"))
SEED = int(os.environ.get("MINICLUSTER_SEED", str(random.randrange(1 << 30))))
pytestmark = pytest.mark.timeout(1500 + CHAOS_S)


@pytest.fixture
def jobs(images: tuple[str, ...], say: Callable[[str], None]) -> Iterator[Jobs]:
    """A cluster of four machines: one for the platform, three for the training."""
    say("four machines, and a cluster on them")
    with Lab.fresh(gpus=(2, 2, 2, 2)) as lab:
        cluster = LabCluster(lab, Images(*(lab.load(image) for image in images)))
        cluster.up("--service-option=--MiniclusterHub.keep_warm_s=5")
        cluster.join()
        with administrator(cluster) as found:
            wait_for(found.is_idle, "four idle nodes", WITHIN_S, 0.5)
            yield found
            wait_for(found.is_idle, f"all slots to be free again: {found.nodes()}", WITHIN_S, 0.5)
        check_nothing_of_jobs_left(cluster)


def test_whatever_befalls_it_the_training_goes_on(jobs: Jobs, say: Callable[[str], None]) -> None:
    say(f"MINICLUSTER_SEED={SEED} MINICLUSTER_CHAOS_S={CHAOS_S:g}")
    tally, until = Tally(), time.monotonic() + CHAOS_S
    try:
        with training(jobs, timeout_s=None) as job:
            chaos = Chaos(jobs, job, random.Random(SEED), tally, say)
            while time.monotonic() < until:
                chaos.one_more()
    finally:
        say(tally.table().replace("\n", "\n  "))
    assert tally.faults
