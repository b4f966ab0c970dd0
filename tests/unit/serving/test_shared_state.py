"""When the model of a replica is silent: requests wait for it, and none of them is answered."""

from __future__ import annotations

from minicluster.runtime.serving.shared import SharedState


def test_it_is_silent_since_the_last_answer_or_the_first_request() -> None:
    state = SharedState()
    assert state.silent_s(1000.0) == 0, "nobody asked"
    state.asked(1000.0)
    state.asked(1004.0)
    assert state.silent_s(1005.0) == 5
    state.answered(1006.0)
    assert state.silent_s(1008.0) == 2
    state.answered(1009.0)
    assert state.silent_s(1100.0) == 0, "nobody waits"
    state.asked(1200.0)
    assert state.silent_s(1201.0) == 1
