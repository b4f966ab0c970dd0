"""NVIDIA's Multi-Process Service (MPS) for one GPU that two tasks or notebook servers share.

The engine runs this program for each shared GPU, as the user of the tasks. It starts NVIDIA's control daemon
and limits each process on the GPU to half of its memory. Tasks find the daemon by its folder of pipes. If
CUDA finds no daemon there, it uses the GPU without MPS and any limit. So tasks wait for the file MPS_READY.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from minicluster.errors import MiniclusterError
from minicluster.runtime.settings import log_to_stderr, need
from minicluster.wire.machines.gpu_share import MPS_FAILED, MPS_PIPES, MPS_READY, SHARE_VARIABLE

log = logging.getLogger("minicluster.mps")
CONTROL = "nvidia-cuda-mps-control"
_PER_GPU = 2
_LEAST_CAPABILITY = 7.0
"""Older GPUs (before Volta) let all processes share one address space, and limit nothing."""
_STARTS_WITHIN_S, _ANSWERS_WITHIN_S, _ENDS_WITHIN_S = 15.0, 10.0, 5.0
_CLIENT_WAITS_S = 60.0
_PAUSE_S = 0.1
_QUERY = ("nvidia-smi", "--query-gpu=compute_cap,memory.total", "--format=csv,noheader,nounits")


class MpsFailed(MiniclusterError):
    """The GPU cannot be shared. The message is a clause: "its compute capability is 6.1, ..."."""


def gpu_memory_mb(gpus: Sequence[str] = ()) -> int:
    """Return the memory of a GPU that can be shared; of the smallest one, if several are visible.

    gpus: their indexes; (): all that are visible. Raises MpsFailed.
    """
    if shutil.which(CONTROL) is None:
        raise MpsFailed(f"{CONTROL} of NVIDIA's driver is not there")
    named = ("-i", ",".join(gpus)) if gpus else ()
    found: list[int] = []
    for row in _output([*_QUERY, *named]).splitlines():
        capability, _, memory_mb = (one.strip() for one in row.partition(","))
        try:
            if float(capability) < _LEAST_CAPABILITY:
                raise MpsFailed(f"its compute capability {capability} is below 7.0 (Volta)")
            found.append(int(memory_mb))
        except ValueError:
            raise MpsFailed(f"nvidia-smi does not tell its memory: {row!r}") from None
    if not found:
        raise MpsFailed("nvidia-smi finds no GPU")
    return min(found)


async def trouble(environ: Mapping[str, str] = os.environ, wait_s: float = _CLIENT_WAITS_S) -> str:
    """Wait for the daemon of a task's shared GPU; return why it is not there, else ""."""
    if not environ.get(MPS_PIPES) or not environ.get(SHARE_VARIABLE):
        return ""
    pipes, until = Path(environ[MPS_PIPES]), time.monotonic() + wait_s
    while not (pipes / MPS_READY).exists():
        if (pipes / MPS_FAILED).exists():
            return f"the GPU cannot be shared: {(pipes / MPS_FAILED).read_text()}"
        if time.monotonic() > until:
            return f"the GPU cannot be shared: MPS did not start within {wait_s:g} s"
        await asyncio.sleep(_PAUSE_S)
    return ""


def serve(pipes: Path) -> None:
    """Run the daemon until SIGTERM or until it ends by itself. Raises MpsFailed."""
    for name in (MPS_READY, MPS_FAILED):
        (pipes / name).unlink(missing_ok=True)
    memory_mb = gpu_memory_mb()
    daemon = subprocess.Popen([CONTROL, "-f"])
    signal.signal(signal.SIGTERM, lambda *_: _quit(daemon))
    try:
        _configure(daemon, memory_mb // _PER_GPU)
        (pipes / MPS_READY).touch()
        log.info("each process may use %s of %s MB", memory_mb // _PER_GPU, memory_mb)
        code = daemon.wait()
    finally:
        (pipes / MPS_READY).unlink(missing_ok=True)
        _quit(daemon)
    if code:
        raise MpsFailed(f"{CONTROL} ended with exit code {code}")


def _configure(daemon: subprocess.Popen[bytes], limit_mb: int) -> None:
    """Limit the memory of each process, once the daemon answers. Raises MpsFailed."""
    command, until = f"set_default_device_pinned_mem_limit 0 {limit_mb}M", time.monotonic() + _STARTS_WITHIN_S
    while True:
        if daemon.poll() is not None:
            raise MpsFailed(f"{CONTROL} ended at its start, exit code {daemon.returncode}")
        try:
            _output([CONTROL], command)
        except MpsFailed:
            if time.monotonic() > until:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def _quit(daemon: subprocess.Popen[bytes]) -> None:
    if daemon.poll() is not None:
        return
    try:
        _output([CONTROL], "quit")
        daemon.wait(_ENDS_WITHIN_S)
    except (MpsFailed, subprocess.TimeoutExpired):
        daemon.kill()


def _output(command: Sequence[str], text: str = "") -> str:
    """Return a program's output. Raises MpsFailed."""
    try:
        done = subprocess.run(
            command, input=f"{text}\n", capture_output=True, text=True, timeout=_ANSWERS_WITHIN_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpsFailed(f"{command[0]} does not answer ({error})") from error
    if done.returncode:
        raise MpsFailed(f"{command[0]} failed: {(done.stderr or done.stdout).strip() or done.returncode}")
    return done.stdout


def main() -> int:
    """Run the daemon; with --check and the indexes of GPUs, only print why they cannot be shared."""
    if sys.argv[1:2] == ["--check"]:
        return _check(sys.argv[2:])
    log_to_stderr()
    pipes = Path(need(os.environ, MPS_PIPES))
    pipes.mkdir(parents=True, exist_ok=True)
    try:
        serve(pipes)
    except MpsFailed as error:
        log.error("%s", error.message)
        (pipes / MPS_FAILED).write_text(error.message)
        return 1
    return 0


def _check(gpus: Sequence[str]) -> int:
    try:
        gpu_memory_mb(gpus)
    except MpsFailed as error:
        sys.stdout.write(error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
