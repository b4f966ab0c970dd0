"""Kills at random moments of a job's life, and what its ranks must have done meanwhile."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

KILLS = int(os.environ.get("MINICLUSTER_KILLS", "2"))
"""How many jobs of each kind have their moment; 30 by hand."""
SEED = int(os.environ.get("MINICLUSTER_SEED", str(random.randrange(1 << 30))))


@dataclass
class Away:
    """When something was not there."""

    since: float = 0
    until: float = 0


@contextmanager
def struck(strike: Callable[[], None], moment_s: float) -> Iterator[Away]:
    """Kill something and bring it back, some time into what is done meanwhile; tell when, afterwards."""
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
    """Ranks that were in the middle when something was killed did steps before it was back."""
    for times in steps:
        if times[0] < away.since and times[-1] > away.until:
            assert any(away.since < at < away.until for at in times), (away, times)
