"""Forecasts when waiting jobs start, in a thread: it takes longer than a tick of the reconciler."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from math import ceil

from minicluster_hub.policy.active_policy import PolicyManager
from minicluster_hub.policy.custom_policy import CustomPolicy
from minicluster_hub.policy.simulations import Starts, forecast_starts
from minicluster_hub.scheduling.base import Placement, Policy
from minicluster_hub.scheduling.reservations.enforcement import Enforcement
from minicluster_hub.scheduling.reservations.excluding import excluding

PAUSE_S = 5.0
"""Least pause between two forecasts: the queue may change a hundred times a second."""
_RESTS = 3
"""Pause between forecasts, in multiples of the last one's time: a long queue costs seconds of CPU."""
_ROUNDED_TO_S = 60.0


class ForecastWorker:
    """`starts`: when waiting jobs are expected to start, in seconds since the epoch, where that is known.

    `latest`: the same if all jobs run to their time limits. `on_change`: called when `starts` changed.
    """

    def __init__(
        self, policy_manager: PolicyManager, on_change: Callable[[], None], log: logging.Logger
    ) -> None:
        self.starts: Starts = {}
        self.latest: Starts = {}
        self._policy_manager = policy_manager
        self._on_change = on_change
        self._log = log
        self._newest: Enforcement | None = None
        self._work: asyncio.Task[None] | None = None
        self._asked = asyncio.Lock()

    def update(self, enforced: Enforcement) -> None:
        """Forecast from what reservations leave free now; a newer call replaces one that has not begun."""
        self._newest = enforced
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._run())

    def close(self) -> None:
        if self._work is not None:
            self._work.cancel()

    async def once(self, enforced: Enforcement) -> tuple[Starts, Starts]:
        """Return the expected and the latest starts of a queue that nobody waits in. One call at a time."""
        policy, placement = self._policy_manager.policy, self._policy_manager.placement
        if isinstance(policy, CustomPolicy):
            return {}, {}
        async with self._asked:
            return await asyncio.to_thread(self._forecast, enforced, policy, placement)

    async def _run(self) -> None:
        while self._newest is not None:
            enforced, self._newest = self._newest, None
            policy, placement, began = (
                self._policy_manager.policy,
                self._policy_manager.placement,
                time.monotonic(),
            )
            if isinstance(policy, CustomPolicy):
                starts, self.latest = {}, {}  # It answers one question at a time, and plans come first.
            else:
                starts, self.latest = await asyncio.to_thread(self._forecast, enforced, policy, placement)
            if starts != self.starts:
                self.starts = starts
                self._on_change()
            await asyncio.sleep(max(PAUSE_S, _RESTS * (time.monotonic() - began)))

    def _forecast(self, enforced: Enforcement, policy: Policy, placement: Placement) -> tuple[Starts, Starts]:
        """Return when waiting jobs are expected to start, and by when at the latest.

        The forecast knows only the slots that reservations leave free now. So it leaves out starts after a
        reservation begins, and those that would run into one.
        """
        snapshot, name = enforced.snapshot, self._policy_manager.active.choice.policy
        try:
            found, latest = forecast_starts(snapshot, policy, excluding(placement, enforced.excluded), name)
        except Exception:
            self._log.exception("no forecast of the queue")
            return {}, {}
        known_until = {job.job_id: enforced.known_until(job) for job in snapshot.waiting}
        starts = {job_id: _rounded(round, at) for job_id, at in found.items() if at < known_until[job_id]}
        ends = {job_id: _rounded(ceil, at) for job_id, at in latest.items() if at < known_until[job_id]}
        return starts, {job_id: max(at, starts.get(job_id, at)) for job_id, at in ends.items()}


def _rounded(how: Callable[[float], int], at: float) -> float:
    return _ROUNDED_TO_S * how(at / _ROUNDED_TO_S)
