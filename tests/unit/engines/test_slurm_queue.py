"""What the engine `slurm` makes of Slurm's answers: what it sends, and which slots a grant is."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from minicluster_hub.engines.capabilities import Place, PlacedGang, QueueRequest
from minicluster_hub.engines.slurm.commands import Commands, SlurmRefused
from minicluster_hub.engines.slurm.names import Names
from minicluster_hub.engines.slurm.parsing import Granted, SlurmJob, SlurmNode
from minicluster_hub.engines.slurm.queue import SlurmQueue
from minicluster_hub.engines.slurm.reasons import CANCELLED, STARTING
from minicluster_hub.engines.slurm.settings import SlurmSettings
from minicluster_hub.engines.slurm.users import LinuxUsers
from minicluster_hub.engines.slurm.view import SlurmView

from ...patience import eventually

REQUEST = QueueRequest(7, "ada", 0, 1, 1, 1)
NAMES, LOG = Names(b"secret"), logging.getLogger("minicluster-test")


class Slurm(Commands):
    """A Slurm in memory. It lists each job until somebody cancels it."""

    def __init__(self, gpus=2):
        super().__init__(())
        self.there = [SlurmNode(name, "idle", 4, 0, gpus, name, "none") for name in ("n1", "n2")]
        self.submitted = []
        self.listed = {}
        self.has = {}

    async def jobs(self, users):
        return list(self.listed.values())

    async def steps(self, users):
        return []

    async def nodes(self):
        return self.there

    async def granted(self, slurm_job):
        return self.has[slurm_job]

    async def submit(self, user, words):
        (name,) = (word.partition("=")[2] for word in words if word.startswith("--job-name="))
        self.submitted.append(name)
        number = len(self.submitted)
        self.listed[number] = SlurmJob(number, name, user, "PENDING", 1e9, (), "Resources")
        return str(number)

    async def cancel(self, user, job_or_step, *, signal=""):
        return self.listed.pop(int(job_or_step), None) is not None

    def start(self, *has, state="RUNNING"):
        """Let the first job have its nodes."""
        self.has[1] = list(has)
        self.listed[1] = replace(self.listed[1], state=state, nodes=tuple(one.node for one in has))


@asynccontextmanager
async def queue_of(slurm, **settings):
    view = SlurmView(slurm, NAMES, lambda: {"ada"}, lambda: True, LOG)
    chosen = SlurmSettings("python3", **settings)
    queue = SlurmQueue(slurm, view, NAMES, chosen, lambda owner: owner, lambda: None, LOG)
    await view.open()
    try:
        yield queue
    finally:
        await queue.close()
        await view.close()


async def listed(queue, request=REQUEST):
    await eventually(lambda: "(Slurm: Resources)" in queue.request([request], []).waits[7].reason)


async def test_a_request_is_sent_once_and_is_granted_where_slurm_says():
    slurm = Slurm()
    async with queue_of(slurm) as queue:
        await listed(queue)
        assert queue.request([REQUEST], []).waits[7].expected_start_at == 1e9
        slurm.start(Granted("n2", (1,), 1, 2), state="CONFIGURING")
        await eventually(lambda: queue.request([REQUEST], []).waits[7] == STARTING)
        slurm.start(Granted("n2", (1,), 1, 2))
        await eventually(lambda: 7 in queue.request([REQUEST], []).granted)
        assert queue.request([REQUEST], []).granted == {7: (Place("n2", (1,)),)}
        assert slurm.submitted == [NAMES.allocation(REQUEST, "ada")]


async def test_a_request_that_somebody_cancels_in_slurm_is_not_sent_again_at_once():
    slurm = Slurm()
    async with queue_of(slurm) as queue:
        await listed(queue)
        slurm.listed.clear()
        await eventually(lambda: queue.request([REQUEST], []).waits[7] == CANCELLED)
        assert queue.request([REQUEST], []).waits[7] == CANCELLED
        assert len(slurm.submitted) == 1


async def test_what_no_job_wants_any_more_is_given_back_and_may_be_wanted_again():
    slurm = Slurm()
    async with queue_of(slurm) as queue:
        await listed(queue)
        slurm.start(Granted("n1", (0,), 1, 2), state="CONFIGURING")
        await eventually(lambda: queue.request([], []) and not slurm.listed)
        await eventually(lambda: queue.request([REQUEST], []) and len(slurm.submitted) == 2)


@pytest.mark.parametrize(
    ("taken", "found"), [((), (0,)), ((0,), (1,)), ((0, 1), None)], ids=["none", "one", "all"]
)
async def test_gpus_that_slurm_does_not_number_are_the_first_free_ones(taken, found):
    slurm = Slurm()
    placed = [PlacedGang(1, 1, 0, {slot: Place("n1", (slot,)) for slot in taken})]
    async with queue_of(slurm) as queue:
        await listed(queue)
        slurm.start(Granted("n1", (), 1, 2))
        if found is None:
            await eventually(lambda: queue.request([REQUEST], placed).waits[7] == STARTING)
            await eventually(lambda: not queue.busy)
            assert queue.request([REQUEST], placed).granted == {}
        else:
            await eventually(lambda: 7 in queue.request([REQUEST], placed).granted)
            assert queue.request([REQUEST], placed).granted == {7: (Place("n1", found),)}


async def test_cores_that_slurm_adds_are_no_slots():
    slurm, request = Slurm(gpus=0), replace(REQUEST, min_replicas=3, max_replicas=3, one_per_node=False)
    async with queue_of(slurm, cpu_slots=4, cpus_per_slot=1) as queue:
        await listed(queue, request)
        slurm.start(Granted("n1", (), 0, 2), Granted("n2", (), 0, 2))
        await eventually(lambda: 7 in queue.request([request], []).granted)
        places = queue.request([request], []).granted[7]
        assert places == (Place("n1", (0, 1)), Place("n2", (0,)))


def test_the_sites_users_are_not_asked_for_at_each_tick():
    now, asked = 0.0, []

    class Counted(LinuxUsers):
        def _why_not(self, owner):
            asked.append(owner)
            return "" if owner == "ada" else f"no user {owner}"

    users = Counted(["sudo"], clock=lambda: now)
    for _ in range(3):
        assert users.of("ada") == "ada"
        with pytest.raises(SlurmRefused, match="no user bob"):
            users.of("bob")
    assert asked == ["ada", "bob"] and users.seen == {"ada"}
    now = 3600.0
    users.of("ada")
    assert asked == ["ada", "bob", "ada"]
