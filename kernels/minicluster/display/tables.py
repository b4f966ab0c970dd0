"""Tables and handles that `%distribute` shows, as HTML and as text."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from minicluster.client.client import JobServiceClient
from minicluster.display.view import duration
from minicluster.wire import Job, JobState, Node, SlotUse, Snapshot


class LinkCell(str):
    """A cell with a URL: a link in HTML, the URL in text."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """Rows of text with column headings. empty: text shown if there are no rows."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    empty: str

    def __repr__(self) -> str:
        if not self.rows:
            return self.empty
        columns = list(zip(self.heads, *self.rows, strict=True))
        widths = [max(map(len, column)) for column in columns]
        lines = [self.heads, tuple("-" * width for width in widths), *self.rows]
        padded = ((cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join("  ".join(cells).rstrip() for cells in padded)

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{escape(self.empty)}</p>"
        heads = "".join(f'<th style="text-align:left">{escape(head)}</th>' for head in self.heads)
        rows = "".join(f"<tr>{''.join(map(_html, row))}</tr>" for row in self.rows)
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


class JobHandle:
    """A detached job, as `%%distribute --detach` returns it."""

    def __init__(self, service: JobServiceClient, job: Job) -> None:
        self._service = service
        self._job = job

    @property
    def id(self) -> int:
        return self._job.id

    @property
    def job(self) -> Job:
        """The job's current state."""
        return self._service.job(self.id)

    @property
    def state(self) -> JobState:
        return self.job.state

    def stop(self) -> Job:
        return self._service.stop(self.id)

    def __repr__(self) -> str:
        job = self._job
        name = "" if job.name == "cell" else f" ({job.name})"
        return (
            f"Job {job.id}{name} runs without this notebook (submitted, {job.state.value}).\n"
            f"Watch it and bring its result: %distribute attach {job.id}\n"
            f"Stop it: %distribute stop {job.id}"
        )


def job_table(jobs: Sequence[Job], now: float | None = None) -> Table:
    """List jobs as `%distribute status` shows them."""
    at = time.time() if now is None else now
    rows = tuple(
        (
            str(job.id),
            job.name,
            job.state.value,
            "" if job.world_size is None else str(job.world_size),
            ", ".join(job.nodes),
            _time(job, at),
            job.error.message if job.error is not None else job.reason,
        )
        for job in jobs
    )
    heads = ("job", "name", "state", "ranks", "nodes", "time", "reason")
    return Table(heads, rows, "You have no jobs yet. Put %%distribute on a cell's first line.")


def node_table(nodes: Sequence[Node]) -> Table:
    """List nodes as `%distribute nodes` shows them."""
    rows = tuple(
        (
            node.name,
            "up" if node.up else "down",
            f"{_count(node.slots, free=True):g} of {_count(node.slots, free=False):g}",
            ", ".join(sorted({slot.kind for slot in node.slots})),
            _users(node),
        )
        for node in nodes
    )
    return Table(("node", "state", "free slots", "kind", "used by"), rows, "The cluster has no nodes.")


def snapshot_table(snapshots: Sequence[Snapshot], job_id: int, path: str) -> Table:
    """List a job's snapshots. path: the service's path in a browser."""
    rows = tuple(
        (
            str(one.step),
            str(one.attempt),
            f"{one.size_bytes / 1e6:.1f} MB" + (f", part {part} of {one.parts}" if one.parts > 1 else ""),
            time.strftime("%H:%M:%S", time.localtime(one.created_at)),
            LinkCell(f"{path}api/jobs/{job_id}/snapshots/{one.step}" + (f"?part={part}" if part else "")),
        )
        for one in snapshots
        for part in range(one.parts)
    )
    empty = f"Job {job_id} has no snapshots. mc.checkpoint(model, optimizer, loader, step=step) saves some."
    return Table(("step", "attempt", "size", "kept at", "file"), rows, empty)


def _count(slots: Sequence[SlotUse], *, free: bool) -> float:
    """Count slots, or the free ones; a shared GPU is listed as two halves."""
    return sum(one.share for one in slots if not free or (one.job_id is None and one.server is None))


def _users(node: Node) -> str:
    users = []
    for slot in node.slots:
        if slot.job_id is not None:
            users.append(f"job {slot.job_id}" + (f" ({slot.owner})" if slot.owner else ""))
        elif slot.server is not None:
            users.append(f"notebook server of {slot.owner or 'a user'}")
        elif slot.warm:
            users.append(f"warm for {slot.owner or 'a user'}")
    return ", ".join(dict.fromkeys(users))


def _time(job: Job, now: float) -> str:
    if job.started_at is None:
        return f"waited {duration((job.ended_at or now) - job.created_at)}"
    return duration((job.ended_at or now) - job.started_at)


def _html(cell: str) -> str:
    link = f'<a href="{escape(cell)}" target="_blank" rel="noopener">download</a>'
    return f'<td style="text-align:left">{link if isinstance(cell, LinkCell) else escape(cell)}</td>'
