"""Policies in their own container: how the service works while it is away."""

import pytest

from minicluster.wire import JobState
from minicluster_hub.policy import active_policy
from minicluster_hub.policy.active_policy import BUILT_IN
from minicluster_hub.policy.choices import ChoiceRefused
from minicluster_hub.policy.custom_policy import CustomPolicies
from minicluster_hub.policy.sandbox import ContainerSandbox

from ..machines import Machines, play, service, submit, until
from .sandboxes import custom_policies, served
from .test_active_policy import LAST_FIRST, OURS, first_of


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "ours.py").write_text(LAST_FIRST)
    return tmp_path / "policies"


async def test_a_policy_in_its_container_orders_the_next_jobs(sqlite, folder):
    with custom_policies("server", folder) as own:
        async with service(sqlite, Machines(), own=own) as reconciler:
            await reconciler.choose_policy(OURS, "root")
            jobs = [submit(sqlite, key=f"key-0000{number}") for number in range(3)]
            reconciler.wake()
            assert await until(reconciler, lambda: first_of(sqlite) is not None)
            assert first_of(sqlite) == jobs[-1]


async def test_while_the_container_is_away_a_built_in_policy_decides_and_then_the_chosen_one_again(
    sqlite, folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(active_policy, "SANDBOX_RETRY_S", 0.05)
    machines, path = Machines(), tmp_path / "socket"
    own = CustomPolicies(folder, ContainerSandbox(path))
    async with service(sqlite, machines, own=own) as reconciler:
        with served(folder, path):
            await reconciler.choose_policy(OURS, "root")
        job = submit(sqlite, nodes=1)
        reconciler.wake()
        assert (await play(sqlite, reconciler, machines, job)).state is JobState.SUCCEEDED
        report = reconciler.policy_manager.report()
        assert report.in_force.choice == BUILT_IN
        assert report.trouble.startswith(
            "ours does not decide: the container of the lab's own policies does not"
        )
        assert report.trouble.endswith("Until it does, backfill decides")
        with served(folder, path):
            assert await until(reconciler, lambda: reconciler.policy_manager.active.choice == OURS)
            assert reconciler.policy_manager.report().trouble == ""
            job = submit(sqlite, nodes=1, key="key-00002")
            reconciler.wake()
            assert (await play(sqlite, reconciler, machines, job)).state is JobState.SUCCEEDED
        assert reconciler.policy_manager.active.choice == OURS


async def test_nothing_is_activated_while_the_container_is_away(sqlite, folder, tmp_path):
    own = CustomPolicies(folder, ContainerSandbox(tmp_path / "socket"))
    async with service(sqlite, Machines(), own=own) as reconciler:
        with pytest.raises(ChoiceRefused) as refused:
            await reconciler.choose_policy(OURS, "root")
    assert refused.value.code == "sandbox_away" and "does not answer at" in str(refused.value)
    assert sqlite.policies.active() is None
