"""Quotas: jobs held back before the policy, with the reason; no policy can exceed a quota."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from minicluster_hub.jobs.records import ServerRecord
from minicluster_hub.scheduling.allocation.assign import assign
from minicluster_hub.scheduling.allocation.free_slots import count_slots
from minicluster_hub.scheduling.limits import Quota, Quotas, QuotaWrong, SlotShare
from minicluster_hub.scheduling.placement import PLACEMENTS, placement
from minicluster_hub.scheduling.policies import POLICIES, policy
from minicluster_hub.scheduling.quotas import HOURS_LOOK_S, apply_quotas

from ... import messages
from .small_lab import NOW, runs, snapshot, waits
from .snapshots_drawn import OWNERS, snapshots


def kept(*jobs, hours=0.0, servers=(), quotas=None, **quota):
    """Return the jobs that are within ada's quota."""
    value = quotas or Quotas({"ada": Quota(**quota)})
    return apply_quotas(snapshot(*jobs, servers=tuple(servers)), value, lambda owner: hours)


def passed(found):
    return [job.job_id for job in found.snapshot.waiting]


class TestWhoIsHeldBack:
    def test_nobody_without_a_quota(self):
        here = snapshot(runs(1, 4), waits(2, 9))
        for quotas in (
            Quotas(),
            Quotas({"bob": Quota(slots=1)}),
            Quotas({"*": Quota(slots=1), "ada": Quota()}),
        ):
            found = apply_quotas(here, quotas, lambda owner: 1e9)
            assert found.snapshot is here and not found.reasons

    def test_who_would_have_too_many_slots_at_once(self):
        found = kept(runs(1, 3), waits(2, 2), waits(3, 2, owner="bob"), slots=4)
        assert found.reasons == {2: messages.OVER_YOUR_SLOTS.format(quota=4, used=3)}
        assert passed(found) == [3] and found.snapshot.running == snapshot(runs(1, 3)).running

    def test_exactly_the_quota_is_within_it(self):
        assert passed(kept(runs(1, 3), waits(2, 1), slots=4)) == [2]

    def test_those_before_one_count_too(self):
        found = kept(waits(1, 3), waits(2, 2), slots=4)
        assert found.reasons == {
            2: f"{messages.OVER_YOUR_SLOTS.format(quota=4, used=0)}, 3 for your jobs before it"
        }

    def test_a_notebook_servers_slots_count(self):
        server = ServerRecord(1, "ada", "", "node-3", (0, 1), None, 0.0)
        others = replace(server, owner="bob")
        assert kept(waits(2, 3), servers=[server], slots=4).reasons == {
            2: messages.OVER_YOUR_SLOTS.format(quota=4, used=2)
        }
        assert passed(kept(waits(2, 3), servers=[others], slots=4)) == [2]

    def test_small_ones_do_not_starve_a_large_one_of_the_same_user(self):
        found = kept(runs(1, 3), waits(2, 2, since=NOW - 9.0), waits(3, 1, since=NOW - 5.0), slots=4)
        assert found.reasons[3].startswith("waits for your job 2,")

    def test_a_higher_priority_goes_first(self):
        small = waits(3, 1, since=NOW - 5.0, priority=60)
        found = kept(runs(1, 3), waits(2, 2, since=NOW - 9.0), small, slots=4)
        assert passed(found) == [3]

    def test_one_that_never_fits_holds_up_nobody(self):
        found = kept(waits(1, 5), waits(2, 1), slots=4)
        assert found.reasons == {1: "needs 5 slots; your quota is 4 at once"} and passed(found) == [2]

    def test_too_many_jobs_at_once(self):
        found = kept(runs(1, 1), waits(2, 1), waits(3, 1), jobs=2)
        assert found.reasons == {
            3: f"{messages.OVER_YOUR_JOBS.format(quota=2, running=1)}, 1 of yours before it"
        }
        assert passed(found) == [2]

    def test_gpu_hours_are_looked_at_again_for_they_lapse(self):
        found = kept(runs(1, 1), waits(2, 1), gpu_hours=10, hours=10.26)
        assert found.reasons == {2: messages.OVER_YOUR_HOURS.format(quota=10, used=10.3)}
        assert found.again_at == NOW + HOURS_LOOK_S
        within_them = kept(runs(1, 1), waits(2, 1), gpu_hours=10, hours=9.9)
        assert passed(within_them) == [2] and within_them.again_at is None

    def test_everybodys_quota_is_for_those_who_have_none_of_their_own(self):
        quotas = Quotas.read({"*": {"slots": 1}, "ada": {"slots": 3}})
        found = kept(waits(1, 2), waits(2, 2, owner="bob"), quotas=quotas)
        assert passed(found) == [1] and list(found.reasons) == [2]


class TestRanges:
    def test_a_range_is_cut_to_what_is_left(self):
        (job,) = kept(runs(1, 3), waits(2, 1, most=8), slots=6).snapshot.waiting
        assert (job.min_replicas, job.max_replicas) == (1, 3)

    def test_what_is_left_is_given_once(self):
        found = kept(waits(1, 1, most=8), waits(2, 1, most=8), slots=6)
        assert [job.max_replicas for job in found.snapshot.waiting] == [5, 1]

    def test_a_running_job_grows_no_further_than_the_quota_and_loses_nothing(self):
        (job,) = kept(runs(1, 4, least=1, most=8), slots=6).snapshot.running
        assert job.max_replicas == 6
        (job,) = kept(runs(1, 4, least=1, most=8), slots=2).snapshot.running
        assert job.max_replicas == 4
        (job,) = kept(runs(1, 4, least=1, most=8), gpu_hours=1, hours=2.0).snapshot.running
        assert job.max_replicas == 4

    def test_one_that_may_not_grow_takes_nothing_from_those_that_can(self):
        found = kept(runs(1, 2, most=8, movable=False), waits(2, 1, most=8), slots=6)
        assert found.snapshot.waiting[0].max_replicas == 4


@pytest.mark.parametrize(
    ("quota", "slots"),
    [
        (Quota(cpus=16), 2),
        (Quota(cpus=7.9), 0),
        (Quota(memory_gb=100), 3),
        (Quota(slots=1, cpus=16, memory_gb=100), 1),
        (Quota(jobs=2), None),
    ],
)
def test_cores_and_memory_are_so_many_slots(quota, slots):
    quotas = Quotas({"ada": quota}, slot_share=SlotShare(cpus=8, memory_gb=32))
    assert quotas.of("ada") == replace(quota, slots=slots)
    assert Quotas({"ada": quota}).of("ada") == quota, "nobody knows what a slot brings"


def test_held_back_jobs_stand_after_all_others_in_the_queue():
    found = kept(runs(1, 3), waits(2, 2), waits(3, 2, owner="bob"), waits(4, 2), slots=4)
    assert [(wait.job_id, wait.position, wait.expected_start_at) for wait in found.waits()] == [
        (2, 2, None),
        (4, 3, None),
    ]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"ada": {"slot": 3}}, "the quota of 'ada' has 'slot'; there are: slots, jobs, open_jobs, gpu"),
        ({"*": {"jobs": -1}}, f"the quota of '*' has jobs = -1; it {messages.A_NUMBER_AT_LEAST_0}"),
        ({"*": {"jobs": "many"}}, "has jobs = 'many'; it must be a number"),
    ],
)
def test_settings_that_are_no_quotas(told, message):
    with pytest.raises(QuotaWrong) as caught:
        Quotas.read(told)
    assert message in str(caught.value)


GROUPS = {"ada": ("vision",), "bob": ("vision", "speech")}


def groups_of(owner):
    return GROUPS.get(owner, ())


class TestGroups:
    def test_a_users_own_goes_before_the_groups_and_these_before_everybodys(self):
        values = {"bob": {"jobs": 9}, "group:vision": {"slots": 1}, "*": {"slots": 7}}
        quotas = replace(Quotas.read(values), groups_of=groups_of)
        assert [quotas.of(name).slots for name in ("ada", "bob", "eve")] == [1, None, 7]

    def test_of_several_groups_the_most_generous_counts_for_each_kind(self):
        values = {
            "group:vision": {"slots": 1, "jobs": 5},
            "group:speech": {"slots": 3, "jobs": 2, "run_s": 60},
        }
        quotas = replace(Quotas.read(values), groups_of=groups_of)
        assert quotas.of("bob") == Quota(slots=3, jobs=5)
        assert quotas.of("ada") == Quota(slots=1, jobs=5)

    def test_what_members_have_together_counts_for_all_of_them(self):
        quotas = replace(Quotas.read({"group:vision": {"slots_together": 4}}), groups_of=groups_of)
        found = kept(
            runs(1, 3), waits(2, 2, owner="bob"), waits(3, 1), waits(4, 9, owner="eve"), quotas=quotas
        )
        assert found.reasons == {
            2: messages.OVER_THE_GROUPS_SLOTS.format(group="vision", quota=4, used=3),
            3: "waits for job 2, which the quota of group vision holds back",
        }
        assert passed(found) == [4]


limits = st.builds(Quota, st.sampled_from([None, 0, 1, 3, 6]), st.sampled_from([None, 0, 1, 2]), st.none())
of_groups = st.dictionaries(
    st.sampled_from(["group:vision", "group:speech"]),
    st.builds(
        lambda quota, most: replace(quota, slots_together=most), limits, st.sampled_from([None, 0, 2, 5])
    ),
)
drawn_quotas = st.builds(
    lambda users, groups: Quotas({**users, **groups}, groups_of),
    st.dictionaries(st.sampled_from([*OWNERS, "*"]), limits),
    of_groups,
)


def had(here, places):
    """Return each owner's slots and number of running jobs, given these places."""
    owners = {job.job_id: job.owner for job in here.jobs}
    servers = [(server.owner, len(server.slots)) for server in here.servers]
    held = [(owners[job_id], count_slots(its)) for job_id, its in places.items()]
    return {
        name: (
            sum(slots for owner, slots in [*held, *servers] if owner == name),
            sum(owner == name for owner, _ in held),
        )
        for name in OWNERS
    }


@settings(deadline=None, max_examples=40)
@given(snapshots(), drawn_quotas)
def test_no_policy_gives_more_than_the_quota(here, quotas):
    found = apply_quotas(here, quotas, lambda owner: 0.0)
    before = had(here, {job.job_id: job.places for job in here.running})
    for ordered, placed in product(POLICIES, PLACEMENTS):
        note(f"{ordered} with {placed}")
        places = assign(found.snapshot, policy(ordered), placement(placed)).places
        after = had(here, {job_id: its for job_id, its in places.items() if its})
        for name, (slots, jobs) in after.items():
            quota = quotas.of(name)
            assert quota.slots is None or slots <= max(quota.slots, before[name][0])
            assert quota.jobs is None or jobs <= max(quota.jobs, before[name][1])
        for group, most in quotas.together().items():
            held, had_before = (
                sum(slots for name, (slots, _) in its.items() if group in groups_of(name))
                for its in (after, before)
            )
            assert held <= max(most, had_before)


@settings(deadline=None, max_examples=200)
@given(snapshots(), drawn_quotas)
def test_every_job_is_there_or_has_a_reason_and_the_first_that_may_run_is_there(here, quotas):
    found = apply_quotas(here, quotas, lambda owner: 0.0)
    assert {job.job_id for job in found.snapshot.jobs} | found.reasons.keys() == {
        job.job_id for job in here.jobs
    }
    assert not found.reasons.keys() & {job.job_id for job in found.snapshot.jobs}
    assert all(job.max_replicas >= max(job.min_replicas, job.replicas) for job in found.snapshot.jobs)
    for name in OWNERS:
        quota = quotas.of(name)
        mine = [job for job in here.waiting if job.owner == name]
        idle = had(here, {job.job_id: job.places for job in here.running})[name] == (0, 0)
        allowed = [job for job in mine if job.min_replicas * job.slots_per_replica <= (quota.slots or 0)]
        alone = not any(group in groups_of(name) for group in quotas.together())
        if idle and allowed and alone and quota.jobs != 0:
            first = min(allowed, key=lambda job: (-job.priority, job.submit_order))
            assert first.job_id not in found.reasons
