"""The active policy: swapped while jobs wait, preserved over restarts, withdrawn if it fails."""

import asyncio

import psutil
import pytest

from minicluster.wire import JobState, PolicyChoice
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.policy.active_policy import BUILT_IN
from minicluster_hub.policy.choices import ChoiceRefused
from minicluster_hub.policy.custom_policy import CustomPolicies, CustomPolicy

from ... import messages
from ...patience import WITHIN_S
from ...processes import runs
from ..machines import Machines, play, play_one, service, submit, until

LAST_FIRST = """
from minicluster_hub.scheduling.base import Grant, Plan

def plan(snapshot):
    running = [Grant(job.job_id, job.replicas) for job in snapshot.running]
    last = sorted(snapshot.waiting, key=lambda job: -job.job_id)[:1]
    return Plan((*running, *(Grant(job.job_id, job.min_replicas) for job in last)))
"""
TURNS_BAD = """
import os
from minicluster_hub.scheduling.base import Grant, Plan

def rest(snapshot):
    return Plan(tuple(Grant(job.job_id, job.replicas or job.min_replicas) for job in snapshot.jobs))

def plan(snapshot):
    if any(job.owner == "ada" for job in snapshot.waiting):
        {does}
    return rest(snapshot)
"""
"""It fails only once ada has a job, not in the trial."""
BAD = {
    "raises": ("raise RuntimeError('no idea')", "RuntimeError: no idea (line 10 in plan: raise Runtime"),
    "takes for ever and catches all": (
        """while True:
            try:
                while True: pass
            except BaseException: pass""",
        messages.TOOK_LONGER.format(limit=1),
    ),
    "plans twice": ("return Plan((Grant(1, 1), Grant(1, 1)))", messages.PLANNED_TWICE.format(job=1)),
    "ends itself": ("os._exit(3)", f"{messages.PROCESS_ENDED} with code 3"),
    "eats memory": ("bytearray(3 << 30)", "MemoryError"),
    "forks": (
        "os.fork()",
        f"PermissionError: a policy {messages.MAY_START_NO_PROCESS} (line 10 in plan: os.fork())",
    ),
    "answers by itself": (
        "for fd in os.listdir('/proc/self/fd'): "
        "os.write(int(fd), b'x' * 99) if 'socket' in os.path.realpath('/proc/self/fd/' + fd) else 0",
        messages.ANSWER_IS_NO_PLAN,
    ),
}
REFUSED = {
    "no python": ("def plan(snapshot)\n    pass", "SyntaxError: expected ':'"),
    "a module that is missing": ("import nothing_like_that", "ModuleNotFoundError"),
    "no plan": ("x = 1", f"it {messages.NO_FUNCTION_PLAN}(snapshot)"),
    "raises": ("def plan(snapshot):\n    return 1 / 0", "division by zero (line 2 in plan: return 1 / 0)"),
    "raises at the third call": (
        LAST_FIRST.replace(
            "def plan(snapshot):",
            "CALLS = []\ndef plan(snapshot):\n    CALLS.append(1); 1 / (3 - len(CALLS))",
        ),
        "at decision 2 on random jobs: ZeroDivisionError",
    ),
    "is slow": (
        LAST_FIRST.replace("running =", "import time; time.sleep(9); running ="),
        messages.TOOK_LONGER.format(limit=1),
    ),
    "lets nobody run": (
        "from minicluster_hub.scheduling.base import Plan\nplan = lambda snapshot: Plan(())",
        "no event is left; ",
    ),
    "drops who must stay": (
        LAST_FIRST.replace("running = [", "running = [][:0] and ["),
        messages.LEFT_OUT_JOB,
    ),
    "believes in time limits": (
        LAST_FIRST.replace("-job.job_id", "job.time_limit_s + 1"),
        "TypeError: unsupported operand",
    ),
    "ends itself when loaded": ("import os; os._exit(0)", f"{messages.PROCESS_ENDED} with code 0"),
    "eats memory when loaded": ("x = bytearray(3 << 30)", "MemoryError"),
    "starts a process when loaded": (
        "import subprocess; subprocess.run(['true'])",
        messages.MAY_START_NO_PROCESS,
    ),
}


OURS = PolicyChoice(policy="ours")


@pytest.fixture
def own(tmp_path):
    """Write a custom policy into the folder of policies; return the folder's policies."""
    folder = tmp_path / "policies"
    folder.mkdir()

    def put(source, name="ours"):
        (folder / f"{name}.py").write_text(source)
        return CustomPolicies.in_processes(folder)

    return put


def children():
    """Return the running processes of policies."""
    return [
        child for child in psutil.Process().children() if runs(child, "minicluster_hub.policy.sandbox_child")
    ]


def first_of(store):
    """Return the first admitted job."""
    events = [(job, event) for job in store.jobs(None) for event in store.events(job.id)]
    started = [(event.id, job.id) for job, event in events if event.kind == "admitted"]
    return min(started)[1] if started else None


async def test_a_labs_own_policy_orders_the_next_jobs_and_survives_a_restart(sqlite, own):
    machines, policies = Machines(), own(LAST_FIRST)
    async with service(sqlite, machines, own=policies) as reconciler:
        await reconciler.choose_policy(OURS, "root")
        jobs = [submit(sqlite, key=f"key-0000{number}") for number in range(3)]
        reconciler.wake()
        assert await until(reconciler, lambda: first_of(sqlite) is not None)
        assert first_of(sqlite) == jobs[-1]
    async with service(sqlite, machines, own=policies) as again:
        again.wake()
        assert await until(again, lambda: again.policy_manager.active.choice.policy == "ours")
        report = again.policy_manager.report()
        assert (report.in_force.by, report.trouble) == ("root", "")


@pytest.mark.parametrize("does", BAD)
async def test_a_policy_that_turns_bad_is_taken_back_and_the_jobs_run(sqlite, own, does):
    machines = Machines()
    line, message = BAD[does]
    async with service(sqlite, machines, own=own(TURNS_BAD.format(does=line))) as reconciler:
        await reconciler.choose_policy(OURS, "root")
        report = await play_one(sqlite, reconciler, machines)
    assert report.in_force.choice == BUILT_IN
    assert report.trouble.startswith(f"ours {messages.TAKEN_BACK}") and message in report.trouble


async def test_the_policy_before_the_bad_one_is_active_again(sqlite, own):
    machines, policies = Machines(), own(TURNS_BAD.format(does="raise ValueError"))
    async with service(sqlite, machines, own=policies) as reconciler:
        await reconciler.choose_policy(PolicyChoice(policy="srtf"), "root")
        await reconciler.choose_policy(OURS, "root")
        job = submit(sqlite, nodes=1)
        reconciler.wake()
        await play(sqlite, reconciler, machines, job)
        assert reconciler.policy_manager.active.choice.policy == "srtf"


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        (PolicyChoice(policy="lottery"), messages.NO_SUCH_POLICY.format(name="lottery")),
        (PolicyChoice(policy="fifo", placement="anywhere"), "there is no placement 'anywhere'"),
        (PolicyChoice(policy="fifo", options={"speed": 3}), "fifo has no option 'speed'"),
        (PolicyChoice(policy="time_slice", options={"quantum_s": "soon"}), "is of the kind float"),
        (PolicyChoice(policy="ours", options={"speed": 3}), "it is a function and takes no"),
        (PolicyChoice(policy="../ours"), messages.NO_SUCH_POLICY.format(name="../ours")),
    ],
)
async def test_what_cannot_be_activated_is_refused_and_changes_nothing(sqlite, own, choice, told):
    async with service(sqlite, Machines(), own=own(LAST_FIRST)) as reconciler:
        await refuses(reconciler, choice, told)
        assert sqlite.policies.active() is None


@pytest.mark.parametrize("kind", REFUSED)
async def test_a_file_that_is_no_policy_is_refused_and_changes_nothing(sqlite, own, kind):
    source, message = REFUSED[kind]
    async with service(sqlite, Machines(), own=own(source)) as reconciler:
        await refuses(reconciler, OURS, message)
        assert sqlite.policies.active() is None


async def refuses(reconciler, choice, told):
    with pytest.raises(ChoiceRefused) as refused:
        await reconciler.choose_policy(choice, "root")
    assert told in str(refused.value)
    assert reconciler.policy_manager.active.choice == BUILT_IN
    assert children() == []


async def test_a_policy_that_prints_plans_all_the_same(sqlite, own, caplog):
    prints = LAST_FIRST.replace("running =", "print('here'); os.write(1, b'and here'); running =")
    caplog.set_level("INFO")
    async with service(sqlite, Machines(), own=own(f"import os\n{prints}")) as reconciler:
        await reconciler.choose_policy(OURS, "root")
        assert reconciler.policy_manager.active.choice.policy == "ours"
    assert "the policy ours prints: here" in caplog.text


def thinks_while(there, monkeypatch):
    """Return a policy that plans ada's jobs once a file is removed, and a list of the jobs that it saw."""
    asked, plan = [], CustomPolicy.plan

    def planning(policy, snapshot):
        asked.extend(job.job_id for job in snapshot.waiting if job.owner == "ada")
        return plan(policy, snapshot)

    monkeypatch.setattr(CustomPolicy, "plan", planning)
    monkeypatch.setattr("minicluster_hub.policy.custom_policy.PLAN_S", WITHIN_S)
    does = f"import time\n        while os.path.exists({str(there)!r}): time.sleep(0.01)"
    return TURNS_BAD.format(does=does), asked


async def test_heartbeats_are_heard_while_a_policy_thinks(sqlite, own, tmp_path, monkeypatch):
    machines, held = Machines(), tmp_path / "held"
    source, asked = thinks_while(held, monkeypatch)
    async with service(sqlite, machines, own=own(source)) as reconciler:
        await reconciler.choose_policy(OURS, "root")
        held.touch()
        job = submit(sqlite, nodes=1)
        reconciler.wake()
        assert await until(reconciler, lambda: job in asked)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not machines.launches, "the loop did not turn while the policy thought"
        held.unlink()
        assert (await play(sqlite, reconciler, machines, job)).state is JobState.SUCCEEDED
        assert reconciler.policy_manager.active.choice.policy == "ours"


async def test_what_was_planned_of_a_job_that_is_gone_by_then_is_nothing(sqlite, own, tmp_path, monkeypatch):
    machines, held = Machines(), tmp_path / "held"
    source, asked = thinks_while(held, monkeypatch)
    async with service(sqlite, machines, own=own(source)) as reconciler:
        await reconciler.choose_policy(OURS, "root")
        held.touch()
        gone, other = submit(sqlite, nodes=1), submit(sqlite, nodes=1, key="key-00002")
        reconciler.wake()
        assert await until(reconciler, lambda: gone in asked)
        reconciler.apply_event(gone, JobEvent.STOP_ASKED)
        held.unlink()
        assert (await play(sqlite, reconciler, machines, other)).state is JobState.SUCCEEDED
        assert [launch.job_id for launch in machines.launches] == [other]
        assert reconciler.policy_manager.report().trouble == ""


async def test_a_swap_touches_no_job(sqlite):
    machines = Machines()
    async with service(sqlite, machines) as reconciler:
        running = submit(sqlite)
        reconciler.wake()
        assert await until(reconciler, lambda: len(machines.launches) == 3)
        waiting = submit(sqlite, owner="bob", key="key-00002")
        reconciler.wake()
        events = [len(sqlite.events(job)) for job in (running, waiting)]
        for name in ("srtf", "las", "fair_share", "elastic_fifo", "time_slice", "fifo"):
            await reconciler.choose_policy(PolicyChoice(policy=name), "root")
            await asyncio.sleep(0.01)
            assert reconciler.policy_manager.active.choice.policy == name
        assert [len(sqlite.events(job)) for job in (running, waiting)] == events
        assert len(machines.launches) == 3 and not reconciler.loop.done()
