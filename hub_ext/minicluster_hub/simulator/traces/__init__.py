"""Readers of traces: a file in, jobs out. A file's first line identifies its format."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from minicluster_hub.simulator.workload import TracedJob

_LAB = "job_id,user,submit_s,duration_s,num_gpus,walltime_s"
_FORMATS = {
    "lab12": (_LAB, "tables:read_lab"),
    "philly": ("timestamp,duration,num_gpus,gpu_time,cluster", "tables:read_philly"),
    "pollux": ("name,time,application,num_replicas,batch_size", "pollux:read"),
    "muri": (
        "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time",
        "tables:read_muri",
    ),
    "tiresias": (
        "job_id,num_gpu,submit_time,iterations,model_name,duration,interval",
        "tables:read_tiresias",
    ),
}
"""The first columns of each format, and its reader."""


class TraceUnknown(ValueError):
    """The first line fits no format."""

    def __init__(self, first_line: str) -> None:
        super().__init__(
            f"this is no trace that is known here: {first_line[:120]!r}; "
            f"known are gavel and {', '.join(_FORMATS)}; one of your own is CSV that begins with {_LAB}"
        )


class TraceDamaged(ValueError):
    """A trace of a known format breaks the rules of that format."""


def read(trace: Path) -> list[TracedJob]:
    """Return the jobs of a trace. Raises TraceUnknown, TraceDamaged, OSError, UnicodeDecodeError."""
    first_line = trace.read_text().partition("\n")[0].strip()
    known = [name for name, (columns, _) in _FORMATS.items() if first_line.startswith(columns)]
    # Gavel's files have no header.
    if not known and first_line.count("\t") < 6:
        raise TraceUnknown(first_line)
    name, reader = (known[0], _FORMATS[known[0]][1]) if known else ("gavel", "gavel:read")
    module, _, function = reader.partition(":")
    try:
        return getattr(import_module(f"{__name__}.{module}"), function)(trace)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise TraceDamaged(f"the trace, of the form of {name}, cannot be read: {error}") from error
