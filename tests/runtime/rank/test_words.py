"""Messages about a rank's end, from what the agent observed. Starts no process."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from minicluster.runtime.agent.errors import RankEnd, failure_of, note_of
from minicluster.runtime.rank.tracebacks import account_of, hint_for, render
from minicluster.wire import ErrorKind


def end(status: int = 0, **seen: Any) -> RankEnd:
    return RankEnd(rank=1, node="pc-2", status=status, at=100.0, **seen)


def exited(code: int) -> int:
    return code << 8


def test_a_rank_that_finished_has_not_failed_however_it_left() -> None:
    for status in (exited(0), exited(1), signal.SIGSEGV, signal.SIGKILL):
        assert failure_of(end(status, finished=True)) is None
    assert "SIGSEGV" in note_of(end(signal.SIGSEGV, finished=True))
    assert note_of(end(exited(0), finished=True)) == ""


def test_a_kill_while_the_node_ran_out_of_memory_is_told_as_such() -> None:
    failure = failure_of(end(signal.SIGKILL, memory_kills=1))
    assert failure and failure.kind is ErrorKind.MEMORY
    assert failure.message.startswith("Rank 1 on pc-2 ") and "out of memory" in failure.message
    assert failure.hint


def test_a_signal_without_a_name_of_its_own_is_named_all_the_same() -> None:
    failure = failure_of(end(signal.SIGUSR2))
    assert failure and failure.message == "Rank 1 on pc-2 was killed by SIGUSR2."
    real_time = failure_of(end(signal.SIGRTMIN + 3))
    assert real_time and "signal 37" in real_time.message


def test_an_error_before_the_stop_is_told_and_an_interrupt_by_it_is_not() -> None:
    stopped = "the job was stopped"
    error = account_of(ValueError("bad"), "trace", 1)
    failure = failure_of(end(exited(1), account=error, ended_because=stopped))
    assert failure and failure.message == "ValueError: bad"
    interrupt = account_of(KeyboardInterrupt(), "trace", 1)
    failure = failure_of(end(exited(1), account=interrupt, ended_because=stopped))
    assert failure and failure.message == "Rank 1 was ended: the job was stopped."
    own = failure_of(end(exited(1), account=interrupt))
    assert own and own.message == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (MemoryError(), "memory is full"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "GPU's memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "memory is full"),
        (
            RuntimeError("[../third_party/gloo/pair.cc:1] Connection closed by peer [127.0.0.1]"),
            "another rank",
        ),
        (ValueError("anything"), ""),
    ],
)
def test_usual_errors_have_a_hint(error: Exception, part: str) -> None:
    hint = hint_for(error)
    assert part in hint
    assert bool(hint) == bool(part)


def test_an_endless_traceback_is_cut_in_its_middle() -> None:
    text = render(ValueError("x" * 1_000_000))
    assert len(text) < 70_000
    assert "characters left out" in text


def test_an_account_of_torch_elastic_without_our_fields_is_read() -> None:
    account = {
        "message": {"message": "LookupError: gone", "extraInfo": {"py_callstack": "...", "timestamp": "99"}}
    }
    failure = failure_of(end(exited(1), account=account))
    assert failure and (failure.message, failure.at, failure.exit_code) == ("LookupError: gone", 99.0, 1)
