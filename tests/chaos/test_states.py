"""Random lives of a whole cluster: invariants hold whatever happens.

More and longer lives by hand: MINICLUSTER_LIVES=500.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from minicluster_hub.store import Store

from .house import House

LIVES = int(os.environ.get("MINICLUSTER_LIVES", "30"))
# A life takes seconds; shrinking a failing one would take hundreds, so it is done by hand only.
PHASES = [Phase.generate, *([Phase.shrink] if os.environ.get("MINICLUSTER_SHRINK") else [])]
NODES = st.sampled_from(["node-1", "node-2", "node-3"])
pytestmark = [
    pytest.mark.timeout(900 + 10 * LIVES),
    pytest.mark.full("drawn at random; what must hold is tested by name in tests/service"),
]


class Cluster(RuleBasedStateMachine):
    """Random events on a cluster. `template`: an empty database, migrated once."""

    template = Path()

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed):
        self.folder = tempfile.TemporaryDirectory(prefix="minicluster-chaos-", dir=fast_folder())
        self.house = House(self.template, Path(self.folder.name), seed)

    @property
    def job_ids(self):
        return list(self.house.jobs)

    @rule(
        least=st.integers(1, 3),
        more=st.integers(0, 2),
        slots=st.integers(1, 2),
        owner=st.sampled_from(["ada", "bob"]),
        lasts_s=st.sampled_from([0.5, 5, 30]),
        fault_tolerant=st.booleans(),
        habit=st.sampled_from(["", "", "", "FAILS", "STUBBORN"]),
    )
    def submit(self, least, more, slots, owner, lasts_s, fault_tolerant, habit):
        env = {"LASTS": str(lasts_s), **({habit: "1"} if habit else {})}
        self.house.submit(
            least=least,
            most=min(3, least + more),
            owner=owner,
            slots_per_node=slots,
            env=env,
            fault_tolerant=fault_tolerant,
        )

    @precondition(lambda self: self.house.jobs)
    @rule(data=st.data())
    def stop(self, data):
        self.house.stop(data.draw(st.sampled_from(self.job_ids)))

    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 3.0, 8.0, 20.0]))
    def pass_time(self, seconds):
        self.house.pass_time(seconds)

    @rule(node=NODES, how=st.sampled_from(["power_off", "cut", "freeze", "heal"]))
    def befall(self, node, how):
        getattr(self.house.machines, how)(node)

    @rule(node=NODES)
    def heal(self, node):
        self.house.machines.heal(node)

    @precondition(lambda self: self.house.machines.living())
    @rule(data=st.data())
    def kill_agent(self, data):
        living = {one.launch.task_id: one for one in self.house.machines.living()}
        self.house.machines.end_process(living[data.draw(st.sampled_from(sorted(living)))])

    @precondition(lambda self: self.house.service is not None)
    @rule()
    def kill_service(self):
        self.house.kill_service()

    @precondition(lambda self: self.house.service is not None)
    @rule(writes=st.integers(1, 6), before=st.booleans())
    def kill_service_at_a_write(self, writes, before):
        self.house.faulty.kill_in, self.house.faulty.kill_before = writes, before

    @precondition(lambda self: self.house.service is None)
    @rule()
    def start_service(self):
        self.house.start_service()

    @rule(calls=st.integers(1, 20))
    def database_away(self, calls):
        self.house.faulty.away_for = calls

    @rule(seconds=st.sampled_from([0.5, 4.0, 30.0]))
    def freeze_service(self, seconds):
        """The loop stands still; when it continues, all delayed events arrive at once."""
        self.house.loop.stall(seconds)

    @rule(slow_s=st.sampled_from([0.0, 0.05, 2.0]), failures=st.integers(0, 2), refusals=st.integers(0, 1))
    def engine_has_its_moods(self, slow_s, failures, refusals):
        machines = self.house.machines
        machines.slow_s, machines.failures, machines.refusals = slow_s, failures, refusals

    @rule(lag_s=st.sampled_from([0.0, 0.5, 2.5]))
    def network_is_slow(self, lag_s):
        self.house.lag_s = lag_s

    @precondition(lambda self: self.house.old_reports)
    @rule(data=st.data())
    def old_report_comes_again(self, data):
        index = data.draw(st.integers(0, len(self.house.old_reports) - 1))
        self.house.deliver(*self.house.old_reports[index])

    @precondition(lambda self: self.house.machines.lighthouses)
    @rule()
    def lighthouses_die(self):
        self.house.machines.kill_lighthouses()

    def teardown(self):
        if not hasattr(self, "house"):
            return
        try:
            self.house.settle()
        finally:
            self.house.close()
            self.folder.cleanup()


def fast_folder():
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else None


def test_whatever_befalls_a_cluster(tmp_path):
    template = tmp_path / "empty.sqlite"
    Store.open(f"sqlite:///{template}").close()
    machine = type("Life", (Cluster,), {"template": template})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=LIVES,
            stateful_step_count=40,
            deadline=None,
            database=None,
            phases=PHASES,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
