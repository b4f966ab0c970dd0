"""Runs: what is remembered of each job besides its state, and the values that its ranks logged."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from minicluster.wire.base import EnvName, Message, Sha256
from minicluster.wire.jobs import TAGS, BlobInfo, DataUse, JobState, RunOrigin, Tag
from minicluster.wire.limits import METRIC_CHARS

NOTE_CHARS = 10_000
LISTED_METRICS = 64
"""Metrics whose last value is a column of the list of runs; a run may have more."""
MOST_RUNS = 20
"""Of one comparison."""
MOST_SERIES = 50
"""Of one request for curves."""
MOST_POINTS = 5000

MetricName = Annotated[str, Field(min_length=1, max_length=METRIC_CHARS)]


class RunLabels(Message):
    """PUT api/runs/ID/labels: what its owner writes about a run. None: stays as it is."""

    tags: tuple[Tag, ...] | None = Field(default=None, max_length=TAGS)
    note: str | None = Field(default=None, max_length=NOTE_CHARS)
    favourite: bool | None = None


class LastValue(Message):
    """The newest value of a metric, its extremes, and the step of the newest. None: not a finite number."""

    value: float | None
    step: float | None = None
    low: float | None = None
    high: float | None = None


class Run(Message):
    """A row of the list of runs. Times are seconds since the epoch.

    gpus: GPUs of its newest attempt; 0 on a CPU. metrics: of at most LISTED_METRICS names.
    sweep: the sweep that it is a trial of.
    """

    id: int
    owner: str
    name: str
    state: JobState
    created_at: float
    started_at: float | None = None
    ended_at: float | None = None
    world_size: int | None = None
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    error: str = ""
    tags: tuple[str, ...] = ()
    favourite: bool = False
    note: str = ""
    notebook: str = ""
    cell: str = ""
    kernel: str = ""
    rerun_of: int | None = None
    sweep: int | None = None
    metrics: dict[str, LastValue] = Field(default_factory=dict)

    @property
    def main_metric(self) -> str | None:
        """The metric that a small picture of the run shows: a loss, if it has one."""
        return min(self.metrics, default=None, key=_by_interest)


def _by_interest(name: str) -> tuple[bool, bool, int, str]:
    return name != "loss", "loss" not in name.lower(), len(name), name


class RunList(Message):
    """GET api/runs. total: of all pages. metrics: names that runs of this page have, for columns."""

    runs: tuple[Run, ...]
    total: int
    metrics: tuple[str, ...] = ()


class RunDetails(Message):
    """GET api/runs/ID. image: the digest. seed: of --seed. attempts: how often it was started.

    data: with the version of each data set (manifest_sha256). env: variables of its ranks by the cell's line.
    """

    run: Run
    origin: RunOrigin
    image: str | None = None
    image_name: str = ""
    seed: int | None = None
    attempts: int = 0
    data: tuple[DataUse, ...] = ()
    env: dict[EnvName, str] = Field(default_factory=dict)
    timeout_s: float | None = None
    result: BlobInfo | None = None
    result_names: tuple[str, ...] = ()
    payload_sha256: Sha256 | None = None
    removed_at: float | None = None


class RunMetrics(Message):
    """Event `metrics` of api/events: the newest values of a run, at most once a second."""

    run: int
    metrics: dict[str, LastValue]


class TagCount(Message):
    tag: str
    runs: int


class TagCounts(Message):
    """GET api/run-tags: the tags that the user's runs have, the most used first."""

    tags: tuple[TagCount, ...]


class SeriesInfo(Message):
    """One metric as one rank logged it. last_at: seconds since the epoch."""

    name: str
    rank: int
    points: int
    last: float | None = None
    low: float | None = None
    high: float | None = None
    last_step: float | None = None
    last_at: float | None = None


class SeriesList(Message):
    """GET api/runs/ID/series. dropped: points beyond the run's limit, which are in no curve."""

    series: tuple[SeriesInfo, ...]
    dropped: int = 0


class Curve(Message):
    """A metric for a picture: all its points, or groups of neighbours with their extremes.

    step, at, value: arrays of one length; value is the mean of a group, None where it is no finite number.
    low, high: extremes of each group; empty if each point is one value. at: seconds since the epoch.
    points: how many points were logged in the range.
    """

    run: int
    name: str
    rank: int = 0
    step: tuple[float, ...] = ()
    at: tuple[float, ...] = ()
    value: tuple[float | None, ...] = ()
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    points: int = 0


class CurveList(Message):
    """GET api/runs/ID/curves and api/run-curves. started_at: of each run, for curves over relative time."""

    curves: tuple[Curve, ...]
    started_at: dict[int, float | None] = Field(default_factory=dict[int, float | None])


class MediaInfo(Message):
    """A picture, a histogram or a table of a run. number: counts the run's media, from 1 on.

    at: seconds since the epoch. size_bytes: of its content, GET api/runs/ID/media/NUMBER.
    """

    number: int
    name: str
    rank: int
    step: float | None = None
    at: float
    mime: str
    size_bytes: int


class MediaNames(Message):
    """One name of a run's media, and how many there are."""

    name: str
    mime: str
    count: int


class MediaList(Message):
    """GET api/runs/ID/media?name=&after=: those behind the number `after`, in the order of their numbers.

    names: all names of the run's media. dropped: media beyond the run's limit.
    """

    media: tuple[MediaInfo, ...] = ()
    names: tuple[MediaNames, ...] = ()
    dropped: int = 0


class RankSpeed(Message):
    """Where a rank's time went lately. data, communication, compute: shares of 1. step_s: of one step."""

    rank: int
    step_s: float
    data: float
    communication: float
    compute: float


class SpeedReport(Message):
    """GET api/runs/ID/speed. straggler: the rank that the others wait for. sentence: what to try.

    at: seconds since the epoch of the newest record.
    """

    ranks: tuple[RankSpeed, ...] = ()
    straggler: int | None = None
    sentence: str = ""
    at: float | None = None
