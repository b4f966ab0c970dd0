"""A job that makes the service's own code fail: only this job ends, and others continue."""

import importlib
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from minicluster.wire import JobState, PolicyChoice
from minicluster_hub.jobs.records import JobRecord
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.scheduling.policies.fifo import Fifo

from ...service.machines import Machines, MemoryEngine, play, send_report, service, submit, until

RETRY_S = 0.01


class FailsForMallory(MemoryEngine):
    """An engine that fails for the jobs of one owner."""

    async def start(self, launch):
        if launch.owner == "mallory":
            raise KeyError("Spec")
        await super().start(launch)


class NeverEndsMallorys(MemoryEngine):
    async def end(self, task_id):
        owners = {launch.task_id: launch.owner for launch in self.machines.launches}
        if owners[task_id] == "mallory":
            raise RuntimeError("no such field")
        await super().end(task_id)


@pytest.fixture
def execute(sqlite):
    """Change rows without the service."""

    def run(statement, **values):
        with sqlite._database.write() as connection:
            connection.execute(text(statement), values)

    return run


async def others_work(store, machines, reconciler, nodes=1):
    """Check that another user's job starts, runs and ends, and that another one is stopped."""
    number = len(store.jobs("bob"))
    job = submit(store, "bob", nodes, f"key-bob-{number}")
    reconciler.wake()
    assert (await play(store, reconciler, machines, job, owner="bob")).state is JobState.SUCCEEDED
    stopped = submit(store, "bob", nodes, f"key-bob-{number + 1}")
    reconciler.wake()
    assert await until(reconciler, lambda: store.job(stopped).state is JobState.STARTING)
    reconciler.apply_event(stopped, JobEvent.STOP_ASKED)
    assert (await play(store, reconciler, machines, stopped, owner="bob")).state is JobState.STOPPED


def free_of(store, owner):
    return not [lease for lease in store.open_state().leases if lease.owner == owner]


async def ended_alone(store, machines, reconciler, bad):
    """Check that others work while a job fails, and that it ends with a reason and holds nothing."""
    await others_work(store, machines, reconciler)
    assert await until(reconciler, lambda: store.job(bad).state is JobState.FAILED)
    assert await until(reconciler, lambda: free_of(store, "mallory"))
    await others_work(store, machines, reconciler)
    assert reconciler.quarantine.exhausted() == ()
    return store.job(bad).error


async def test_a_job_whose_start_raises_each_time(sqlite):
    machines = Machines()
    async with service(sqlite, machines, FailsForMallory, retry_s=RETRY_S) as reconciler:
        bad = submit(sqlite, "mallory", 2)
        reconciler.wake()
        error = await ended_alone(sqlite, machines, reconciler, bad)
    assert "failed 5 times" in error.message
    assert "KeyError" in error.hint


@pytest.mark.parametrize("spec", ["{", '{"payload_sha256": "x"}', "[]", ""])
async def test_a_waiting_job_whose_record_is_broken(sqlite, execute, spec):
    bad = submit(sqlite, "mallory", 2)
    execute("UPDATE jobs SET spec = :spec WHERE id = :id", spec=spec, id=bad)
    machines = Machines()
    async with service(sqlite, machines, retry_s=RETRY_S) as reconciler:
        error = await ended_alone(sqlite, machines, reconciler, bad)
    assert "cannot be read" in error.message
    assert [job.id for job in sqlite.jobs("mallory")] == [bad], "its owner sees it"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE jobs SET spec = 'x' WHERE owner = 'mallory'",
        "UPDATE tasks SET slots = '{' WHERE id = (SELECT max(id) FROM tasks)",
        "UPDATE tasks SET failure = '{' WHERE id = (SELECT max(id) FROM tasks)",
        "UPDATE ranks SET error = '{' WHERE rank = 1",
    ],
)
async def test_a_job_under_way_whose_rows_are_broken(sqlite, execute, statement):
    machines = Machines()
    async with service(sqlite, machines, retry_s=RETRY_S, stop_timeout_s=0.1) as reconciler:
        bad = submit(sqlite, "mallory", 2)
        reconciler.wake()
        assert await until(reconciler, lambda: len(machines.launches) == 2)
        execute(statement)
        reconciler.wake()
        await others_work(sqlite, machines, reconciler)
        record = await play(sqlite, reconciler, machines, bad)
        assert record.state is JobState.FAILED
        assert "cannot be read" in record.error.message
        await others_work(sqlite, machines, reconciler, 3)


@contextmanager
def raising_for(monkeypatch, module, name, is_bad):
    """Return a function that fails for one job only."""
    whole = getattr(module, name)

    def defective(*given, **named):
        if any(is_bad(one) for one in given):
            raise ZeroDivisionError("division by zero")
        return whole(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, defective)
        yield


def is_mallorys(one):
    job = getattr(one, "job", one)
    return isinstance(job, JobRecord) and job.owner == "mallory"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("minicluster_hub.jobs.gang_state", "_observed"),
        ("minicluster_hub.jobs.lifecycle", "_job_actions"),
        ("minicluster_hub.jobs.lifecycle", "_job_waits"),
        ("minicluster_hub.control.status_cache", "orders_for"),
    ],
)
async def test_a_job_at_which_deciding_raises(sqlite, monkeypatch, module, name):

    machines = Machines()
    with raising_for(monkeypatch, importlib.import_module(module), name, is_mallorys):
        async with service(sqlite, machines, retry_s=RETRY_S) as reconciler:
            bad = submit(sqlite, "mallory", 2)
            reconciler.wake()
            error = await ended_alone(sqlite, machines, reconciler, bad)
    assert "failed 5 times" in error.message


async def test_a_job_that_the_store_does_not_take(sqlite, monkeypatch):
    admit = sqlite.admit

    def refusing(job_id, places, now):
        if sqlite.job(job_id).owner == "mallory":
            raise OverflowError("Python int too large to convert to SQLite INTEGER")
        return admit(job_id, places, now)

    monkeypatch.setattr(sqlite, "admit", refusing)
    machines = Machines()
    async with service(sqlite, machines, retry_s=RETRY_S) as reconciler:
        bad = submit(sqlite, "mallory", 2)
        reconciler.wake()
        error = await ended_alone(sqlite, machines, reconciler, bad)
    assert error.message.endswith(f"placing job {bad} failed 5 times in a row")


@pytest.mark.parametrize("part", ["policy", "snapshot"])
async def test_jobs_at_which_planning_raises_leave_the_policy_active(sqlite, monkeypatch, part):
    from minicluster_hub.control import scheduler_input
    from minicluster_hub.scheduling.policies import backfill

    choice = PolicyChoice(policy="backfill")
    machines = Machines()
    whole = backfill.Backfill.plan

    def defective(self, snapshot):
        assert all(job.owner != "mallory" for job in snapshot.jobs)
        return whole(self, snapshot)

    with monkeypatch.context() as patch:
        if part == "policy":
            patch.setattr(backfill.Backfill, "plan", defective)
            patch.setattr(Fifo, "plan", defective)
        else:
            _break(patch, scheduler_input)
        async with service(sqlite, machines, retry_s=RETRY_S) as reconciler:
            bad = [submit(sqlite, "mallory", 2, f"key-mallory-{number}") for number in range(3)]
            reconciler.wake()
            for job in bad:
                await ended_alone(sqlite, machines, reconciler, job)
            assert reconciler.policy_manager.report().in_force.choice.policy == choice.policy


def _break(patch, scheduler_input):
    whole = scheduler_input._job

    def defective(job, *given, **named):
        assert job.owner != "mallory"
        return whole(job, *given, **named)

    patch.setattr(scheduler_input, "_job", defective)


async def test_a_policy_that_raises_at_any_job_is_to_blame_itself(sqlite, monkeypatch):
    from minicluster_hub.scheduling.policies import backfill

    def defective(self, snapshot):
        raise ZeroDivisionError

    monkeypatch.setattr(backfill.Backfill, "plan", defective)
    machines = Machines()
    async with service(sqlite, machines, retry_s=RETRY_S) as reconciler:
        await others_work(sqlite, machines, reconciler)
        assert reconciler.policy_manager.report().in_force.choice.policy == "fifo"


async def test_what_cannot_even_be_ended_is_set_aside_and_told(sqlite, caplog):
    machines = Machines()
    async with service(sqlite, machines, NeverEndsMallorys, retry_s=RETRY_S) as reconciler:
        bad = submit(sqlite, "mallory", 2)
        reconciler.wake()
        assert await until(reconciler, lambda: len(machines.launches) == 2)
        for task in sqlite.open_state().tasks:
            send_report(sqlite, reconciler, task, store_port=4000)
        sqlite.apply(bad, JobEvent.GIVEN_UP, 1.0)
        reconciler.wake()
        assert await until(reconciler, lambda: len(reconciler.quarantine.exhausted()) == 2)
        await others_work(sqlite, machines, reconciler)
        assert not free_of(sqlite, "mallory"), "its processes are still there"
    failures = {str(failure.operation) for failure in reconciler.quarantine.exhausted()}
    assert failures == {f"ending task {launch.task_id}" for launch in machines.launches[:2]}
    tracebacks = [one for one in caplog.records if one.exc_info and "no such field" in str(one.exc_info[1])]
    assert len(tracebacks) == 2, "one for each, not one for each try"


async def test_a_database_that_is_away_is_nobodys_fault(sqlite, monkeypatch):
    from minicluster_hub.store import StoreUnavailable

    away, calls = True, []

    def call(*_given, **_named):
        calls.append(away)
        if away:
            raise StoreUnavailable("gone")

    monkeypatch.setattr(sqlite, "ping", call)
    admit = sqlite.admit
    monkeypatch.setattr(sqlite, "admit", lambda *given: call() or admit(*given))
    machines = Machines()
    async with service(sqlite, machines, retry_s=RETRY_S) as reconciler:
        job = submit(sqlite)
        reconciler.wake()
        assert await until(reconciler, lambda: len(calls) == 2)
        away = False
        assert (await play(sqlite, reconciler, machines, job)).state is JobState.SUCCEEDED
    assert reconciler.quarantine.total == 0
