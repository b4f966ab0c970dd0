"""The tree of processes, of real ones."""

import os
import platform
import subprocess
import sys

import pytest

from minicluster.runtime import processes

from ...patience import until

EXIT_OF_ONE_THREAD = {"x86_64": 60, "aarch64": 93}
WITHOUT_ITS_FIRST_THREAD = """
import ctypes, subprocess, sys, threading, time
child = subprocess.Popen(["sleep", "60"])
threading.Thread(target=time.sleep, args=(60,)).start()
print(child.pid, flush=True)
ctypes.CDLL(None).syscall(int(sys.argv[1]), 0)
"""


@pytest.fixture
def without_its_first_thread():
    """A process that only its second thread keeps, and the id of its child."""
    number = EXIT_OF_ONE_THREAD.get(platform.machine())
    if number is None:
        pytest.skip(f"the number of exit() is not known for {platform.machine()}")
    command = [sys.executable, "-c", WITHOUT_ITS_FIRST_THREAD, str(number)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process, child
    process.kill()
    process.wait()
    if processes.state_of(child) not in "ZX":
        os.kill(child, 9)


def test_a_process_whose_first_thread_has_ended_is_killed_with_its_children(without_its_first_thread):
    process, child = without_its_first_thread
    until(lambda: processes.state_of(process.pid) == "Z")
    below = processes.descendants(os.getpid())
    assert {process.pid, child} <= set(below)
    others = set(below) - {process.pid, child}
    assert processes.kill_below(os.getpid(), keep=others) == 2
    assert process.wait(10) == -9
    until(lambda: processes.state_of(child) in "ZX")


def test_a_process_that_waits_to_be_reaped_is_none():
    with subprocess.Popen(["true"]) as process:
        until(lambda: processes.state_of(process.pid) == "Z")
        assert process.pid not in processes.descendants(os.getpid())
