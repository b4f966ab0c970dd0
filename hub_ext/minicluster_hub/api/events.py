"""Server-sent events: one job's changes and output, or changes of all jobs and nodes that a user may see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from tornado.iostream import StreamClosedError
from tornado.web import HTTPError

from minicluster.wire import ErrorAnswer
from minicluster_hub.api.feed import Cursor, Event, JobFeed
from minicluster_hub.runs.recorder import NewMetrics
from minicluster_hub.support.notifier import NODES, Notifier, Subscription
from minicluster_hub.web.auth import UserHandler
from minicluster_hub.web.errors import ApiError
from minicluster_hub.web.open_streams import PendingTooMuch
from minicluster_hub.web.route import OWNER, STREAM, Query, Scope, route

NODES_INTERVAL_S = 0.5
_HUB_S = 5.0
"""Limit for the hub's answer about a token; readers wait for it."""


class EventStream(UserHandler):
    """Base of both streams: headers, format, keep-alives, and readers that disconnect."""

    def open(self) -> None:
        self._gone = False
        self._checked_at = time.monotonic()
        self._subscription = Subscription()
        self._sent_at = time.monotonic()
        self.set_header("Content-Type", "text/event-stream; charset=utf-8")
        self.set_header("Cache-Control", "no-cache, no-transform")
        self.set_header("X-Accel-Buffering", "no")

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._gone = True
        self._subscription.notify(None)

    @asynccontextmanager
    async def counted(self) -> AsyncIterator[None]:
        """Count the connection while it is open; a disconnect is no error. Raises ApiError (429)."""
        limits, streams = self.context.limits, self.context.streams
        with (
            streams.one_more(self.user.name, limits.streams, "event streams of yours"),
            self.context.metrics.stream_open(),
        ):
            try:
                yield
            except StreamClosedError:
                return
            except ApiError as error:
                if not self._headers_written:
                    raise
                with suppress(StreamClosedError):
                    await self.push([Event("error", ErrorAnswer(error=error.detail))])

    async def push(self, events: Iterable[Event]) -> None:
        """Send events one by one. Waits while the reader is slow, so that later output can be skipped.

        All streams of a user together get a limited share of the event loop's time.
        """
        streams, user = self.context.streams, self.user.name
        await streams.turn(user)
        if self._gone:
            raise StreamClosedError  # the reader disconnected while it waited
        made = iter(events)
        while True:
            began = time.monotonic()
            event = next(made, None)
            text = "" if event is None else _text(event)
            streams.worked(user, time.monotonic() - began)
            if event is None:
                return
            await self._send(text)

    async def _send(self, text: str) -> None:
        """Send a text. Disconnects a reader that does not read it; it can reconnect and resume."""
        limits, streams = self.context.limits, self.context.streams
        try:
            with streams.sending(self.user.name, len(text), limits.streams_bytes):
                self.write(text)
                async with asyncio.timeout(limits.stalled_s):
                    await self.flush()
        except (TimeoutError, PendingTooMuch):
            self.detach().close()
            raise StreamClosedError from None
        self._sent_at = time.monotonic()

    async def _check_token(self) -> None:
        """Raise ApiError if the hub no longer knows the token. A hub without an answer changes nothing."""
        if time.monotonic() - self._checked_at < self.context.limits.recheck_s:
            return
        self._checked_at = time.monotonic()
        token = self.hub_auth.get_token(self) or ""
        session = self.hub_auth.get_session_id(self)
        try:
            async with asyncio.timeout(_HUB_S):
                model = await self.hub_auth.user_for_token(token, session_id=session, sync=False)
        except (HTTPError, TimeoutError):
            return
        if model is None:
            raise ApiError(401, "not_authenticated", "your token or login ended", "log in at the hub again")
        self.admit(model)
        self.check_right()

    def check_right(self) -> None:
        """Check again that the user may see this stream. Raises ApiError."""
        raise NotImplementedError

    async def wait(self, timeout_s: float | None = None) -> frozenset[Hashable]:
        """Wait for notifications, and keep the connection alive.

        Returns the notified keys; none after `timeout_s`. Raises StreamClosedError if the reader has gone.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            await self._check_token()
            left = self.context.limits.keep_alive_s - (time.monotonic() - self._sent_at)
            if until is not None:
                left = min(left, until - time.monotonic())
            keys = await self._subscription.wait(max(0.0, left))
            if self._gone:
                raise StreamClosedError
            if keys or (until is not None and time.monotonic() >= until):
                return keys
            await self._send(": keep-alive\n\n")


def _text(event: Event) -> str:
    ident = f"id: {event.cursor}\n" if event.cursor else ""
    return f"event: {event.name}\n{ident}data: {event.json()}\n\n"


class FeedStream(EventStream):
    """Base of the streams of one job, or of a part of it: from a cursor on until its end."""

    async def serve(self, feed: JobFeed, *changes: Notifier) -> None:
        """Send a feed's events to its end. changes: notify the job's id when the feed has news."""
        self._job_id = feed.job_id
        changed = Subscription()
        self.open()
        async with self.counted(), AsyncExitStack() as listening:
            for notifier in changes:
                for subscription in (changed, self._subscription):
                    await listening.enter_async_context(notifier.listen(feed.job_id, into=subscription))
            await listening.enter_async_context(
                self.context.logs.subscribe(feed.job_id, into=self._subscription)
            )
            await self.push(feed.news())
            await self._follow(feed, changed)

    def check_right(self) -> None:
        self.job_record(str(self._job_id))

    async def _follow(self, feed: JobFeed, changed: Subscription) -> None:
        """Send a change of the job at once, and output as often as the limits allow."""
        interval_s = self.context.limits.push_interval_s
        pushed_at, waiting = float("-inf"), True
        while not feed.over:
            rest_s = pushed_at + interval_s - time.monotonic()
            if waiting and rest_s <= 0:
                await self.push(feed.output())
                pushed_at, waiting = time.monotonic(), False
            keys = await self.wait(max(0.0, rest_s) if waiting else None)
            waiting = waiting or bool(keys)
            if changed.take():
                await self.push(feed.news())
        await self.push(feed.output(final=True))
        await self.push(feed.end())


class JobEventsHandler(FeedStream):
    """One job, from a cursor on until its end."""

    @route(
        "api/jobs/{job_id}/events",
        "A job's events until its end: job, log, records, end",
        scope=Scope.READ,
        answer=STREAM,
        query=(
            Query("after", "string", "id of the last event seen; the header Last-Event-ID overrides it"),
            Query("result", "string", "`1`: send the owner a small result before the end"),
        ),
    )
    async def get(self, job_id: str) -> None:
        await self.serve(self._feed(job_id), self.context.status_cache.changes)

    def _feed(self, job_id: str) -> JobFeed:
        # Not in `get`, which would hold the record as long as somebody reads.
        after = self.request.headers.get("Last-Event-ID") or self.get_query_argument("after", "")
        record = self.job_record(job_id)
        with_result = self.get_query_argument("result", "") == "1" and record.owner == self.user.name
        return JobFeed(self.context, record, Cursor.parse(after), with_result=with_result)


class OverviewEventsHandler(EventStream):
    """Changes of the user's jobs (for admins, all jobs) and of the nodes. GET returns the lists."""

    @route(
        "api/events",
        "Changes of jobs and nodes, and new values of metrics: job, nodes, metrics",
        scope=Scope.READ,
        answer=STREAM,
        query=(OWNER,),
    )
    async def get(self) -> None:
        owner = self.requested_owner()
        self.open()
        async with (
            self.counted(),
            self.context.status_cache.changes.listen(into=self._subscription),
            self.context.recorder.changes.listen(into=self._subscription),
        ):
            await self._send(": listening\n\n")
            await self._follow(owner)

    def check_right(self) -> None:
        self.requested_owner()

    async def _follow(self, owner: str | None) -> None:
        nodes_at, nodes_wait = float("-inf"), False
        while True:
            rest_s = nodes_at + NODES_INTERVAL_S - time.monotonic()
            keys = await self.wait(max(0.0, rest_s) if nodes_wait else None)
            # Each change wakes each open page, and most are of other users' jobs.
            if jobs := self._jobs(keys - {NODES}, owner):
                await self.push(jobs)
            if metrics := self._metrics(keys, owner):
                await self.push(metrics)
            nodes_wait = nodes_wait or NODES in keys
            if nodes_wait and time.monotonic() >= nodes_at + NODES_INTERVAL_S:
                await self.push([Event("nodes", self.context.status_cache.overview.nodes())])
                nodes_at, nodes_wait = time.monotonic(), False

    def _metrics(self, keys: frozenset[Hashable], owner: str | None) -> list[Event]:
        new = (key for key in keys if isinstance(key, NewMetrics) and owner in (None, key.owner))
        found = (self.context.recorder.newest(key.job_id) for key in new)
        return [Event("metrics", metrics) for metrics in found if metrics is not None]

    def _jobs(self, job_ids: frozenset[Hashable], owner: str | None) -> list[Event]:
        changed = [key for key in job_ids if isinstance(key, int)]
        return [Event("job", text) for text in self.context.status_cache.overview.jobs(changed, owner)]
