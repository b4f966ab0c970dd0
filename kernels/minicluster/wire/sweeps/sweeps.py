"""Sweeps: messages between notebooks or pages and the service. Times are seconds since the epoch."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from minicluster.wire.base import Count, Message
from minicluster.wire.jobs import JobSpec, RunOrigin
from minicluster.wire.limits import Name
from minicluster.wire.sweeps.trials import Among, Choice, ParameterName

MOST_TRIALS = 10_000
MOST_AT_ONCE = 1000

MetricName = Annotated[str, Field(min_length=1, max_length=200)]


class SearchMethod(StrEnum):
    """How the parameters of the next trial are chosen."""

    TPE = "tpe"
    GRID = "grid"
    RANDOM = "random"
    CMAES = "cmaes"


class PruneMethod(StrEnum):
    """Which trials end early."""

    MEDIAN = "median"
    HYPERBAND = "hyperband"
    NONE = "none"


class SweepState(StrEnum):
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (SweepState.DONE, SweepState.STOPPED, SweepState.FAILED)


class TrialState(StrEnum):
    """waiting: its job has not started. pruned: it ended early, since others were better by then."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETE = "complete"
    PRUNED = "pruned"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def over(self) -> bool:
        return self not in (TrialState.WAITING, TrialState.RUNNING)


class SweepSettings(Message):
    """metric: what mc.log logs and the search optimizes; a trial's value is the last one that it logged.

    trials: how many; None: all points of a grid. at_once: most trials that run or wait at the same time;
    None: as many as find free slots. seed: of the search; None: another one each time.
    """

    metric: MetricName
    maximize: bool = False
    trials: int | None = Field(default=None, ge=1, le=MOST_TRIALS)
    search: SearchMethod = SearchMethod.TPE
    prune: PruneMethod = PruneMethod.MEDIAN
    at_once: int | None = Field(default=None, ge=1, le=MOST_AT_ONCE)
    seed: int | None = Field(default=None, ge=0, lt=1 << 32)


class SweepSubmit(Message):
    """POST api/sweeps. The same key from the same owner is the same sweep. spec: of each trial's job."""

    idempotency_key: str = Field(min_length=8, max_length=64)
    spec: JobSpec
    settings: SweepSettings
    run: RunOrigin | None = None


class Trial(Message):
    """A trial and its job. value: of the metric; step: at which it was logged. params: by name, in order.

    error: why it failed.
    """

    number: int
    job: int
    state: TrialState
    value: float | None = None
    step: float | None = None
    params: dict[ParameterName, Choice] = Field(default_factory=dict)
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    error: str = ""


class Sweep(Message):
    """A row of the list of sweeps. counts: trials by state. note: why no trial starts now, or "".

    error: why it failed. spent_s: run time of all its trials.
    """

    id: int
    owner: str
    name: Name
    state: SweepState
    settings: SweepSettings
    created_at: float
    ended_at: float | None = None
    counts: dict[TrialState, int] = Field(default_factory=dict[TrialState, int])
    best: Trial | None = None
    note: str = ""
    error: str = ""
    spent_s: float = 0.0


class SweepList(Message):
    """GET api/sweeps, the newest first."""

    sweeps: tuple[Sweep, ...]


class SweepDetails(Message):
    """GET api/sweeps/ID. spaces: from what each parameter was drawn. version: differs when anything does."""

    sweep: Sweep
    trials: tuple[Trial, ...] = ()
    spaces: dict[ParameterName, Among] = Field(default_factory=dict)
    version: str = ""


class Importance(Message):
    """GET api/sweeps/ID/importance: each parameter's share in what makes trials good; they add up to 1.

    Empty as long as there are too few trials to tell.
    """

    shares: dict[ParameterName, float] = Field(default_factory=dict)
    trials: Count = 0
