"""What a dry run shows: memory of a rank, time of a step and an epoch, and when the job would start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

from minicluster.display.tables import Table
from minicluster.display.view import duration
from minicluster.dry_run.cluster import ClusterView
from minicluster.dry_run.measured import CPU, Ended, RankFindings
from minicluster.dry_run.predict import (
    Link,
    Prediction,
    StepModel,
    epoch_steps,
    memory_of,
    node_counts,
    rows,
)
from minicluster.options import CellOptions
from minicluster.wire.comm import AUTO, CommMethod, comm_method


class DryRun:
    """The outcome of a dry run, as text and as HTML. link: what was taken for the network."""

    def __init__(
        self,
        findings: Sequence[RankFindings],
        options: CellOptions,
        cluster: ClusterView,
        link: Link,
        ranks_per_node: int,
    ) -> None:
        self.findings = tuple(findings)
        self.memory = memory_of(self.timed, self._traced)
        self.steps = StepModel(self.timed, ranks_per_node, link)
        self._options, self._cluster, self._link = options, cluster, link
        self._ranks_per_node = ranks_per_node

    @property
    def timed(self) -> RankFindings:
        return self.findings[0]

    @property
    def _traced(self) -> RankFindings | None:
        return next((one for one in self.findings if one.traced is not None), None)

    @property
    def nodes(self) -> int:
        return self.timed.world_size // self._ranks_per_node

    def predict(self, comm: str, nodes: int) -> Prediction:
        """Return how long a step takes with a `--comm` on a number of nodes."""
        return self.steps.predict(CommMethod(comm), nodes)

    def __repr__(self) -> str:
        return "\n\n".join(f"{text}\n{table!r}".strip() if table else text for text, table in self._parts())

    def _repr_html_(self) -> str:
        return "".join(
            f"<p>{escape(text)}</p>" + (table._repr_html_() if table else "") for text, table in self._parts()
        )

    def _parts(self) -> Iterator[tuple[str, Table | None]]:
        yield self._ended(), None
        yield self._memory_text(), self._memory_table()
        counts = node_counts(self.nodes)
        asked = comm_method(self._options.comm) if self._options.comm else None
        found = list(rows(self.steps, counts, asked)) if self._times_hold else []
        if found:
            yield self._step_text(), _by_nodes("step", counts, found, lambda one: _brief(one.step_s))
            yield from self._epochs(counts, found)
        else:
            yield self._no_times(), None
        yield self._start(), None
        for note in self._notes():
            yield note, None

    def _ended(self) -> str:
        ranks = ", ".join(str(one.rank) for one in self.findings)
        ran = (
            "Dry run: nothing was queued, and no names come back. "
            f"Ran as rank {ranks} of {self.timed.world_size}, one after the other"
        )
        last = self.findings[-1]
        if last.ended is Ended.STEPS:
            return f"{ran}: the first steps were made without an error."
        if last.ended is Ended.CELL:
            return f"{ran}: the cell came to its end without an error, after {last.steps} optimizer steps."
        line = "" if last.line is None else f" It was at line {last.line} of the cell."
        return f"{ran}: rank {last.rank} had made no step when its time was over.{line}"

    # Memory.

    def _memory_text(self) -> str:
        if self.timed.device != CPU:
            return f"Memory of a rank at its peak, as torch's allocator has it on {self.timed.device}:"
        also = f"; Python and torch themselves take {_size(self.memory.base)} besides"
        where = "Memory of a rank at its peak, by which its process grows"
        if self._cluster.has_gpus:
            where += " (on this CPU; on the ranks' GPUs it is about what the first four columns add up to)"
        return f"{where}{also}:"

    def _memory_table(self) -> Table:
        memory = self.memory
        parts = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.other)
        heads = ("weights", "gradients", "optimizer", "activations", "other", "peak of a rank")
        return Table(heads, (tuple(map(_size, (*parts, memory.peak))),), "")

    # Times.

    @property
    def _times_hold(self) -> bool:
        """Whether the ranks' machines are of the kind on which steps were timed."""
        return not (self._cluster.has_gpus and self.timed.device == CPU)

    def _step_text(self) -> str:
        guess = "" if self._link.known else " (a guess: --link 2.5 says another)"
        measured = f"timed here, on {self.timed.device}"
        if self.timed.device == CPU:
            measured += f" with {self.timed.threads} thread{'s' if self.timed.threads > 1 else ''}"
        return f"Time of a step, {measured}; network of {self._link.gbit_s:g} Gbit/s{guess}:"

    def _no_times(self) -> str:
        if self.timed.times:
            return "No times: steps were timed on a CPU here, but the ranks have GPUs."
        return "No times: the cell made too few optimizer steps."

    def _epochs(
        self, counts: Sequence[int], found: Sequence[tuple[str, Mapping[int, Prediction]]]
    ) -> Iterator[tuple[str, Table]]:
        epoch = self.timed.epoch
        if epoch is None:
            return
        steps = {count: epoch_steps(epoch, count * self._ranks_per_node) for count in counts}
        each = ", ".join(f"{steps[count]} on {count}" for count in counts)
        yield (
            f"Time of an epoch of {epoch.samples} samples (steps of a rank: {each}):",
            _by_nodes("epoch", counts, found, lambda one: duration(one.step_s * steps[one.nodes])),
        )

    # The queue.

    def _start(self) -> str:
        cluster, start = self._cluster, self._cluster.start
        if start is None:
            return f"When it would start is not known. {cluster.trouble}"
        if start.refused:
            return f"The cluster would refuse this job: {start.refused}. {start.hint}".strip()
        if start.at_once:
            return "It would start now."
        if start.expected_start_at is None:
            return f"It would wait: {start.reason}. Nobody knows until when."
        text = f"It would start in about {duration(start.expected_start_at - cluster.now)}"
        clock = time.strftime("%a %H:%M", time.localtime(start.expected_start_at))
        return f"{text}, {clock}: it {start.reason}."

    def _notes(self) -> Iterator[str]:
        if self.timed.own_hook:
            yield "The cell has a communication hook of its own, so --comm does not apply to it."
        elif self.timed.times and not self.timed.distributed:
            yield (
                "The cell made no DistributedDataParallel (mc.prepare() makes one): --comm does not apply."
            )
        if AUTO in self.steps.methods and self.nodes > 1 and self._times_hold:
            yield f"--comm auto would choose {self.steps.chosen(self.nodes)} on {self.nodes} nodes."
        if self._options.image:
            yield f"It ran with the packages of this notebook, not with those of {self._options.image}."
        if self._options.fault_tolerant:
            yield "It ran as without --fault-tolerant."


def _by_nodes(
    what: str,
    counts: Sequence[int],
    found: Sequence[tuple[str, Mapping[int, Prediction]]],
    shown: Callable[[Prediction], str],
) -> Table:
    heads = ("--comm", *(f"{what}, {count} node{'s' if count > 1 else ''}" for count in counts))
    lines = tuple((name, *(shown(of[count]) for count in counts)) for name, of in found)
    return Table(heads, lines, "")


def _brief(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _size(size_bytes: int) -> str:
    if size_bytes < 1e9:
        return f"{size_bytes / 1e6:.0f} MB"
    return f"{size_bytes / 1e9:.2f} GB"
