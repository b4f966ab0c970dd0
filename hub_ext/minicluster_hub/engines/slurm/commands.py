"""Slurm's commands for an event loop: each with a time limit, and as the Linux user whose job it is."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import shutil
import subprocess
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from minicluster_hub.engines.base import EngineError
from minicluster_hub.engines.slurm import parsing
from minicluster_hub.engines.slurm.parsing import Granted, SlurmJob, SlurmNode, SlurmStep

_TIMEOUT_S = 30.0
_PIPE_BYTES = 1 << 16
"""What a pipe holds while nobody reads it. More would make the event loop wait for a node."""
_INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_CONF_SERVER")
_GONE = ("Invalid job id", "Job/step already completing or completed", "Invalid job step")
_AWAY = (
    "Unable to contact",
    "Connection refused",
    "Socket timed out",
    "Connection timed out",
    "Transport",
    "Zero Bytes were transmitted",
    "standby mode",
)
"""What Slurm's commands say while their controller does not answer."""


class SlurmError(EngineError):
    """Base of what Slurm's commands say instead of doing something."""


class SlurmUnavailable(SlurmError):
    """The controller does not answer now. That passes."""


class SlurmRefused(SlurmError):
    """Slurm does not do what it was asked for."""


class Commands:
    """become: the words before a command that is to run as {user}; none: the service's own user runs all.

    partition: whose nodes are read; "": all. slurm_conf: Slurm's configuration; "": where Slurm looks for it.
    """

    def __init__(self, become: Sequence[str], partition: str = "", slurm_conf: str = "") -> None:
        self._become = become
        self._partition = partition
        self._environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        if slurm_conf:
            self._environment["SLURM_CONF"] = slurm_conf
        # Times are read in UTC. A text in another language would not be understood.
        self._reading = {**self._environment, "TZ": "UTC", "LC_ALL": "C"}

    # --- reading ------------------------------------------------------------------------------

    async def jobs(self, users: Collection[str] | None) -> list[SlurmJob]:
        """Return the jobs that wait or run. users: only theirs; None: all. Raises SlurmError."""
        return parsing.jobs(*await self._squeue(parsing.JOB_FORMAT, users))

    async def steps(self, users: Collection[str] | None) -> list[SlurmStep]:
        """Return the steps that run. Raises SlurmError."""
        return parsing.steps(*await self._squeue(parsing.STEP_FORMAT, users, "--steps"))

    async def nodes(self) -> list[SlurmNode]:
        """Return the nodes of the partition, or all. Raises SlurmError."""
        where = [f"--partition={self._partition}"] if self._partition else []
        return parsing.nodes(await self._read("sinfo", "-h", "-N", "-o", parsing.NODE_FORMAT, *where))

    async def granted(self, slurm_job: int) -> list[Granted]:
        """Return what a running job has of each node. Raises SlurmError."""
        text = await self._read("scontrol", "show", "job", "-d", "-o", str(slurm_job))
        if not (found := parsing.granted(text)):
            raise SlurmUnavailable(f"Slurm does not tell the nodes of its job {slurm_job} yet")
        return found

    async def _squeue(self, columns: str, users: Collection[str] | None, *more: str) -> tuple[str, str]:
        """Return what squeue prints, and the mark of its lines."""
        mark = secrets.token_hex(8)
        if users is not None and not users:
            return "", mark
        whose = [] if users is None else [f"--user={','.join(sorted(users))}"]
        columns = f"{mark}{parsing.SEPARATOR}{columns}"
        return await self._read("squeue", "-h", "-a", *more, "-o", columns, *whose), mark

    # --- acting, as a Linux user --------------------------------------------------------------

    async def submit(self, user: str, words: Sequence[str]) -> str:
        """Submit a job; return its id. Raises SlurmError."""
        text = await self._run(self._as(user, ["sbatch", *words]), self._environment)
        return text.strip().partition(";")[0]

    async def cancel(self, user: str, job_or_step: str, *, signal: str = "") -> bool:
        """Cancel a job or a step, or signal it; return False if there is none. Raises SlurmError."""
        words = ["scancel", *([f"--signal={signal}"] if signal else []), job_or_step]
        try:
            await self._run(self._as(user, words), self._environment)
        except SlurmRefused as refused:
            if not any(word in str(refused) for word in _GONE):
                raise
            return False
        return True

    def srun(self, user: str, words: Sequence[str], given: bytes, output: Path) -> int:
        """Start a step that outlives this service, its output added to a file; return its pid.

        given: what the step reads from its standard input. Raises OSError, also if that is more than a pipe
        holds (64 KiB).
        """
        if len(given) > _PIPE_BYTES:
            raise OSError(errno.E2BIG, f"a step's input of {len(given):,} bytes is too long")
        with output.open("ab") as out:
            process = subprocess.Popen(
                self._as(user, ["srun", *words]),
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        stream = cast(IO[bytes], process.stdin)
        with suppress(BrokenPipeError), stream:
            stream.write(given)
        # ExitWatch collects the exit status. A Popen that is garbage-collected must neither warn nor wait.
        process.returncode = 0
        return process.pid

    async def srun_to_its_end(self, user: str, words: Sequence[str]) -> None:
        """Run a step, and wait for its end. Raises SlurmError."""
        await self._run(self._as(user, ["srun", *words]), self._environment)

    # --- one command --------------------------------------------------------------------------

    def _as(self, user: str, words: list[str]) -> list[str]:
        return [*(word.format(user=user) for word in self._become), *words]

    async def _read(self, *words: str) -> str:
        return await self._run(list(words), self._reading)

    async def _run(self, words: list[str], environment: dict[str, str]) -> str:
        if shutil.which(words[0]) is None:
            raise SlurmRefused(f"there is no command {words[0]} on this machine: install Slurm's commands")
        process = await asyncio.create_subprocess_exec(
            *words,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                out, trouble = await process.communicate()
        except TimeoutError:
            raise SlurmUnavailable(f"{words[0]} did not answer within {_TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    process.kill()
        if process.returncode:
            said = trouble.decode(errors="replace").strip()
            raise _error(said or f"{words[0]} ended with exit code {process.returncode}")
        return out.decode(errors="replace")


def _error(message: str) -> SlurmError:
    kind = SlurmUnavailable if any(word in message for word in _AWAY) else SlurmRefused
    lines = (line.partition("error: ")[2] or line for line in message.splitlines())
    return kind(" ".join(dict.fromkeys(lines)))
