"""A policy that fails to load: only this one is withdrawn, and jobs are still scheduled."""

import asyncio
import logging
import time

import pytest

from minicluster.wire import PolicyChoice
from minicluster_hub.policy.active_policy import LAST_RESORT, PolicyManager
from minicluster_hub.policy.custom_policy import CustomPolicies
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import Snapshot, Topology

from ... import messages
from ...patience import WITHIN_S
from ..machines import Machines, service, until
from .test_active_policy import LAST_FIRST, OURS, children
from .test_active_policy import own as own

NOTHING = Snapshot(0.0, (), FreeSlots(), Topology({}))
FAILS_LATE = """
import os, time
while os.path.exists({held!r}):
    time.sleep(0.01)
if os.path.exists({bad!r}):
    raise RuntimeError("no idea")
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with two policies: one fails when it is loaded, the other whenever it plans."""
    (tmp_path / "failing_policies.py").write_text("def plan(snapshot):\n    raise RuntimeError('no idea')\n")
    about = tmp_path / "failing_policies-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: failing-policies\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[minicluster.policies]\nbroken = failing_policies:Gone\nclueless = failing_policies\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


async def test_a_choice_that_is_made_while_another_one_loads_in_vain_stays(sqlite, own, tmp_path):
    machines, held, bad = Machines(), tmp_path / "held", tmp_path / "bad"
    policies = own(FAILS_LATE.format(held=str(held), bad=str(bad)) + LAST_FIRST)
    async with service(sqlite, machines, own=policies) as reconciler:
        await reconciler.choose_policy(OURS, "root")
    held.touch()
    bad.touch()
    async with service(sqlite, machines, own=policies) as again:
        again.wake()
        assert await until(again, children)
        await again.choose_policy(PolicyChoice(policy="backfill"), "root")
        held.unlink()
        assert await until(again, lambda: not children())
        again.wake()
        report = again.policy_manager.report()
        assert (report.in_force.choice.policy, report.trouble) == ("backfill", "")
        assert sqlite.policies.active().policy.choice.policy == "backfill"


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        ("broken", "has no attribute 'Gone'"),
        ("clueless", "RuntimeError: no idea"),
    ],
)
async def test_a_policy_of_the_settings_that_fails_gives_way_to_a_built_in_one(package, sqlite, policy, told):
    log, changed = logging.getLogger(__name__), asyncio.Event()
    policy_manager = PolicyManager(
        sqlite, PolicyChoice(policy=policy), time.time, log, CustomPolicies.in_processes()
    )
    policy_manager.changed = changed.set
    try:
        async with asyncio.timeout(WITHIN_S):
            while not policy_manager.ready_for(NOTHING):
                await changed.wait()
                changed.clear()
        assert policy_manager.schedule(NOTHING) is not None
        report = policy_manager.report()
        assert report.in_force.choice == LAST_RESORT
        assert report.trouble.startswith(
            f"{policy}, which the cluster's settings name, {messages.TAKEN_BACK}"
        )
        assert told in report.trouble
        assert children() == []
        await policy_manager.choose(PolicyChoice(policy="backfill"), "root", NOTHING)
        assert (policy_manager.active.choice.policy, policy_manager.report().trouble) == ("backfill", "")
    finally:
        policy_manager.close()
