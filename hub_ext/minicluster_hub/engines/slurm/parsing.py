"""Reads what Slurm's commands print: pure. Columns of our own choice, since --json needs plugins.

A line holds columns separated by `|`. A column that may hold anything (a name, a reason) is the last one.
Users choose the names of jobs and steps, and a name may hold line breaks. So the lines of jobs and steps
begin with a mark that nobody else knows: a line without it was made by a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

SEPARATOR = "|"
JOB_FORMAT = "%i|%u|%T|%S|%e|%N|%r|%j"
STEP_FORMAT = "%i|%N|%u|%j"
NODE_FORMAT = "%N|%T|%c|%m|%G|%o|%E"

_DOWN = ("down", "fail", "failing", "unknown", "error", "inval", "future", "powered_down", "powering_down")
_CLOSED = ("drain", "draining", "drained", "maint", "reserved", "reboot", "blocked")
_FULL = ("allocated", "completing")
_HAS_NODES = ("RUNNING", "CONFIGURING")
_GPUS = re.compile(r"\bgpu(?::[^:,()]+)?:(\d+)")
_INDEX = re.compile(r"\bgpu[^,()]*\(IDX:([\d,-]+)\)")
_DETAIL = re.compile(r"\bNodes=(\S+) CPU_IDs=(\S+) Mem=\S* GRES=(\S*)")
_BRACKETS = re.compile(r"([^,\[\]]*)\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job as squeue shows it. starts_at: the estimate while it waits; None: Slurm has none.

    ends_at: when its time limit ends it while it runs; None: it has no limit.
    """

    id: int
    name: str
    user: str
    state: str
    starts_at: float | None
    nodes: tuple[str, ...]
    reason: str
    ends_at: float | None = None

    @property
    def pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def running(self) -> bool:
        return self.state == "RUNNING"

    @property
    def has_nodes(self) -> bool:
        """Whether it runs, or waits for its nodes to be switched on and prepared."""
        return self.state in _HAS_NODES

    @property
    def ending(self) -> bool:
        """Whether it has ended, and Slurm clears up after it."""
        return self.state == "COMPLETING"


@dataclass(frozen=True, slots=True)
class SlurmStep:
    """A step of a job. id: as scancel takes it (12.0)."""

    id: str
    job_id: int
    nodes: tuple[str, ...]
    user: str
    name: str


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """A node of a partition. reason: an admin's, why it is down or drained."""

    name: str
    state: str
    cpus: int
    memory_bytes: int
    gpus: int
    address: str
    reason: str

    @property
    def up(self) -> bool:
        """Whether it is there and answers."""
        return "*" not in self.state and not self.plain_state.startswith(_DOWN)

    @property
    def plain_state(self) -> str:
        """The state without the marks of its power and of its answers."""
        return self.state.rstrip("*~#!%$@^-+").lower()

    @property
    def closed(self) -> str:
        """Why it takes nothing new; "" if it does, or if jobs fill it."""
        if not self.plain_state.startswith(_CLOSED):
            return ""
        return f"Slurm: {self.plain_state}{f' ({self.reason})' if self.reason not in ('', 'none') else ''}"

    @property
    def full(self) -> bool:
        """Whether jobs have all of it."""
        return self.plain_state in _FULL


@dataclass(frozen=True, slots=True)
class Granted:
    """What a job has of a node. gpus: their numbers; () if Slurm does not number them. cpus: how many."""

    node: str
    gpus: tuple[int, ...]
    gpu_count: int
    cpus: int


def jobs(text: str, mark: str) -> list[SlurmJob]:
    """Read `squeue` with a mark before JOB_FORMAT, in UTC; without arrays (12_3) and parts of heterogeneous
    jobs (12+1)."""
    found: list[SlurmJob] = []
    for job_id, user, state, starts, ends, nodes, reason, name in _rows(text, 8, mark):
        if job_id.isdecimal():
            starts_at = _moment(starts) if state == "PENDING" else None
            held = () if state == "PENDING" else tuple(hosts(nodes))
            ends_at = _moment(ends) if state == "RUNNING" else None
            found.append(SlurmJob(int(job_id), name, user, state, starts_at, held, reason, ends_at))
    return found


def steps(text: str, mark: str) -> list[SlurmStep]:
    """Read `squeue --steps` with a mark before STEP_FORMAT, without batch scripts and other steps of Slurm
    itself."""
    found: list[SlurmStep] = []
    for step_id, nodes, user, name in _rows(text, 4, mark):
        job_id, _, number = step_id.partition(".")
        if job_id.isdecimal() and number.isdecimal():
            found.append(SlurmStep(step_id, int(job_id), tuple(hosts(nodes)), user, name))
    return found


def nodes(text: str) -> list[SlurmNode]:
    """Read `sinfo --Node` with NODE_FORMAT: one line for each node and partition; each node is read once."""
    found: dict[str, SlurmNode] = {}
    for name, state, cpus, memory_mb, gres, address, reason in _rows(text, 7):
        memory_bytes = int(memory_mb.rstrip("+") or 0) * 2**20
        node = SlurmNode(
            name, state, int(cpus.rstrip("+") or 0), memory_bytes, gpus_of(gres), address or name, reason
        )
        found.setdefault(name, node)
    return list(found.values())


def gpus_of(gres: str) -> int:
    """Return the number of GPUs in a list of generic resources: gpu:2, gpu:tesla:2(S:0-1), (null)."""
    return sum(int(count) for count in _GPUS.findall(gres))


def granted(text: str) -> list[Granted]:
    """Read `scontrol show job --detail --oneliner` of one running job."""
    found: list[Granted] = []
    for names, cpus, gres in _DETAIL.findall(text):
        # A node with GPUs of several types has a part for each type; the numbers count all GPUs.
        gpus = tuple(sorted(gpu for part in _INDEX.findall(gres) for gpu in numbers(part)))
        count = len(list(numbers(cpus)))
        found += [Granted(node, gpus, gpus_of(gres), count) for node in hosts(names)]
    return found


def numbers(text: str) -> Iterator[int]:
    """Yield the numbers of 0-2,5."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def hosts(text: str) -> Iterator[str]:
    """Yield the names of a list of hosts: n1, n[1-3,5], rack[1-2]n[01-02]."""
    if text in ("", "(null)", "None assigned", "N/A"):
        return
    for part in _parts(text):
        yield from _expanded(part)


def _parts(text: str) -> Iterator[str]:
    """Split a list at its commas outside of brackets."""
    depth = begin = 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield text[begin:at]
            begin = at + 1
    yield text[begin:]


def _expanded(text: str) -> Iterator[str]:
    found = _BRACKETS.match(text)
    if found is None:
        yield text
        return
    for part in found[2].split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            for rest in _expanded(text[found.end() :]) if text[found.end() :] else ("",):
                yield f"{found[1]}{number:0{len(first)}d}{rest}"


def _rows(text: str, columns: int, mark: str = "") -> Iterator[list[str]]:
    """Yield the columns of each line that begins with the mark, if there is one."""
    before = f"{mark}{SEPARATOR}" if mark else ""
    for line in text.splitlines():
        row = [column.strip() for column in line.removeprefix(before).split(SEPARATOR, columns - 1)]
        if line.startswith(before) and len(row) == columns:
            yield row


def _moment(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:  # N/A
        return None
