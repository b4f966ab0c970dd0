"""Everything shown about a job: its state, its ranks' last lines, its curves."""

from __future__ import annotations

from typing import Any

from minicluster.client.sse import ConnectionStatus, Ended
from minicluster.display.ansi import as_html
from minicluster.display.curves import JobMetrics, RankProgress
from minicluster.display.failures import error_text
from minicluster.display.plot import plot_html
from minicluster.display.terminal import DisplayLine, TailChange, TerminalTail
from minicluster.wire import Display, Displays, Job, JobState, LogChunk, Records
from minicluster.wire.streams import SmallResult

_PLOT_EVERY_S = 0.25
_ALL_TAILS_BYTES = 512 * 1024
_COLOURED = "application/vnd.minicluster.coloured"
_BACK_SHOWN_S = 15.0
_STOPPING = "Ranks have 4 s to end by themselves, and 1 s more after SIGTERM"
_TITLES = {
    JobState.QUEUED: "Waiting",
    JobState.STARTING: "Starting",
    JobState.RUNNING: "Running",
    JobState.STOPPING: "Stopping",
    JobState.FAILING: "Ending after an error",
    JobState.REQUEUING: "Continuing without a lost node",
    JobState.YIELDING: "Making room",
    JobState.SUCCEEDED: "Succeeded",
    JobState.FAILED: "Failed",
    JobState.STOPPED: "Stopped",
}

Event = Job | LogChunk | Displays | Records | SmallResult | ConnectionStatus | Ended
Entry = str | dict[str, str | int]
"""A line of text with its colours, or displayed data by MIME type (see panel.js)."""


class RunView:
    """Applies a job's events; returns changes for a panel, or the full state for a picture.

    notice: the notebook's message while the job runs. about_results: its message after the job ended.
    """

    def __init__(self, job: Job, log_path: str, tail_lines: int = 200) -> None:
        self.job = job
        self.log_path = log_path
        self.notice = ""
        self.about_results = ""
        self.tails: dict[int, TerminalTail] = {}
        self.skipped_bytes: dict[int, int] = {}
        self._attempts: dict[int, int] = {}
        self._displays: dict[tuple[int, str], Display] = {}
        self.metrics = JobMetrics()
        self._connection: ConnectionStatus | None = None
        self._tail_lines = tail_lines
        self._sent_head: dict[str, Any] | None = None
        self._metrics_new = False
        self._plot_at = 0.0
        self.result = b""
        """The job's result, if it was small enough to come along with the end."""

    def apply(self, event: Event) -> None:
        if isinstance(event, Job):
            self.job = event
        elif isinstance(event, Ended):
            self.job, self._connection = event.job, None
        elif isinstance(event, ConnectionStatus):
            self._connection = event
        elif isinstance(event, Records):
            self.metrics.add(event.records)
            self._metrics_new = True
        elif isinstance(event, Displays):
            self._display(event)
        elif isinstance(event, SmallResult):
            self.result = event.data
        elif event.stream.startswith("rank-"):
            self._print(int(event.stream.removeprefix("rank-")), event)

    def _print(self, rank: int, chunk: LogChunk) -> None:
        if rank not in self.tails:
            ranks = max(self.job.world_size or 1, rank + 1)
            self.tails[rank] = TerminalTail(self._tail_lines, min(64 * 1024, _ALL_TAILS_BYTES // ranks))
        self.skipped_bytes[rank] = self.skipped_bytes.get(rank, 0) + chunk.skipped_bytes
        begins = chunk.attempt > self._attempts.get(rank, 1)
        if begins or chunk.skipped_bytes:
            self.tails[rank].cut()
        if begins:
            self.tails[rank].feed(f"--- attempt {chunk.attempt} ---\n")
        self._attempts[rank] = chunk.attempt
        self.tails[rank].feed(chunk.text)

    def _display(self, event: Displays) -> None:
        for display in event.displays:
            self._displays[event.rank, display.id] = display
            if event.rank in self.tails:
                self.tails[event.rank].changed(display.id)

    def entry(self, rank: int, line: str | DisplayLine) -> Entry:
        """Return a rank's entry: a line's text, or the displayed data."""
        if isinstance(line, str):
            return line
        display = self._displays.get((rank, line.id))
        if display is None:
            return {"text/plain": line.text}
        sizes = {"width": display.width, "height": display.height}
        given = {name: size for name, size in sizes.items() if size is not None}
        return {"text/plain": line.text, **display.data, **given}

    def first_shown(self) -> int | None:
        """Return the rank to show first: the failed rank, else the lowest."""
        failed = None if self.job.error is None else self.job.error.rank
        return failed if failed in self.tails else min(self.tails, default=None)

    def elapsed_s(self, now: float) -> float:
        """Run time in seconds; before the start, waiting time."""
        begin = self.job.created_at if self.job.started_at is None else self.job.started_at
        return max(0.0, (now if self.job.ended_at is None else self.job.ended_at) - begin)

    def title(self) -> str:
        job = self.job
        title = _TITLES[job.state]
        if job.state is JobState.QUEUED and job.queue_position is not None:
            title += f", position {job.queue_position}"
        if job.world_size and job.state is not JobState.QUEUED:
            title += f" on {job.world_size} rank{'s' if job.world_size > 1 else ''}"
        return title

    def detail(self, now: float) -> str:
        """Return the notebook's message and the reason for the job's state."""
        job = self.job
        error = error_text(job.error) if job.error is not None else ""
        if job.state.terminal:
            parts = [self.about_results, error, job.note]
        else:
            ours = self._contact(now) or self.notice or (_STOPPING if job.state is JobState.STOPPING else "")
            starts = job.expected_start_at if job.state is JobState.QUEUED else None
            expected = "" if starts is None else f"expected to start in {duration(starts - now)}"
            parts = [ours, job.reason, job.note, expected, error]
        return " · ".join(part for part in parts if part)

    @property
    def in_contact(self) -> bool:
        return self._connection is None or not self._connection.lost

    def _contact(self, now: float) -> str:
        """Return a message about the connection to the service; "" if it is fine."""
        seen = self._connection
        if seen is None:
            return ""
        if seen.lost:
            return (
                f"No contact with the cluster for {duration(seen.disconnected_s)} ({seen.lost}): "
                "the job goes on, connecting again"
            )
        back = f"Connected again after {duration(seen.disconnected_s)}, no output was lost"
        return back if now - seen.at < _BACK_SHOWN_S else ""

    def change(self, now: float) -> dict[str, Any]:
        """Return the changes since the last call; empty when there are none."""
        change: dict[str, Any] = {}
        head = self._head(now)
        # The panel counts elapsed time by itself.
        compared = {key: value for key, value in head.items() if key != "elapsed_s"}
        if compared != self._sent_head:
            change["head"], self._sent_head = head, compared
        tails = {rank: tail.take_change() for rank, tail in sorted(self.tails.items())}
        ranks = {str(rank): self._tail(rank, tail) for rank, tail in tails.items() if tail is not None}
        if ranks:
            change["ranks"] = ranks
        if self._metrics_new and now - self._plot_at >= _PLOT_EVERY_S:
            change["metrics"], self._metrics_new, self._plot_at = self._metrics(), False, now
        return change

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return the full state, for a new panel."""
        ranks = {str(rank): self._tail(rank, tail.whole()) for rank, tail in sorted(self.tails.items())}
        return {"full": True, "head": self._head(now), "ranks": ranks, "metrics": self._metrics()}

    def _head(self, now: float) -> dict[str, Any]:
        job = self.job
        return {
            "id": job.id,
            "cell": job.cell_number,
            "name": job.name,
            "state": job.state.value,
            "terminal": job.state.terminal,
            "ticking": job.ended_at is None,
            "stopping": bool(self.notice),
            "title": self.title(),
            "detail": self.detail(now),
            "nodes": ", ".join(job.nodes),
            "elapsed_s": self.elapsed_s(now),
            "log": self.log_path,
            "failed_rank": None if job.error is None else job.error.rank,
        }

    def _tail(self, rank: int, change: TailChange) -> dict[str, Any]:
        skipped = self.skipped_bytes.get(rank, 0)
        entries = tuple(
            {_COLOURED: as_html(entry)} if isinstance(entry, str) and "\x1b[" in entry else entry
            for entry in (self.entry(rank, line) for line in change.lines)
        )
        return {"first": change.first, "start": change.start, "entries": entries, "skipped": skipped}

    def _metrics(self) -> dict[str, Any]:
        progress = self.metrics.progress
        return {
            "plot": plot_html(self.metrics.curves, self.metrics.left_out, self.metrics.other_ranks),
            "progress": None if progress is None else progress_words(progress),
        }


def progress_words(progress: RankProgress) -> dict[str, Any]:
    """Return a progress bar's fraction (0 to 1; None if the total is unknown) and its two texts."""
    total = progress.total
    count = f"{progress.done:g}" if total is None else f"{progress.done:g} of {total:g}"
    left = "" if progress.left_s is None or progress.left_s < 0.5 else f"{duration(progress.left_s)} left"
    share = min(1.0, progress.done / total) if total else None
    return {"share": share, "text": f"{progress.label} {count}".strip(), "left": left}


def duration(seconds: float) -> str:
    """Format a duration: 8.2 s, 3 min 20 s, 2 h 5 min."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
