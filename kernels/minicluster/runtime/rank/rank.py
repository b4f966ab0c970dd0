"""One rank: runs a cell in a `__main__` of its own, in a process forked for it."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import fcntl
import json
import os
import platform
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from functools import partial
from multiprocessing import process
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import numpy as np
import torch

from minicluster.capture import versions
from minicluster.capture.cell import CellSource, CellSyntaxError
from minicluster.capture.notebook_folder import NotebookFolder
from minicluster.capture.payload import CellPayload, LeftBehind
from minicluster.capture.sources import Source, register_sources
from minicluster.changes.returning import NOTHING, ResultWriter, ReturnRequest
from minicluster.changes.shared_objects import SharedObjects
from minicluster.errors import MiniclusterError
from minicluster.pickling import pickling
from minicluster.results.result_file import write_result_file
from minicluster.runtime import system
from minicluster.runtime.agent.files import output
from minicluster.runtime.diagnosis import collectives, requests, stacks
from minicluster.runtime.displays.install import DisplayHooks
from minicluster.runtime.displays.publisher import Publisher, rank_bytes
from minicluster.runtime.paths import AttemptPaths, write_whole
from minicluster.runtime.rank import (
    children,
    cold,
    compile_cache,
    environment,
    folders,
    forked,
    measuring,
    tracebacks,
    values,
)
from minicluster.runtime.rank.groups import default_group, device
from minicluster.runtime.rank.libraries.choice import library_of
from minicluster.runtime.rank.parts import PartStore
from minicluster.runtime.rank.session import SessionCells
from minicluster.runtime.rank.tracebacks import hint_for_rank
from minicluster.runtime.settings import TOKEN_FILE
from minicluster.train.balance import rank as balance
from minicluster.train.comm import rank as comm
from minicluster.train.folders import OUTPUT
from minicluster.train.metrics import pending
from minicluster.train.snapshots.store import FOLDERS, job_folders
from minicluster.train.strategies import rank as divided
from minicluster.train.trials import ANSWERS_FD, CONTROL_FD, TRIAL
from minicluster.wire import RunOrder, Versions

_RECORDS_FD_FROM = 200
"""So high that a program started by the cell hardly uses the same number for a file."""

_REPORT_AFTER_S = 2.0
_POLL_S = 0.5


class NotebookDiffers(MiniclusterError):
    """The cell was pickled by another Python version, whose code objects this one cannot run."""


@dataclass(frozen=True)
class RankPipes:
    """Descriptors for writing, but for `answers`. control: receives JSON lines: how the cell ended, and what
    the rank of a trial asks. answers: the agent's answers to that."""

    output: int
    records: int
    control: int
    answers: int


class Rank:
    """One rank, from its fork to its exit."""

    def __init__(
        self, folder: Path, local_rank: int, pipes: RankPipes, order: RunOrder | None = None
    ) -> None:
        self.paths = AttemptPaths(folder)
        self.order = order or RunOrder.model_validate_json(self.paths.order.read_bytes())
        self.local_rank = local_rank
        self.rank = self.order.first_rank + local_rank
        self.pipes = pipes
        self.pid = os.getpid()
        # A `__main__` for the cell, so that its definitions pickle as in a notebook.
        cell_main = sys.modules["__main__"] = ModuleType("__main__")
        self.namespace: dict[str, Any] = cell_main.__dict__
        self.namespace["__builtins__"] = builtins
        self.given: frozenset[str] = frozenset()
        self.sources: dict[str, Source] = {}
        self.versions = Versions(python=platform.python_version())
        self.target = pickling.ANY_TARGET
        self.group: default_group.DefaultProcessGroup | None = None
        self.cuda = device.CudaContext()
        self.library = library_of(self.order, local_rank)
        self.home = NotebookFolder()
        self.at_home = False
        shown = self.paths.spool(f"display-{self.rank}")
        self.displays = DisplayHooks(Publisher(shown, rank_bytes(self.order.world_size)))
        self.back = ResultWriter(SharedObjects({}), self.namespace, self.target)
        self.commands_fd = -1

    def run(self) -> int:
        """Run the cell and return the process's exit code."""
        try:
            self._prepare()
            payload = CellPayload.from_bytes(self.paths.payload.read_bytes())
            if self.order.serve is not None:
                self._serve(payload)
                return 0
            self._load(payload)
            self.cuda.ready()
            cell, value = self._execute(payload)
            if os.getpid() != self.pid:
                return 0  # A child forked by the cell; it also ran the cell to its end.
            comm.average_weights()
            if self.order.session:
                self._stay()
            else:
                self._give_back(payload, cell, value)
        except BaseException as error:
            return self._failed(error)
        self._report("finished")
        return 0

    def _serve(self, payload: CellPayload) -> None:
        """Answer requests to a model until the replica is drained."""
        from minicluster.runtime.serving.replica import serve

        self._enter_folder(payload)
        serve(self.order, self.paths, self.commands_fd, self._report)
        self._report("finished")

    def _give_back(self, payload: CellPayload, cell: CellSource, value: Any) -> None:
        """End what the cell began, and write what the notebook gets."""
        comm.end()
        balance.end()
        wait_for_the_rest(lambda name: self._report("waiting", what=f"its {name}"))
        if payload.pull is None or payload.pull:
            divided.put_together(self.namespace, payload.result_limit_bytes)
        self.library.meet(lambda what: self._report("waiting", what=what))
        request = self._return_request(payload, cell, value)
        shared = values.share(self._connection, payload, self.back, request, self.namespace)
        if self.rank == 0 or (self.order.fault_tolerant and self.local_rank == 0):
            self._write_result(payload, shared)
        if self.group:
            self.group.wait_for_all()
        self.library.end(lambda what: self._report("waiting", what=what))

    def _stay(self) -> None:
        """Run the cells of a session until its end."""
        assert self.group is not None  # noqa: S101 - a session is not fault-tolerant
        cells = SessionCells(
            self.commands_fd, self.group, self.namespace, self._run_next, self._report, self._account_of_cell
        )
        cells.run()

    def _run_next(self, path: Path, result: Path) -> None:
        """Run a further cell of a session. What it makes stays here, but for the names of --pull."""
        payload = CellPayload.from_bytes(path.read_bytes())
        self.home = payload.home
        self._take_names(payload)
        cell, value = self._execute(payload)
        if os.getpid() != self.pid:
            os._exit(0)  # A child forked by the cell.
        comm.average_weights()
        if value is not None and self.rank == 0:
            self.displays.show(value)
        if self.rank == 0 and payload.pull:
            request = self._return_request(payload, cell, None)
            request = replace(request, value=NOTHING)
            absent = [name for name in payload.pull if name not in self.namespace]
            left = [LeftBehind(name, "", "the ranks do not have it") for name in absent]
            write_result_file(result, self.back, request, left)

    def _account_of_cell(self, error: BaseException) -> dict[str, Any]:
        if isinstance(error, SystemExit):
            code, message = _exit_of(error)
            return tracebacks.exit_account(message, code)
        text, hint = tracebacks.render(error, self.sources), ""
        if not isinstance(error, KeyboardInterrupt):
            hint = hint_for_rank(error, self.home, at_home=self.at_home)
        print(text, end="", file=sys.stderr)  # noqa: T201 - as Python does for an uncaught exception
        return tracebacks.account_of(error, text, 1, hint)

    def _prepare(self) -> None:
        with contextlib.suppress(OSError):  # With a full disk, this rank has no stack dumps.
            stacks.listen(self.paths.stacks(self.rank))
            answers = self.paths.collective_answers(self.rank)
            handlers = {
                requests.COLLECTIVE: partial(collectives.answer, answers),
                requests.PROFILE: measuring.profile,
            }
            requests.listen(self.paths.requests(self.rank), handlers)
        records_fd = fcntl.fcntl(self.pipes.records, fcntl.F_DUPFD_CLOEXEC, _RECORDS_FD_FROM)
        os.close(self.pipes.records)
        error_file = str(self.paths.error_file(self.rank))
        os.environ.pop(TOKEN_FILE, None)
        os.environ.update(environment.rank_environment(self.order, self.local_rank, error_file))
        os.environ[environment.RECORDS_FD] = str(records_fd)
        self._prepare_trial()
        os.environ[FOLDERS] = os.pathsep.join(map(str, job_folders(self.order.job_id)))
        scratch = self.paths.folder.parent
        os.environ[OUTPUT] = str(output.folder_of(scratch, self.order.job_id))
        threads = os.environ.setdefault(environment.THREADS, str(environment.fair_threads(self.order)))
        torch.set_num_threads(int(threads) if threads.isdecimal() and int(threads) else 1)
        seed_generators(self.order.seed, self.rank)
        default_group.choose_interface(self.order.master_addr)
        backend = self._choose_device()
        self.library.prepare()
        compile_cache.prepare(scratch, self.paths.compile_cache, self._report)
        measuring.prepare()
        self._follow_comm()
        self._make_group(backend)

    def _choose_device(self) -> str:
        """Take the rank's GPU for torch; return the process group's back end.

        Other frameworks take it themselves, and so does the process with a model that is served.
        """
        if self.order.serve is not None or not self.library.trains_with_torch:
            return "gloo"
        backend = device.choose(self.local_rank, self.order.local_world_size)
        self.cuda.begin()
        return backend

    def _follow_comm(self) -> None:
        if self.order.balance:
            balance.follow(self.order.comm)
        elif self.order.comm:
            comm.follow(self.order.comm)

    def _make_group(self, backend: str) -> None:
        if self.order.serve is not None:
            return  # Its model is loaded in a process of its own.
        if self.order.fault_tolerant:
            default_group.forbid_process_group(self.order.master_addr)
        else:
            self.group = default_group.DefaultProcessGroup(backend)
            if self.library.trains_with_torch:
                self.group.make()
            else:
                self.group.offer()

    def _prepare_trial(self) -> None:
        """Let mc.suggest and mc.log of a trial ask the agent."""
        if self.order.trial is not None:
            answers_fd = fcntl.fcntl(self.pipes.answers, fcntl.F_DUPFD_CLOEXEC, _RECORDS_FD_FROM)
            control_fd = fcntl.fcntl(self.pipes.control, fcntl.F_DUPFD_CLOEXEC, _RECORDS_FD_FROM)
            os.environ[TRIAL] = self.order.trial.model_dump_json()
            os.environ[ANSWERS_FD], os.environ[CONTROL_FD] = str(answers_fd), str(control_fd)
        if self.order.session or self.order.serve is not None:
            self.commands_fd = fcntl.fcntl(self.pipes.answers, fcntl.F_DUPFD_CLOEXEC, _RECORDS_FD_FROM)
        os.close(self.pipes.answers)

    def _load(self, payload: CellPayload) -> None:
        self.displays.install()
        self._enter_folder(payload)
        self._take_names(payload)

    def _take_names(self, payload: CellPayload) -> None:
        """Put what was sent with a cell into its `__main__`."""
        notebook = Versions.model_validate(payload.versions)
        self.target = versions.target_limits(self.versions, notebook)
        self.library.before_names(payload.names)
        try:
            foreign = bool(self.target.code_refusal)
            names = payload.open_names(PartStore(self.paths.folder.parent).memory)
            given, known = pickling.load_shared(names, payload.shared, self.namespace, foreign)
        except pickling.ForeignCode:
            raise NotebookDiffers(
                f"A function or class of the notebook came along, which is code of Python {notebook.python}; "
                f"rank {self.rank} runs {self.versions.python} and cannot take it.",
                "Define it inside this cell, or in a .py file beside the notebook, and import it.",
            ) from None
        self.namespace.update(given)
        self.given = frozenset(given)
        self.back = ResultWriter(known, self.namespace, self.target)

    def _enter_folder(self, payload: CellPayload) -> None:
        self.home, self.at_home = payload.home, folders.at_home(self.order, payload)
        folders.enter(self.order, payload, self.paths, self.rank)
        if payload.script:
            self.namespace["__file__"] = folders.enter_script(self.order, payload, self.paths, self.rank)
        children.prepare(self.namespace)

    def _execute(self, payload: CellPayload) -> tuple[CellSource, Any]:
        self.sources = {**payload.sources, payload.filename: Source(payload.filename, payload.source)}
        register_sources(self.sources)
        stacks.store_cell(self.paths.cell, payload.filename, payload.source)
        cell = _parsed(payload)
        value = None
        try:
            exec(cell.body, self.namespace)  # noqa: S102 - running the user's cell is the purpose
            if cell.value is not None:
                value = eval(cell.value, self.namespace)  # noqa: S307 - as above
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise
        finally:
            if payload.script:
                cell, value = replace(cell, value=None), None
            if os.getpid() == self.pid:
                # The rank that returns the result also returns the value, which the notebook shows.
                returns_result = self.order.returns_result and self.local_rank == 0
                self.displays.finish(value if returns_result else None)
        return cell, value

    def _return_request(self, payload: CellPayload, cell: CellSource, value: Any) -> ReturnRequest:
        return ReturnRequest(
            names=cell.assigned if payload.pull is None else payload.pull,
            value=value if cell.value is not None else NOTHING,
            only=payload.pull is not None,
            at_home=self.given,
            limit_bytes=payload.result_limit_bytes,
        )

    def _write_result(self, payload: CellPayload, shared: values.SharedValues) -> None:
        absent = [name for name in payload.pull or () if name not in self.namespace]
        left = [LeftBehind(name, "", "the cell did not make it") for name in absent]
        write_result_file(self.paths.result, self.back, shared.request, left, shared.sentences)

    def _failed(self, error: BaseException) -> int:
        self.library.abandon()
        if isinstance(error, SystemExit):
            code, message = _exit_of(error)
            account = tracebacks.exit_account(message, code)
        else:
            code, text = 1, tracebacks.render(error, self.sources)
            hint = hint_for_rank(error, self.home, at_home=self.at_home)
            account = tracebacks.account_of(error, text, code, hint)
            print(text, end="", file=sys.stderr)  # noqa: T201 - as Python does for an uncaught exception
        if os.getpid() == self.pid:  # An error in a child forked by the cell concerns only the child.
            write_whole(self.paths.error_file(self.rank), json.dumps(account).encode())
            self._report("failed", exit_code=code)
        return code

    @property
    def _connection(self) -> values.RankConnection:
        order = self.order
        size = 1 if order.fault_tolerant else order.world_size
        store = order.master_addr, order.master_port
        return values.RankConnection(self.rank, size, store, lambda what: self._report("waiting", what=what))

    def _report(self, event: str, **more: Any) -> None:
        os.write(self.pipes.control, json.dumps({"event": event, **more}).encode() + b"\n")


def main(zygote_pid: int, folder: Path, local_rank: int, pipes: RankPipes) -> NoReturn:
    """Run a rank in a forked process, then end the process."""
    code, pid = 1, os.getpid()
    try:
        forked.detach_from_zygote(zygote_pid)
        order = RunOrder.model_validate_json(AttemptPaths(folder).order.read_bytes())
        if cold.is_needed(order.framework, sys.modules):
            cold.start(zygote_pid, folder, local_rank, astuple(pipes))
        forked.take_streams(pipes.output)
        faulthandler.enable(sys.stderr)
        code = Rank(folder, local_rank, pipes, order).run()
        _leave()
    finally:
        try:
            pending.finish()
            system.flush_c_streams()
            if os.getpid() == pid:
                os.write(pipes.control, json.dumps({"event": "left", "exit_code": code}).encode() + b"\n")
        finally:
            # Destroying process groups can deadlock, and otherwise takes seconds.
            os._exit(code)


def _leave() -> None:
    """End the user's code as Python does: wait for threads, call atexit functions."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    except BaseException as error:
        print(tracebacks.render(error), end="", file=sys.stderr)  # noqa: T201 - as Python does


def _parsed(payload: CellPayload) -> CellSource:
    """Parse the cell; this may fail if the notebook's Python version differs."""
    try:
        return CellSource.parse(payload.source, payload.filename)
    except CellSyntaxError as mistake:
        raise mistake.error from None


def _exit_of(error: SystemExit) -> tuple[int, str]:
    if isinstance(error.code, int):
        return error.code & 0xFF or 1, f"sys.exit({error.code})"
    print(error.code, file=sys.stderr)  # noqa: T201 - as Python does
    return 1, str(error.code)


def seed_generators(seed: int | None, rank: int) -> None:
    """Seed this process's random generators: Python, NumPy, torch, and CUDA on first use.

    seed: of the job; each rank adds its number, so that ranks draw different numbers. None: from the system,
    as each process under torchrun does. Otherwise all ranks would start with the zygote's state.
    """
    if seed is None:
        random.seed()
        np.random.seed()
        torch.seed()
    else:
        own = (seed + rank) % (1 << 32)
        random.seed(own)
        np.random.seed(own)
        torch.manual_seed(own)


def wait_for_the_rest(report: Callable[[str], None]) -> None:
    """Wait for the cell's non-daemon threads and processes, as Python does at the end of a script.

    report: called with the name of the thread or process if the wait is long.
    """
    if not _waited_for():
        return
    over = threading.Event()
    threading.Thread(
        target=_report_waits, args=(over, report), daemon=True, name="minicluster-ending"
    ).start()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        for child in _children():
            child.join()
    finally:
        over.set()


def _waited_for() -> list[str]:
    main = threading.main_thread()
    threads = [f"thread {one.name}" for one in threading.enumerate() if one is not main and not one.daemon]
    return threads + [f"process {child.name}" for child in _children()]


def _children() -> list[process.BaseProcess]:
    """Return the processes that multiprocessing joins at exit. Its active_children() would reap them here."""
    return [child for child in list(process._children) if not child.daemon]  # type: ignore[attr-defined]


def _report_waits(over: threading.Event, report: Callable[[str], None]) -> None:
    last = ""
    over.wait(_REPORT_AFTER_S)
    while not over.is_set():
        first = next(iter(_waited_for()), "")
        if first != last:
            last = first
            report(first)
        over.wait(_POLL_S)
