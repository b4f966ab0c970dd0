"""Runs sweeps: submits their trials one after the other, compares them, ends them.

All that must outlive the service is in the store. `run` belongs to the service that leads.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from sqlalchemy.exc import IntegrityError

from minicluster.wire import JobState
from minicluster.wire.sweeps.sweeps import SweepState, SweepSubmit, TrialState
from minicluster.wire.sweeps.trials import Among, TrialRef
from minicluster_hub.control.status_cache import StatusCache
from minicluster_hub.jobs.states import TransitionImpossible
from minicluster_hub.store import Store, StoreError
from minicluster_hub.store.jobs.sweeps import ParameterRecord, SweepRecord, TrialRecord
from minicluster_hub.support.notifier import Notifier, Subscription
from minicluster_hub.sweeps.arriving import TrialValues
from minicluster_hub.sweeps.checkpoints import Checkpoints
from minicluster_hub.sweeps.searches import Searches
from minicluster_hub.sweeps.submission import Submission, TrialHeldBack

LEAVE_WITHIN_S = 5.0
"""How long the other ranks of a trial may go on after the first one has left, as pruned."""
_AGAIN_S = 1.0
_VALUES_PAUSE_S = 0.1
_ENDING = (JobState.STOPPING, JobState.FAILING)
_HOPELESS = 3
"""A sweep ends when so many trials have failed and none has not."""


class SuggestImpossible(Exception):
    """A task asked for a parameter, but its job is no trial."""


@dataclass(frozen=True)
class JobControl:
    """stop: has a job stopped, with a reason. wake: has the scheduler look for new jobs."""

    stop: Callable[[int, str], object]
    wake: Callable[[], None]


class SweepManager:
    """`changes` notifies the id of a sweep when something of it has changed."""

    def __init__(
        self,
        store: Store,
        status_cache: StatusCache,
        submission: Submission,
        jobs: JobControl,
        checkpoints: Checkpoints,
        clock: Callable[[], float],
        log: logging.Logger,
    ) -> None:
        self.changes = Notifier()
        self.searches = Searches(store)
        self._store = store
        self._status_cache = status_cache
        self._submission = submission
        self._job_control = jobs
        self._checkpoints = checkpoints
        self._clock = clock
        self._log = log
        self._jobs: dict[int, int] = {}
        self._states: dict[int, JobState] = {}
        self._over: dict[int, dict[int, TrialRecord]] = {}
        self._asked: dict[int, tuple[SweepRecord, TrialRecord]] = {}
        self._values: dict[int, TrialValues] = {}
        self._notes: dict[int, str] = {}
        self._waits: set[int] = set()
        self._with_values: set[int] = set()
        self._due = Subscription()

    # What handlers call.

    def submit(self, owner: str, request: SweepSubmit) -> tuple[SweepRecord, bool]:
        """Store a sweep, and have it begin; return whether it is new."""
        sweep, new = self._store.sweeps.submit(owner, request, self._clock())
        if new:
            self._log.info("sweep %s: submitted by %s", sweep.id, owner)
            self._wake(sweep.id)
        return sweep, new

    def stop(self, sweep: SweepRecord) -> None:
        """Submit no more trials, and stop those that are under way."""
        if not sweep.state.over:
            self._store.sweeps.set_state(sweep.id, SweepState.STOPPING, self._clock())
            self._wake(sweep.id)

    def note(self, sweep_id: int) -> str:
        """Return why no trial is submitted now, or ""."""
        return self._notes.get(sweep_id, "")

    async def suggest(self, ref: TrialRef | None, job_id: int, name: str, among: Among) -> ParameterRecord:
        """Return a parameter of a trial: drawn once, then always the same.

        Raises SuggestRefused and SuggestImpossible.
        """
        sweep, trial = self._asker(ref, job_id)
        # Asked for again, it is compared: all ranks of all trials have to name the same choices.
        drawn = await self.searches.suggest(sweep, trial, name, among)
        self.changes.notify(sweep.id)
        return drawn

    async def draw_ahead(self, ref: TrialRef | None, job_id: int) -> Sequence[ParameterRecord]:
        """Return what a trial will probably ask for: drawn once, then always the same.

        Raises SuggestImpossible.
        """
        sweep, trial = self._asker(ref, job_id)
        if trial.ahead is None:
            trial = await self.searches.draw_ahead(sweep, trial)
            self._asked[job_id] = sweep, trial
        return trial.ahead or ()

    def _asker(self, ref: TrialRef | None, job_id: int) -> tuple[SweepRecord, TrialRecord]:
        """Return the sweep and the trial that a job is. Raises SuggestImpossible."""
        known = self._asked.get(job_id) or self._find_trial(job_id)
        if ref is None or known is None:
            raise SuggestImpossible(f"job {job_id} is no trial of a sweep")
        # What a search needs of them never changes.
        self._asked[job_id] = known
        return known

    def _find_trial(self, job_id: int) -> tuple[SweepRecord, TrialRecord] | None:
        trial = self._store.sweeps.trial_of_job(job_id)
        sweep = self._store.sweeps.sweep(trial.sweep_id) if trial is not None else None
        return None if trial is None or sweep is None else (sweep, trial)

    def leave(self, job_id: int, step: float | None) -> None:
        """Take the word of a rank that it leaves, since its trial is pruned."""
        trial = self._store.sweeps.trial_of_job(job_id)
        if trial is not None and trial.pruned_at is not None:
            self._store.sweeps.left(trial, step, self._clock())
            self._wake(trial.sweep_id)

    def receive(self, ref: TrialRef | None, job_id: int, data: bytes) -> None:
        """Take a piece of the records of a job's ranks."""
        if ref is None:
            return
        values = self._values.setdefault(job_id, TrialValues(ref))
        if values.receive(data) and ref.sweep not in self._with_values:
            # Records come many times a second; a trial may leave a moment later.
            self._with_values.add(ref.sweep)
            asyncio.get_running_loop().call_later(_VALUES_PAUSE_S, self._wake, ref.sweep)

    def _wake(self, sweep_id: int) -> None:
        self._due.notify(("sweep", sweep_id))

    # What runs while the service leads.

    async def run(self) -> None:
        """Follow the jobs of all open sweeps until cancelled."""
        self.searches.forget_all()
        self._jobs.clear()
        self._states.clear()
        self._over.clear()
        for sweep in self._store.sweeps.open_sweeps():
            self._waits.add(sweep.id)
        await self._status_cache.observed.wait()
        async with self._status_cache.changes.listen(into=self._due):
            while True:
                for sweep_id in sorted(self._waits):
                    await self._advance_safely(sweep_id)
                keys = await self._due.wait(_AGAIN_S if self._waits else None)
                self._waits |= self._sweeps_of(keys)

    def _sweeps_of(self, keys: frozenset[Hashable]) -> set[int]:
        """Return the sweeps that may go on: somebody woke them, or the job of a trial has another state."""
        jobs = [key for key in keys if isinstance(key, int) and key in self._jobs]
        changed = {self._jobs[job_id] for job_id in jobs if self._has_changed(job_id)}
        return changed | {key[1] for key in keys if isinstance(key, tuple) and key[0] == "sweep"}

    def _has_changed(self, job_id: int) -> bool:
        """Whether a job has another state than before. People see much more of it change."""
        try:
            state = self._store.states_by_id([job_id]).get(job_id)
        except StoreError:
            return True
        before = self._states.get(job_id)
        if state is not None:
            self._states[job_id] = state
        return state is not before

    async def _advance_safely(self, sweep_id: int) -> None:
        """Advance a sweep. One that cannot be advanced fails; the others go on."""
        self._waits.discard(sweep_id)
        self._with_values.discard(sweep_id)
        try:
            if await self._advance(sweep_id):
                self._waits.add(sweep_id)
        except StoreError as error:
            self._log.warning("sweep %s waits: %s", sweep_id, error)
            self._waits.add(sweep_id)
        except Exception as error:
            # Optuna may raise anything. The other sweeps go on.
            self._log.exception("sweep %s cannot go on", sweep_id)
            self._fail(sweep_id, f"the search failed: {type(error).__name__}: {error}")
        self.changes.notify(sweep_id)

    async def _advance(self, sweep_id: int) -> bool:
        """Do what is to be done for a sweep now; return whether to look again soon."""
        sweep = self._store.sweeps.sweep(sweep_id)
        if sweep is None:
            return False
        trials = self._trials(sweep_id)
        under_way = [trial for trial in trials if trial.state is None]
        self._jobs |= {trial.job_id: sweep_id for trial in under_way}
        for trial in under_way:
            await self._take_values(sweep, trial)
        over = [trial for trial in under_way if trial.job_state.terminal]
        for trial in over:
            await self._conclude(sweep, trial)
        if over:
            trials = self._trials(sweep_id)
            under_way = [trial for trial in trials if trial.state is None]
            self._checkpoints.clear(sweep, trials)
        if sweep.state is SweepState.RUNNING and _is_hopeless(trials):
            first = next(trial for trial in trials if trial.state is TrialState.FAILED)
            self._fail(
                sweep_id, f"{_HOPELESS} trials failed, and none succeeded. Job {first.job_id}: {first.error}"
            )
            sweep = self._store.sweeps.sweep(sweep_id) or sweep
        if sweep.state is not SweepState.RUNNING:
            self._stop_jobs(under_way, f"sweep {sweep_id} was stopped")
        more = await self._submit_trials(sweep, trials)
        if not under_way and not more:
            self._end(sweep, trials)
        late = self._stop_late(under_way)
        return late or bool(self._notes.get(sweep_id))

    def _trials(self, sweep_id: int) -> list[TrialRecord]:
        """Return the trials of a sweep in order. Those that are over are read once: they may be thousands."""
        if sweep_id not in self._over:
            known = self._store.sweeps.trials(sweep_id)
            self._over[sweep_id] = {trial.number: trial for trial in known if trial.state is not None}
            return known
        over, open_trials = self._over[sweep_id], self._store.sweeps.open_trials(sweep_id)
        return sorted([*over.values(), *open_trials], key=lambda trial: trial.number)

    async def _take_values(self, sweep: SweepRecord, trial: TrialRecord) -> None:
        """Store what a trial's ranks logged, and decide whether they shall leave."""
        if trial.pruned_at is not None:
            self._status_cache.let_leave(trial.job_id)
        arrived = self._values.get(trial.job_id)
        values = arrived.take() if arrived is not None else []
        if not values:
            return
        self._store.sweeps.add_values(trial, values, self._clock())
        prunes = await self.searches.report(sweep, trial, values)
        if prunes and trial.pruned_at is None and not trial.job_state.terminal:
            self._log.info("sweep %s: trial %s is pruned", sweep.id, trial.number)
            self._store.sweeps.prune(trial, self._clock())
            self._status_cache.let_leave(trial.job_id)

    async def _conclude(self, sweep: SweepRecord, trial: TrialRecord) -> None:
        """Set how a trial ended whose job is over."""
        trial = self._store.sweeps.trial_of_job(trial.job_id) or trial
        arrived = self._values.pop(trial.job_id, None)
        last = arrived.last if arrived is not None else None
        step, value = last or self._store.sweeps.last_value(trial) or (None, None)
        state, error = self._ending(sweep, trial, value)
        finite = value if value is not None and math.isfinite(value) else None
        self._store.sweeps.end_trial(trial, state, self._clock(), value=finite, step=step, error=error)
        self._status_cache.let_leave(trial.job_id, leave=False)
        for forgotten in (self._jobs, self._states, self._asked):
            forgotten.pop(trial.job_id, None)
        if ended := self._store.sweeps.trial_of_job(trial.job_id):
            self._over[sweep.id][ended.number] = ended
        await self.searches.tell(sweep, trial.number, state, finite)

    def _ending(self, sweep: SweepRecord, trial: TrialRecord, value: float | None) -> tuple[TrialState, str]:
        if trial.left_at is not None:
            return TrialState.PRUNED, ""
        if trial.job_state is JobState.STOPPED:
            return TrialState.STOPPED, ""
        if trial.job_state is JobState.FAILED:
            job = self._store.job(trial.job_id)
            return TrialState.FAILED, job.error.message if job is not None and job.error else "its job failed"
        metric = sweep.settings.metric
        if value is None:
            return TrialState.FAILED, f"it never logged {metric}: mc.log(step=step, {metric}=...)"
        if not math.isfinite(value):
            return TrialState.FAILED, f"its last {metric} is {value}"
        return TrialState.COMPLETE, ""

    # Trials to come.

    async def _submit_trials(self, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> bool:
        """Submit as many trials as find free slots, and one more; return whether there are any to come."""
        self._notes.pop(sweep.id, None)
        count = len(trials)
        open_now = [trial for trial in trials if trial.state is None]
        under_way, settings = len(open_now), sweep.settings
        queued = sum(trial.job_state is JobState.QUEUED for trial in open_now)
        while sweep.state is SweepState.RUNNING and count < (settings.trials or math.inf):
            if settings.at_once is not None and under_way >= settings.at_once:
                return True
            if queued >= max(1, self._submission.room(sweep.spec)):
                return True
            if not await self.searches.has_more(sweep):
                break
            if not await self._submit_trial(sweep, count):
                return True
            count, under_way, queued = count + 1, under_way + 1, queued + 1
        return under_way > len(open_now)

    async def _submit_trial(self, sweep: SweepRecord, number: int) -> bool:
        """Submit a trial; return whether it is submitted. If not, the sweep's note says why."""
        left = (sweep.settings.trials or math.inf) - number
        try:
            job = self._submission.submit(sweep, number, left)
        except TrialHeldBack as held_back:
            self._notes[sweep.id] = f"{held_back}."
            return False
        except IntegrityError:
            return True
        self._jobs[job.id] = sweep.id
        await self.searches.start(sweep, number)
        self._status_cache.changes.notify(job.id)
        self._job_control.wake()
        return True

    # Ends.

    def _end(self, sweep: SweepRecord, trials: Sequence[TrialRecord]) -> None:
        """End a sweep that has no open trial and no trial to come."""
        if sweep.state is SweepState.STOPPING:
            self._store.sweeps.set_state(sweep.id, SweepState.STOPPED, self._clock())
        elif sweep.state is SweepState.RUNNING:
            good = any(trial.state is TrialState.COMPLETE for trial in trials)
            error = "" if good else "no trial came to its end with a value"
            state = SweepState.DONE if good else SweepState.FAILED
            self._store.sweeps.set_state(sweep.id, state, self._clock(), error)
        self.searches.forget(sweep.id)
        self._checkpoints.forget(sweep.id)
        self._over.pop(sweep.id, None)
        for trial in trials:
            self._values.pop(trial.job_id, None)
        self._log.info("sweep %s is over", sweep.id)

    def _fail(self, sweep_id: int, error: str) -> None:
        self._store.sweeps.set_state(sweep_id, SweepState.FAILED, self._clock(), error)
        self._wake(sweep_id)

    def _stop_jobs(self, trials: Sequence[TrialRecord], reason: str) -> None:
        for trial in trials:
            # Asked again and again, a job would tell of each time, and so wake us.
            if not (trial.job_state.terminal or trial.job_state in _ENDING):
                try:
                    self._job_control.stop(trial.job_id, reason)
                except TransitionImpossible:
                    continue  # It ended in the meantime.

    def _stop_late(self, trials: Sequence[TrialRecord]) -> bool:
        """Stop trials whose ranks did not all leave; return whether there are some that may still do so."""
        left = [trial for trial in trials if trial.left_at is not None]
        until = self._clock() - LEAVE_WITHIN_S
        late = [trial for trial in left if (trial.left_at or 0.0) < until]
        self._stop_jobs(late, "the trial is pruned: one of its ranks left, and the others did not")
        return len(late) < len(left)

    def close(self) -> None:
        self.searches.close()


def _is_hopeless(trials: Sequence[TrialRecord]) -> bool:
    over = [trial for trial in trials if trial.state is not None]
    failed = sum(trial.state is TrialState.FAILED for trial in over)
    return failed >= _HOPELESS and failed == len(over)
