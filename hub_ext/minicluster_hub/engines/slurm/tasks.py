"""Tasks as steps of Slurm's jobs: started by an srun that outlives the service, ended by scancel."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from minicluster_hub.engines.base import TaskLaunch, TaskRefused, readable
from minicluster_hub.engines.local.watch import ExitWatch
from minicluster_hub.engines.slurm.commands import Commands, SlurmError
from minicluster_hub.engines.slurm.names import Names
from minicluster_hub.engines.slurm.reasons import tells_of_a_loss
from minicluster_hub.engines.slurm.settings import CLEAR, SlurmSettings, step_words
from minicluster_hub.engines.slurm.view import SlurmView
from minicluster_hub.jobs.records import TaskView

BEGUN = "minicluster: the step has begun"
"""What a step prints first: the image is there, and its Python runs."""
_OUTPUT_TAIL_BYTES = 4000
_GRACE_S = 3.0
"""How long a task may take to end its ranks and to remove its files after SIGTERM."""
_AGAIN_S = 1.0
"""Pause between two requests to kill the same step."""
_KILLED = 137
"""srun's exit code after SIGKILL: the task could not remove its files."""


@dataclass(slots=True)
class _Task:
    """A task that this service or its predecessor started.

    slurm_job: its allocation; 0: there was none any more. in_image: whether it may have to wait for an image.
    pid: of its srun, while that runs; else 0. srun_ended_at: how many readings were over when it ended.
    listed: whether Slurm has listed its step. begun: whether its agent starts or runs. gone: whether its node
    no longer knows it. unclean: whether files may be left on its node.
    """

    slurm_job: int
    node: str
    in_image: bool = True
    pid: int = 0
    srun_ended_at: int | None = None
    exit_code: int | None = None
    listed: bool = False
    begun: bool = False
    gone: bool = False
    unclean: bool = False


class SlurmTasks:
    """folder: where the output of each task's srun is stored."""

    def __init__(
        self,
        commands: Commands,
        view: SlurmView,
        names: Names,
        settings: SlurmSettings,
        folder: Path,
        on_change: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self._commands = commands
        self._view = view
        self._names = names
        self._settings = settings
        self._folder = folder
        self._on_change = on_change
        self._log = log
        self._tasks: dict[int, _Task] = {}
        self._ended: set[int] = set()
        self._ending: set[int] = set()
        self._watches: dict[int, ExitWatch] = {}
        """By process id."""
        self._over: set[str] = set()
        """Steps of tasks that are forgotten."""

    def open(self) -> None:
        """Find the steps that run, and the sruns whose steps Slurm does not list yet."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for process in _sruns():
            found = self._names.read_task(process.name, process.slurm_job)
            if found is None or found.task_id in self._tasks:
                continue  # An srun has a child of the same words.
            allocation = self._view.allocations.get(process.slurm_job)
            # Everybody can read the name and start a process that looks the same.
            if allocation is not None and allocation.job.user == process.user:
                self._tasks[found.task_id] = task = _Task(process.slurm_job, process.node)
                self._watch(found.task_id, task, process.pid)
        self.note_listed()
        for path in self._folder.glob("*.log"):
            if path.stem.isdecimal() and int(path.stem) not in self._tasks:
                path.unlink(missing_ok=True)

    def note_listed(self) -> None:
        """Take what Slurm lists now. A step whose node was lost may be listed long after its task's end."""
        self._over &= {running.step.id for running in self._view.tasks.values()}
        for task_id, running in self._view.tasks.items():
            nodes = running.step.nodes
            task = _Task(running.step.job_id, nodes[0] if nodes else "")
            if task_id in self._tasks or running.step.id not in self._over:
                self._tasks.setdefault(task_id, task).listed = True

    @property
    def busy(self) -> bool:
        """Whether a task starts or ends."""
        starting = any(task.pid and not task.listed for task in self._tasks.values())
        return starting or bool(self._ending)

    def knows(self, task_id: int) -> bool:
        return task_id in self._tasks

    def views(self) -> Mapping[int, TaskView]:
        return {task_id: self._view_of(task_id) for task_id in self._tasks.keys() | self._ended}

    def start(self, launch: TaskLaunch, slurm_job: int | None, given: dict[str, object]) -> None:
        """Start a task in an allocation; without one it is lost at once. Raises TaskRefused."""
        task = _Task(slurm_job or 0, launch.node, in_image=launch.image is not None)
        if slurm_job is None:
            self._tasks[launch.task_id] = task
            return
        name = self._names.task(launch.task_id, launch.gang_id, slurm_job)
        words = [*step_words(name, slurm_job, launch.node), *self._settings.start_words(launch.image)]
        try:
            pid = self._commands.srun(
                self._user(task), words, json.dumps(given).encode(), self._output(launch.task_id)
            )
        except OSError as error:
            raise TaskRefused(f"srun could not be started for {launch.node}: {error}") from error
        self._tasks[launch.task_id] = task
        self._watch(launch.task_id, task, pid)
        self._view.poll_soon()

    async def end(self, task_id: int, folders: Sequence[str]) -> None:
        """End a task's step, first gracefully. folders: on its node, to be removed. Raises SlurmError."""
        self._ending.add(task_id)
        try:
            if (task := self._tasks.get(task_id)) is not None:
                await self._end(task_id, task, folders)
        finally:
            self._ending.discard(task_id)
        self._ended.add(task_id)

    def forget(self, task_id: int) -> None:
        task = self._tasks.pop(task_id, None)
        if task is not None:
            self._kill_srun(task)  # It waits for a node that is down.
        self._ended.discard(task_id)
        if (running := self._view.tasks.get(task_id)) is not None:
            self._over.add(running.step.id)
        self._output(task_id).unlink(missing_ok=True)

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    # --- one task -----------------------------------------------------------------------------

    def _view_of(self, task_id: int) -> TaskView:
        if task_id in self._ended:
            return TaskView(task_id, alive=False, clean=True)
        task = self._tasks[task_id]
        lost = not self._view.runs(task.slurm_job) or not self._view.is_up(task.node)
        if self._runs(task_id, task):
            starting = not lost and not self._has_begun(task_id, task)
            return TaskView(task_id, alive=True, starting=starting, node_lost=lost)
        detail = self._output_tail(task_id)
        lost = lost or tells_of_a_loss(detail)
        return TaskView(task_id, alive=False, exit_code=task.exit_code, detail=detail, node_lost=lost)

    def _runs(self, task_id: int, task: _Task) -> bool:
        """Whether its step is listed, or may still be: its srun runs, or has just ended."""
        if task.gone:
            return False
        if task_id in self._view.tasks:
            return True
        if task.listed or not task.slurm_job:
            return False
        return bool(task.pid) or (
            task.srun_ended_at is not None and self._view.polls <= task.srun_ended_at + 1
        )

    def _has_begun(self, task_id: int, task: _Task) -> bool:
        """Whether its agent starts or runs. Slurm lists a step also while its node fetches the image."""
        if not task.begun and task.listed:
            task.begun = not task.in_image or BEGUN.encode() in self._printed(task_id)
        return task.begun

    async def _end(self, task_id: int, task: _Task, folders: Sequence[str]) -> None:
        began, asked, missing = time.monotonic(), False, False
        while self._runs(task_id, task) and self._can_act(task):
            late, user = time.monotonic() - began > _GRACE_S, self._user(task)
            step = self._view.tasks.get(task_id)
            if late:
                await self._kill(task_id, task, user)
                # Its node may have been away for a moment: Slurm lists a step that its node no longer knows.
                task.gone = missing
                await asyncio.sleep(_AGAIN_S)
            elif step is not None and (not asked or missing):
                asked, missing = True, not await self._commands.cancel(user, step.step.id, signal="TERM")
            await self._view.next_poll()
        if task.exit_code == _KILLED or not self._can_act(task):
            task.unclean = True
        if task.unclean:
            await self._clear(task_id, task, folders)

    async def _kill(self, task_id: int, task: _Task, user: str) -> None:
        """Kill a step; if Slurm holds it back, its srun; and if that is not ours, its whole allocation."""
        if (running := self._view.tasks.get(task_id)) is not None:
            task.unclean = True
            await self._commands.cancel(user, running.step.id)
        elif not self._kill_srun(task):
            await self._commands.cancel(user, str(task.slurm_job))

    def _kill_srun(self, task: _Task) -> bool:
        """Kill a task's srun; return whether it could be. Its exit status is collected when it ends."""
        with suppress(OSError):
            if task.pid:
                os.kill(task.pid, signal.SIGKILL)
                return True
        return False

    def _can_act(self, task: _Task) -> bool:
        """Whether Slurm can still end something: not on a node that is down, and nothing after its job."""
        return self._view.is_up(task.node) and self._view.runs(task.slurm_job)

    def _user(self, task: _Task) -> str:
        """Return the Linux user of a task's allocation, which runs."""
        return self._view.allocations[task.slurm_job].job.user

    async def _clear(self, task_id: int, task: _Task, folders: Sequence[str]) -> None:
        """Remove the files of a task that was killed, if its node can still be reached."""
        if not self._can_act(task):
            return
        words = step_words(f"clear-{task_id}", task.slurm_job, task.node)
        try:
            await self._commands.srun_to_its_end(self._user(task), [*words, *CLEAR, *folders])
        except SlurmError as error:
            self._log.warning("files of task %s are left on %s: %s", task_id, task.node, error)

    def _watch(self, task_id: int, task: _Task, pid: int) -> None:
        try:
            self._watches[pid] = ExitWatch(pid, lambda code: self._on_exit(task_id, pid, code))
            task.pid = pid
        except ProcessLookupError:
            task.srun_ended_at = self._view.polls

    def _on_exit(self, task_id: int, pid: int, exit_code: int | None) -> None:
        self._watches.pop(pid, None)
        task = self._tasks.get(task_id)
        if task is None or task.pid != pid:
            return
        task.pid, task.exit_code, task.srun_ended_at = 0, exit_code, self._view.polls
        self._view.poll_soon()
        self._on_change()

    def _output(self, task_id: int) -> Path:
        return self._folder / f"{task_id}.log"

    def _printed(self, task_id: int) -> bytes:
        with suppress(FileNotFoundError):
            return self._output(task_id).read_bytes()
        return b""

    def _output_tail(self, task_id: int) -> str:
        lines = self._printed(task_id)[-_OUTPUT_TAIL_BYTES:].decode(errors="replace")
        return readable(lines.replace(f"{BEGUN}\n", ""))


@dataclass(frozen=True, slots=True)
class _Srun:
    """A running srun, by its arguments. name: its step's. node: where that is to run."""

    pid: int
    user: str
    name: str
    slurm_job: int
    node: str


def _sruns() -> Iterator[_Srun]:
    """Yield the running sruns."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = (word.partition("=") for word in process.cmdline() if word.startswith("--"))
            options = {name: value for name, _, value in words}
            slurm_job, name = options.get("--jobid", ""), options.get("--job-name", "")
            if process.name() == "srun" and slurm_job.isdecimal() and name:
                node = options.get("--nodelist", "")
                yield _Srun(process.pid, process.username(), name, int(slurm_job), node)
