"""Elastic SRTF: each job gets its minimum, those that end soonest first, then one more each in turn.

The remaining time is that on the minimum, so that a job's present size does not change its rank.
Elastic shortest-remaining-time as in Voda (2021), after Hwang et al., "Elastic Resource Sharing for
Distributed Deep Learning" (AFS), NSDI 2021: short jobs and jobs that use more slots well come first.
"""

from __future__ import annotations

from minicluster_hub.scheduling.base import JobView, Plan, Snapshot
from minicluster_hub.scheduling.planning.estimates import likely_remaining_s, overtaken_at
from minicluster_hub.scheduling.planning.moments import movable
from minicluster_hub.scheduling.planning.sharing import Sharing, elastic


class ElasticSrtf(Sharing):
    __slots__ = ()

    def plan(self, snapshot: Snapshot) -> Plan:
        now = snapshot.now

        def left_s(job: JobView) -> float:
            return likely_remaining_s(job, now, self.unknown_s)

        order = sorted(elastic(snapshot), key=lambda job: (left_s(job), job.submit_order))
        moments = overtaken_at(movable(snapshot), map(left_s, snapshot.waiting), now, self.unknown_s)
        return self.share(snapshot, order, moments)
