"""The service with a fault at each await and each store call: jobs continue, and start only once."""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest

from minicluster.wire import JobState
from minicluster_hub.store import Store

from .house import House
from .strikes import Strike
from .test_states import fast_folder

pytestmark = pytest.mark.full("a fault at each call; those of each kind are in tests/service")
LIFE_S = 12.0
CALLS = 40
"""After so many store calls a job has started; later calls are for reports."""
AWAITS = 40
"""Later calls are all the same: those of the idle loop."""


@pytest.fixture
def template(tmp_path):
    path = tmp_path / "empty.sqlite"
    Store.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def fresh_house(template):
    """A function that makes houses, each with its own store."""
    root = Path(tempfile.mkdtemp(prefix="minicluster-chaos-", dir=fast_folder()))
    made = []

    def make(**options):
        folder = root / str(len(made))
        folder.mkdir()
        made.append(House(template, folder, **options))
        return made[-1]

    yield make
    shutil.rmtree(root)


def live(house, *, lost_node=False):
    """Run one job while a node may be lost; restart the service if it died."""
    house.may_die = True
    job = house.submit(least=2, most=3, env={"LASTS": "3"})
    for second in range(int(LIFE_S)):
        if lost_node and second == 3:
            house.machines.power_off("node-2")
        house.loop.run_until_complete(asyncio.sleep(1.0))
        house.check()
        if house.service is None:
            house.start_service()
    house.settle()
    record = house.store.job(job)
    house.close()
    return record


def check(record, *, lost_node):
    assert record.state is JobState.SUCCEEDED, record
    # A gang that starts late waits for the node; a running gang continues without it.
    assert record.attempts in ((1, 2) if lost_node else (1,)), record


@pytest.mark.parametrize("lost_node", [False, True], ids=["in peace", "a node is lost"])
@pytest.mark.parametrize("error", [asyncio.CancelledError, RuntimeError])
def test_struck_at_each_await(fresh_house, error, lost_node):
    at, struck = 1, True
    while struck and at < AWAITS:
        house = fresh_house(serves=False)
        strike = Strike(house.loop, at, error)
        house.start_service()
        check(live(house, lost_node=lost_node), lost_node=lost_node)
        struck, at = strike.struck, at + 1
    assert at > 10


@pytest.mark.parametrize("lost_node", [False, True], ids=["in peace", "a node is lost"])
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_killed_at_each_write(fresh_house, before, lost_node):
    at, killed = 1, True
    while killed:
        house = fresh_house()
        house.faulty.kill_in, house.faulty.kill_before = at, before
        record = live(house, lost_node=lost_node)
        check(record, lost_node=lost_node)
        killed, at = house.faulty.killed, at + 1
    assert at > 10


@pytest.mark.parametrize("calls", [1, 5])
@pytest.mark.parametrize("lost_node", [False, True], ids=["in peace", "a node is lost"])
def test_the_database_is_away_at_each_call(fresh_house, lost_node, calls):
    for at in range(1, CALLS, 2):
        house = fresh_house()
        house.faulty.away_after, house.faulty.away_for = at, calls
        check(live(house, lost_node=lost_node), lost_node=lost_node)
        assert house.faulty.refused == calls, "it did not ask that often"
