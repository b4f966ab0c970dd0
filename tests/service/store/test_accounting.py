"""GPU-hours for quotas: of current and ended leases within the last 30 days."""

import pytest

from minicluster_hub.jobs.records import StoredState, UseRecord
from minicluster_hub.scheduling.limits import PERIOD_S
from minicluster_hub.usage.accounting import WEEK_S, UsageAccounting

HOUR_S = 3600.0
NOW = 2 * PERIOD_S
NOTHING = StoredState((), (), (), (), ())


def held(store, began_at, ended_at=None, *, owner="ada", gpus=2, task_id=1):
    """Record a user's lease."""
    use = UseRecord(0, owner, 1, None, task_id, "node-1", 2, gpus, began_at, None)
    (kept,) = store.usage.change([], [use], began_at)
    if ended_at is not None:
        store.usage.change([kept.id], [], ended_at)


def hours(store, now=NOW, half_life_s=WEEK_S):
    return UsageAccounting(store, half_life_s, {}).gpu_hours("ada", now)


def test_only_ones_own_gpus_count_and_only_the_hours_within_the_period(sqlite):
    held(sqlite, NOW - 5 * HOUR_S, NOW - 2 * HOUR_S)
    held(sqlite, NOW - 5 * HOUR_S, NOW - 2 * HOUR_S, owner="bob")
    held(sqlite, NOW - 5 * HOUR_S, NOW - 2 * HOUR_S, gpus=0)
    assert hours(sqlite) == pytest.approx(6.0)
    held(sqlite, NOW - PERIOD_S - 9 * HOUR_S, NOW - PERIOD_S + HOUR_S)
    assert hours(sqlite) == pytest.approx(8.0)
    assert hours(sqlite, half_life_s=60.0) == pytest.approx(8.0), "a short half-life forgets nothing of them"


def test_what_is_held_still_counts_and_goes_on_counting_after_its_end(sqlite):
    held(sqlite, NOW - 3 * HOUR_S)
    accounting = UsageAccounting(sqlite, WEEK_S, {})
    assert accounting.gpu_hours("ada", NOW) == pytest.approx(6.0)
    assert accounting.gpu_hours("ada", NOW + HOUR_S) == pytest.approx(8.0)
    accounting.note(NOTHING, (), NOW + HOUR_S)
    assert accounting.gpu_hours("ada", NOW + 9 * HOUR_S) == pytest.approx(8.0)
    assert accounting.gpu_hours("ada", NOW + PERIOD_S - HOUR_S) == pytest.approx(4.0)
    assert accounting.gpu_hours("ada", NOW + PERIOD_S + HOUR_S) == 0.0


def test_a_restart_counts_the_same(sqlite):
    held(sqlite, NOW - 30 * HOUR_S, NOW - 20 * HOUR_S, task_id=1)
    held(sqlite, NOW - 3 * HOUR_S, task_id=2)
    accounting = UsageAccounting(sqlite, WEEK_S, {})
    accounting.note(NOTHING, (), NOW)
    assert accounting.gpu_hours("ada", NOW) == hours(sqlite) == pytest.approx(26.0)
