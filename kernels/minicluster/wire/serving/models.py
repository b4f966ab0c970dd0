"""Served models: messages between notebooks or pages and the service. Times are seconds since the epoch."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, model_validator

from minicluster.wire.base import Count, Message
from minicluster.wire.jobs import JobSpec, RunOrigin
from minicluster.wire.limits import Name, Sentence
from minicluster.wire.serving.replicas import VERBS, ModelName, ReplicaOptions, Signature
from minicluster.wire.sweeps.sweeps import MetricName

MOST_REPLICAS = 64
MOST_VERSIONS = 100
"""Of the answer: the newest ones."""
MOST_MODEL_EVENTS = 200


class ModelState(StrEnum):
    """starting: no replica answers yet. serving: some do. stopping, stopped: its owner stopped it.

    failing: the replicas of the active version do not come up; the version before goes on, if there is one.
    """

    STARTING = "starting"
    SERVING = "serving"
    FAILING = "failing"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ReplicaPhase(StrEnum):
    """waiting: for slots. starting: its process is. draining: it takes no new request, and ends."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


class AutoServe(Message):
    """Serve what a job of the owner leaves, if this metric is better than that of the served version."""

    metric: MetricName
    maximize: bool = False

    @property
    def goal(self) -> str:
        return "highest" if self.maximize else "lowest"


class ModelSubmit(Message):
    """POST api/models. A model of that name gets a new version; the same key is the same version.

    spec: of each replica's job; its payload is a cell whose value is the model. variable: the name that holds
    the model in the notebook, "" if it is an expression. replicas: None: as many as before, or 1.
    value: the metric's of this version, if it is known. shared: all users of the hub may ask it. is_open:
    anybody may, without a token. auto: None: as before.
    """

    idempotency_key: str = Field(min_length=8, max_length=64)
    name: ModelName
    spec: JobSpec
    signature: Signature
    options: ReplicaOptions = ReplicaOptions()
    variable: str = Field(default="", max_length=255)
    replicas: int | None = Field(default=None, ge=1, le=MOST_REPLICAS)
    shared: bool = False
    is_open: bool = False
    auto: AutoServe | None = None
    value: float | None = Field(default=None, allow_inf_nan=False)
    run: RunOrigin | None = None

    @model_validator(mode="after")
    def _names_no_verb(self) -> ModelSubmit:
        if self.name in VERBS:
            raise ValueError(f"{self.name} is a command of %serve; a model needs another name")
        return self


class ModelChange(Message):
    """PATCH api/models/ID: what is given is changed. auto_off: no more jobs are looked at."""

    replicas: int | None = Field(default=None, ge=1, le=MOST_REPLICAS)
    active_version: Count | None = None
    auto: AutoServe | None = None
    auto_off: bool = False
    shared: bool | None = None
    is_open: bool | None = None


class Replica(Message):
    """A replica of a model: a job on one node. reason: why it waits."""

    job_id: int
    version: int
    phase: ReplicaPhase
    node: str = ""
    reason: str = ""
    since: float = 0.0


class ModelVersion(Message):
    """A version of a model. reason: why it is there. value: of the metric of --auto. error: why it failed.

    trained_by: the job that left it; None: a notebook sent it.
    """

    number: int
    created_at: float
    reason: Sentence = ""
    value: float | None = None
    trained_by: int | None = None
    error: Sentence = ""
    signature: Signature
    options: ReplicaOptions


class ModelFigures(Message):
    """What the front counted in the last minute, and since its start.

    p50_s, p99_s: of the time to the answer, of the newest requests; None: there was none.
    """

    requests: int = 0
    errors: int = 0
    per_s: float = 0.0
    p50_s: float | None = None
    p99_s: float | None = None


class ServedModel(Message):
    """A row of the list of models.

    active: the version that is wanted. serving: the one whose replicas answer; 0: none does. replicas: how
    many are wanted; ready: how many answer. path: of its answers, relative to the service.
    """

    id: int
    owner: Name
    name: ModelName
    state: ModelState
    active: int
    serving: int = 0
    replicas: int = 1
    ready: int = 0
    shared: bool = False
    is_open: bool = False
    auto: AutoServe | None = None
    created_at: float
    path: str = ""
    note: Sentence = ""
    figures: ModelFigures = ModelFigures()


class ModelList(Message):
    """GET api/models, the newest first. open_allowed: whether this cluster lets models be open.

    front: what leads requests to them, for people.
    """

    models: tuple[ServedModel, ...]
    open_allowed: bool = False
    front: str = ""


class ModelDetails(Message):
    """GET api/models/ID. versions: the newest first. version: differs when anything but the figures does."""

    model: ServedModel
    versions: tuple[ModelVersion, ...] = ()
    replicas: tuple[Replica, ...] = ()
    front: str = ""
    version: str = ""


class ModelEvent(Message):
    """A line of a model's history. kind is one word."""

    id: int
    at: float
    kind: str
    text: Sentence


class ModelEvents(Message):
    """GET api/models/ID/events, the newest first."""

    events: tuple[ModelEvent, ...] = ()
