"""Microsoft's Philly clusters in 2017 (Jeon et al., ATC 2019): timestamp, duration, num_gpus, gpu_time,
cluster.

The trace names no users; a virtual cluster, which belonged to one group, stands for its owner.
"""

from __future__ import annotations

import re
from calendar import timegm
from csv import reader

from minicluster_hub.simulator.traces import Trace
from minicluster_hub.simulator.work import TracedJob


def read(trace: Trace) -> list[TracedJob]:
    """Leave out jobs that took no time at all."""
    rows = [row for row in list(reader(trace.text().splitlines()))[1:] if row and float(row[1]) > 0]
    moments = [_seconds(row[0]) for row in rows]
    first = min(moments, default=0)
    return [
        TracedJob(number, cluster, float(moment - first), float(duration), int(gpus), group=cluster)
        for number, (moment, (_, duration, gpus, _, cluster)) in enumerate(zip(moments, rows, strict=True))
    ]


def _seconds(stamp: str) -> int:
    """Return the seconds since the epoch of "2017-10-09 07:01:55"."""
    year, month, day, hour, minute, second = (int(part) for part in re.split("[- :]", stamp))
    return timegm((year, month, day, hour, minute, second))
