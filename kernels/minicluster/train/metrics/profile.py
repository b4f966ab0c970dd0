"""mc.profile: where the time of some steps goes, with a trace for Perfetto."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minicluster.train import place
from minicluster.train.calls import WrongCall, called_as
from minicluster.train.folders import output
from minicluster.train.metrics import log as logging
from minicluster.train.metrics import step_times
from minicluster.train.metrics.media import Table
from minicluster.train.metrics.profile_times import Part, Spans, Times, part_of, times

_LIKE = "with mc.profile(steps=10, ranks=[0]):"
_MOST_STEPS = 1000
_SKIPPED_STEPS = 2
"""The first ones are slow: memory is allocated, and connections are made."""
_OPERATIONS = 15
_FAILED = (RuntimeError, OSError, ValueError, TypeError, AttributeError, KeyError)
_asked_for: list[_Recording] = []
"""What the run's page asked for and is not done; one records at a time, in this order."""


@called_as(_LIKE)
def profile(steps: int = 10, ranks: Collection[int] = (0,)) -> Any:
    """Profile some steps of the training loop in the block: `with mc.profile(steps=10, ranks=[0]):`.

    A step ends with the optimizer's; the first two are left out, and the loop goes on after the last one
    without the profiler. Each of these ranks prints a table of computing, communication, waiting for data and
    idle time, logs it with the costliest operations, and writes a trace `profile-rank-N.json.gz` into
    mc.output(): open it at ui.perfetto.dev. Raises WrongCall.
    """
    if not isinstance(steps, int) or not 1 <= steps <= _MOST_STEPS:
        raise WrongCall(f"mc.profile(steps={steps!r}) takes 1 to {_MOST_STEPS} steps.", f"Like this: {_LIKE}")
    return _profiled(steps, frozenset(ranks))


@contextmanager
def _profiled(steps: int, ranks: frozenset[int]) -> Iterator[None]:
    if place.rank() not in ranks:
        yield
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    recording = _Recording(steps, _SKIPPED_STEPS)
    hook = register_optimizer_step_post_hook(lambda optimizer, _args, _named: recording.stepped(optimizer))
    try:
        yield
    finally:
        hook.remove()
        recording.stop()


def profile_next(steps: int) -> None:
    """Profile the next steps of a training that is under way. Another thread than the training's may call it.

    An earlier request is done first. Nothing happens if the cell has no optimizer.
    """
    recording = _Recording(min(steps, _MOST_STEPS), skipped=1)

    def stepped(optimizer: Any) -> None:
        if _asked_for[0] is not recording:
            return
        try:
            recording.stepped(optimizer)
        except _FAILED as error:  # The training goes on: it did not ask for this.
            recording.stopped = True
            print(f"Rank {place.rank()} could not be profiled: {error}")  # noqa: T201
        if recording.stopped:
            step_times.watchers.remove(stepped)
            del _asked_for[0]

    _asked_for.append(recording)
    step_times.watchers.append(stepped)


class _Recording:
    """Starts the profiler after the first steps, which it skips, and stops it after the last one."""

    def __init__(self, steps: int, skipped: int) -> None:
        from torch.profiler import profile

        # Otherwise it prints two lines of its own.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._recorder = profile()
        self._steps = steps
        self._done = -skipped
        self._optimizer: Any = None
        self.stopped = False

    def stepped(self, optimizer: Any) -> None:
        """Take note of a step. With several optimizers, those of the first count."""
        self._optimizer = self._optimizer or optimizer
        if self.stopped or optimizer is not self._optimizer:
            return
        self._done += 1
        if self._done == 0:
            self._recorder.start()
        elif self._done == self._steps:
            self.stop()

    def stop(self) -> None:
        if self.stopped:
            return
        self.stopped = True
        if self._done >= 0:
            self._recorder.stop()
        if self._done > 0:
            _report(self._recorder, self._done)
        else:
            print(f"mc.profile: the block ended before step {_SKIPPED_STEPS + 1}.")  # noqa: T201


def _report(recorder: Any, steps: int) -> None:
    """Print and log what was found, and write the trace."""
    rank = place.rank()
    found = _times_of(recorder, steps)
    rows = found.rows()
    lines = [f"  {name:<18}{ms:10.2f} ms a step{share:8.0%}" for name, ms, share in rows]
    trace = _free(output() / f"profile-rank-{rank}.json.gz")
    recorder.export_chrome_trace(str(trace))
    head = f"Profile of {found.steps} steps on rank {rank}:"
    tail = f"The trace is {trace.name} in the job's files: open it at https://ui.perfetto.dev."
    print("\n".join([head, *lines, found.sentence(), tail]))  # noqa: T201
    table = [[name, round(ms, 3), round(share, 4)] for name, ms, share in rows]
    columns = ["part", "ms per step", "share"]
    logging.log(
        {
            "profile/time": Table([*table, [found.sentence(), None, None]], columns=columns),
            "profile/operations": Table(_operations(recorder), columns=["operation", "calls", "self ms"]),
        }
    )


def _times_of(recorder: Any, steps: int) -> Times:
    on_cpu: dict[Part, Spans] = {part: [] for part in Part}
    on_gpu: dict[Part, Spans] = {part: [] for part in Part}
    for event in recorder.events():
        spans = on_cpu if event.device_type.name == "CPU" else on_gpu
        spans[part_of(event.name)].append((event.time_range.start, event.time_range.end))
    every = [span for spans in (*on_cpu.values(), *on_gpu.values()) for span in spans] or [(0.0, 0.0)]
    begin, end = min(span[0] for span in every), max(span[1] for span in every)
    has_gpu = bool(on_gpu[Part.COMPUTE])
    spans = {**on_gpu, Part.DATA: on_cpu[Part.DATA]} if has_gpu else on_cpu
    return times(spans, begin, end, steps, on_gpu=has_gpu)


def _operations(recorder: Any) -> list[list[Any]]:
    averages = list(recorder.key_averages())

    def self_us(one: Any) -> float:
        return getattr(one, "self_device_time_total", 0.0) or one.self_cpu_time_total

    ordered = sorted(averages, key=self_us, reverse=True)
    return [[one.key, one.count, round(self_us(one) / 1e3, 3)] for one in ordered[:_OPERATIONS]]


def _free(path: Path) -> Path:
    """Return a name that is not taken: a cell may profile several times."""
    stem, number = path.name.removesuffix(".json.gz"), 1
    while path.exists():
        number += 1
        path = path.with_name(f"{stem}-{number}.json.gz")
    return path
