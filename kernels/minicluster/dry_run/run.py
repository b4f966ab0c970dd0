"""A dry run as the notebook does it: lay the cell out, run virtual ranks beside the kernel, predict."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from minicluster.capture.bundle import pack_bundle
from minicluster.capture.capture import Captured
from minicluster.cell_run import RunContext, job_spec, with_framework
from minicluster.display.failures import failure_lines
from minicluster.dry_run.cluster import ClusterView
from minicluster.dry_run.measured import RankFindings
from minicluster.dry_run.predict import Link
from minicluster.dry_run.report import DryRun
from minicluster.dry_run.task import DryRunTask, virtual_ranks
from minicluster.errors import MiniclusterError
from minicluster.options import CellOptions
from minicluster.pickling.parts import digests
from minicluster.runtime.agent.preparation import lay_out
from minicluster.runtime.rank.environment import NODE_SLOTS, SLOTS
from minicluster.train.folders import LINKS
from minicluster.train.snapshots.store import MEMORY
from minicluster.wire import JobError, RunOrder

LIMIT_S = 60.0
"""How long each virtual rank may take to its first step."""
TIMING_S = 15.0
"""How long steps are timed after the first ones."""
_NO_PAYLOAD = "0" * 64
_LOOK_S = 0.1
_PRIVATE = ("JUPYTERHUB_", "JPY_", "MINICLUSTER_")
"""Beginnings of variables that ranks do not have: addresses and tokens of the notebook."""
_NO_DATA = (
    "A dry run has no data sets: they are on the cluster's nodes. Run the cell without --dry-run, or let it "
    "read a small sample that lies beside the notebook."
)


class DryRunError(MiniclusterError):
    """The cell failed on a virtual rank, as it would on the cluster. error: its traceback and rank."""

    def __init__(self, error: JobError) -> None:
        self.error = error
        super().__init__(error.message, error.hint)

    def _render_traceback_(self) -> list[str]:
        where = "" if self.message.startswith("Rank ") else f"Rank {self.error.rank}: "
        return failure_lines(f"DryRunError: {where}{self.message}", self.error.traceback, self.hint)


@dataclass(frozen=True)
class Virtual:
    """What the virtual ranks do, and what they found."""

    task: DryRunTask
    findings: tuple[RankFindings, ...]


def dry_run(captured: Captured, options: CellOptions, context: RunContext) -> DryRun:
    """Run a cell's first steps on virtual ranks; return what they predict.

    Raises DryRunError for an error of the cell, OptionWrong, and BundleNotSendable.
    """
    options = with_framework(captured, options)
    cluster = ClusterView.ask(context.service, job_spec(options, _NO_PAYLOAD))
    nodes, ranks_per_node = cluster.shape(options)
    order = order_of(options, nodes, ranks_per_node, is_local=_is_local(context.service.url))
    with task_folder(captured, options, context.limits.bundle_bytes) as folder:
        environ = environment(folder, options, cluster.slots_per_node)
        virtual = run_virtual(folder, order, environ)
    for found in virtual.findings:
        if found.error is not None:
            raise DryRunError(_explained(JobError.model_validate(found.error), options))
    link = Link(known=False) if options.link_gbit is None else Link(options.link_gbit, known=True)
    return DryRun(virtual.findings, options, cluster, link, ranks_per_node)


def order_of(options: CellOptions, nodes: int, ranks_per_node: int, *, is_local: bool) -> RunOrder:
    """Return the order of rank 0's task. is_local: all ranks would share this machine's cores."""
    return RunOrder(
        attempt=1,
        job_id=0,
        payload_sha256=_NO_PAYLOAD,
        first_rank=0,
        local_world_size=ranks_per_node,
        world_size=nodes * ranks_per_node,
        group_rank=0,
        group_world_size=nodes,
        # The store is virtual. What begins with 127 makes ranks share the cores.
        master_addr="127.0.0.1" if is_local else "192.0.2.1",
        master_port=1,
        env=dict(options.env),
        bundle_sha256=_NO_PAYLOAD if options.files else None,
        data={use.name: "" for use in options.data},
        seed=options.seed,
        comm=options.comm,
    )


@contextmanager
def task_folder(captured: Captured, options: CellOptions, bundle_limit_bytes: int) -> Iterator[Path]:
    """Lay the cell out as an agent does; remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="minicluster-dry-run-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        attempt, parts = folder / "attempt", folder / "parts"
        for made in (attempt, parts, folder / "data-sets", folder / "memory"):
            made.mkdir()
        hashes = digests(captured.payload.parts)
        for sha256, part in zip(hashes, captured.payload.parts, strict=True):
            (parts / sha256).write_bytes(part.data)
        (attempt / "payload").write_bytes(captured.payload.without_parts(hashes))
        if options.files:
            (attempt / "bundle").write_bytes(pack_bundle(options.files, Path.cwd(), bundle_limit_bytes))
        yield folder


def environment(folder: Path, options: CellOptions, node_slots: int) -> dict[str, str]:
    """Return the environment of the virtual ranks: the notebook's, without what only notebooks have."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_PRIVATE)}
    return {
        **kept,
        "MINICLUSTER_SCRATCH": str(folder),
        MEMORY: str(folder / "memory"),
        LINKS: str(folder / "data-sets"),
        SLOTS: ",".join(map(str, range(options.slots_per_node))),
        NODE_SLOTS: str(node_slots),
    }


def run_virtual(
    folder: Path,
    order: RunOrder,
    environ: Mapping[str, str],
    show: Callable[[str], None] = lambda text: print(text, end="", flush=True),  # noqa: T201
) -> Virtual:
    """Run the virtual ranks in a process of their own, which ends with this call however it ends."""
    ranks = virtual_ranks(order.world_size)
    task = DryRunTask(folder=str(folder), order=order, ranks=ranks, limit_s=LIMIT_S, timing_s=TIMING_S)
    if order.bundle_sha256:
        lay_out(task.paths)
    path = folder / "task.json"
    path.write_text(task.model_dump_json())
    # Without the notebook's folder on the path: a module there must not replace one of the runtime's.
    command = [sys.executable, "-P", "-m", "minicluster.dry_run", str(path)]
    with subprocess.Popen(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            _relay(process, show)
        finally:
            process.kill()
    return Virtual(task, tuple(_findings(task)))


def _relay(process: subprocess.Popen[bytes], show: Callable[[str], None]) -> None:
    """Show what the virtual ranks print, until their process has ended."""
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    pipe = process.stdout.fileno()
    # Not select(), which takes only descriptors below 1024: a notebook may have more.
    printed = select.poll()
    printed.register(pipe, select.POLLIN)
    ended = False
    while not ended:
        # What the ranks started may hold the pipe open.
        ended = process.poll() is not None
        while printed.poll(0 if ended else _LOOK_S * 1000):
            data = os.read(pipe, 1 << 16)
            if not data:
                process.wait()
                return
            show(data.decode("utf-8", "replace"))


def _findings(task: DryRunTask) -> Iterator[RankFindings]:
    for turn in range(len(task.ranks)):
        path = task.findings(turn)
        if path.exists():
            yield RankFindings.model_validate_json(path.read_bytes())
    if not task.findings(0).exists():
        raise MiniclusterError(
            "The dry run's process ended before its first rank did: see what it printed.",
            "Run the cell without --dry-run, and report this.",
        )


def _explained(error: JobError, options: CellOptions) -> JobError:
    missing = error.message.startswith(("DataSetNotHere", "FileNotFoundError"))
    return error.model_copy(update={"hint": _NO_DATA}) if options.data and missing else error


def _is_local(url: str) -> bool:
    return (urlsplit(url).hostname or "").startswith(("127.", "localhost"))
