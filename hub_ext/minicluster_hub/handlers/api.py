"""The table of everything that can be asked of the service by programs."""

from __future__ import annotations

from minicluster.wire import (
    BlobInfo,
    Job,
    JobList,
    JobSubmit,
    NodeList,
    PlaceServer,
    ReportAnswer,
    ServerList,
    ServerPlace,
    TaskOrders,
    TaskReport,
)
from minicluster_hub.handlers import blobs, events, jobs, nodes, ops, servers, tasks
from minicluster_hub.handlers.messages import Health, JobStory
from minicluster_hub.handlers.route import Query, Route, Scope, Who

BYTES, TEXT, STREAM = "application/octet-stream", "text/plain", "text/event-stream"
_READ, _SUBMIT = Scope.READ, Scope.SUBMIT
_OWNER = Query("owner", "string", "`all` (admins): everyone's")

_LIST_QUERY = (
    _OWNER,
    Query("limit", "integer", "at most so many, the newest; 100 if not given"),
    Query("state", "string", "`open`: only jobs that are not over"),
)
_LOG_QUERY = (
    Query("rank", "integer", "whose output; 0 if not given"),
    Query("offset", "integer", "the first byte; 0 if not given"),
    Query("limit", "integer", "at most so many bytes; all if not given"),
    Query("attempt", "integer", "the attempt's number; the newest if not given"),
    Query("download", "string", "anything: a browser saves the answer as a file"),
)
_AFTER_CURSOR = (Query("after", "string", "the id of the last event seen, as the header Last-Event-ID"),)
_AFTER_LINE = (Query("after", "integer", "only lines with a higher id"),)

API_ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "api/jobs",
        jobs.JobsHandler,
        "Jobs, the newest first",
        scope=_READ,
        answer=JobList,
        query=_LIST_QUERY,
    ),
    Route(
        "POST",
        "api/jobs",
        jobs.JobsHandler,
        "Submit a job; a known key is the known job (200)",
        scope=_SUBMIT,
        body=JobSubmit,
        answer=Job,
        status=201,
    ),
    Route("GET", "api/jobs/{job_id}", jobs.JobHandler, "One job", scope=_READ, answer=Job),
    Route("POST", "api/jobs/{job_id}/stop", jobs.StopHandler, "Stop a job", scope=_SUBMIT, answer=Job),
    Route(
        "GET",
        "api/jobs/{job_id}/events",
        events.JobEventsHandler,
        "A job's events until its end: job, log, records, end",
        scope=_READ,
        answer=STREAM,
        query=_AFTER_CURSOR,
    ),
    Route(
        "GET",
        "api/jobs/{job_id}/story",
        jobs.StoryHandler,
        "What happened to a job",
        scope=_READ,
        answer=JobStory,
        query=_AFTER_LINE,
    ),
    Route(
        "GET",
        "api/jobs/{job_id}/log",
        jobs.LogHandler,
        "A rank's output",
        scope=_READ,
        answer=TEXT,
        query=_LOG_QUERY,
    ),
    Route(
        "GET", "api/jobs/{job_id}/result", jobs.ResultHandler, "What rank 0 left", scope=_READ, answer=BYTES
    ),
    Route(
        "PUT",
        "api/blobs/{sha256}",
        blobs.UserBlobHandler,
        "Store a payload",
        scope=_SUBMIT,
        body=BYTES,
        answer=BlobInfo,
    ),
    Route("HEAD", "api/blobs/{sha256}", blobs.UserBlobHandler, "Is a payload there?", scope=_SUBMIT),
    Route(
        "GET",
        "api/nodes",
        nodes.NodesHandler,
        "Nodes and who holds their slots",
        scope=_READ,
        answer=NodeList,
    ),
    Route(
        "GET",
        "api/events",
        events.OverviewEventsHandler,
        "Changes of jobs and nodes: job, nodes",
        scope=_READ,
        answer=STREAM,
        query=(_OWNER,),
    ),
    Route(
        "GET",
        "api/servers",
        servers.ServersHandler,
        "Places of notebook servers",
        who=Who.SPAWNER,
        scope=Scope.PLACE,
        answer=ServerList,
    ),
    Route(
        "PUT",
        "api/servers/{owner}/{server}",
        servers.ServerHandler,
        "A notebook server's place: its node and its GPUs; the server without a name is `-`",
        who=Who.SPAWNER,
        scope=Scope.PLACE,
        body=PlaceServer,
        answer=ServerPlace,
    ),
    Route(
        "DELETE",
        "api/servers/{owner}/{server}",
        servers.ServerHandler,
        "Free a stopped server's place",
        who=Who.SPAWNER,
        scope=Scope.PLACE,
        status=204,
    ),
    Route(
        "POST",
        "api/tasks/report",
        tasks.ReportHandler,
        "An agent's report",
        who=Who.TASK,
        body=TaskReport,
        answer=ReportAnswer,
    ),
    Route(
        "GET",
        "api/tasks/orders",
        tasks.OrdersHandler,
        "A task's orders, held while `have` is the newest",
        who=Who.TASK,
        answer=TaskOrders,
        query=(Query("have", "string", "the version that the agent has"),),
    ),
    Route(
        "GET",
        "api/tasks/blobs/{sha256}",
        blobs.TaskBlobHandler,
        "The payload of the task's job",
        who=Who.TASK,
        answer=BYTES,
    ),
    Route(
        "PUT",
        "api/tasks/blobs/{sha256}",
        blobs.TaskBlobHandler,
        "Store a result",
        who=Who.TASK,
        body=BYTES,
        answer=BlobInfo,
    ),
    Route("GET", "health", ops.HealthHandler, "Whether the service can work", who=Who.ANYONE, answer=Health),
    Route("GET", "metrics", ops.MetricsHandler, "For Prometheus", answer=TEXT),
    Route(
        "GET",
        "api/openapi.json",
        ops.OpenApiHandler,
        "This document",
        who=Who.ANYONE,
        answer="application/json",
    ),
)
