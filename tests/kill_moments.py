"""Kills a component at random moments of a job, and checks that the ranks went on meanwhile."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

KILLS = int(os.environ.get("MINICLUSTER_KILLS", "2"))
"""Number of kills for each kind of job; use 30 for a thorough run."""
SEED = int(os.environ.get("MINICLUSTER_SEED", str(random.randrange(1 << 30))))


@dataclass
class Away:
    """The time span in which the killed component was away."""

    since: float = 0
    until: float = 0


@contextmanager
def struck(strike: Callable[[], None], moment_s: float) -> Iterator[Away]:
    """`moment_s` into the block, call `strike`, which kills and restarts something; yield the time span."""
    away, trouble = Away(), []

    def at_its_moment() -> None:
        time.sleep(moment_s)
        away.since = time.time()
        try:
            strike()
        except BaseException as error:
            trouble.append(error)
        away.until = time.time()

    striking = threading.Thread(target=at_its_moment)
    striking.start()
    try:
        yield away
    finally:
        striking.join()
        if trouble:
            raise trouble[0]


def check_went_on(steps: Iterable[Sequence[float]], away: Away) -> None:
    """Check that ranks that ran before and after the time span also did steps during it."""
    for times in steps:
        if times[0] < away.since and times[-1] > away.until:
            assert any(away.since < at < away.until for at in times), (away, times)
