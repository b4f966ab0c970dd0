"""Readers of traces: text in, jobs out. Which format a file has, it tells itself by its first line."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from minicluster_hub.simulator.work import TracedJob

_FORMATS = {
    "lab12": "job_id,user,submit_s,duration_s,num_gpus,walltime_s",
    "philly": "timestamp,duration,num_gpus,gpu_time,cluster",
    "pollux": "name,time,application,num_replicas,batch_size",
    "muri": "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time",
    "tiresias": "job_id,num_gpu,submit_time,iterations,model_name,duration,interval",
}
"""The names of the columns that a file of each format begins with; a file of Gavel's has no such line."""
_OWN = _FORMATS["lab12"]


class TraceUnknown(ValueError):
    def __init__(self, first_line: str) -> None:
        super().__init__(
            f"this is no trace that is known here: {first_line[:120]!r}; "
            f"known are gavel and {', '.join(_FORMATS)}; one of your own is CSV that begins with {_OWN}"
        )


class TraceDamaged(ValueError):
    """A trace of a known form with something in it that has no place there."""


class Trace(Protocol):
    """A trace's file and what lies about it, whoever keeps them.

    beside: the text of another file, by its path from the trace's folder.
    names: of the files in a folder, by its path from the trace's folder.
    """

    def text(self) -> str: ...

    def beside(self, path: str) -> str: ...

    def names(self, path: str) -> list[str]: ...


def read(trace: Trace) -> list[TracedJob]:
    """Return the jobs of a trace. Raises TraceUnknown, TraceDamaged."""
    first_line = trace.text().partition("\n")[0].strip()
    known = [name for name, columns in _FORMATS.items() if first_line.startswith(columns)]
    if not known and first_line.count("\t") < 6:
        raise TraceUnknown(first_line)
    name = known[0] if known else "gavel"
    try:
        return import_module(f"{__name__}.{name}").read(trace)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise TraceDamaged(f"the trace, of the form of {name}, cannot be read: {error}") from error
