"""Custom policies: valid classes, and valid plans."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from minicluster_hub.scheduling.allocation.free_slots import FreeSlots
from minicluster_hub.scheduling.base import Grant, Plan, WarmGang
from minicluster_hub.scheduling.own import AGAIN_S, PolicyFailed, fitted, policy_in, sound

from ... import messages
from ..scheduling.small_lab import runs, snapshot, waits

HERE = snapshot(runs(1, 2, movable=False), runs(2, 2), waits(3, 1), waits(4, 4))
STAYS = Grant(1, HERE.jobs[0].replicas)


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        (7, f"plan() returned 7, {messages.WHICH_IS_NO_PLAN}"),
        (None, f"plan() returned None, {messages.WHICH_IS_NO_PLAN}"),
        (Plan((STAYS, (3, 1))), "its plan contains (3, 1), which is not a Grant"),
        (Plan((STAYS, STAYS)), messages.PLANNED_TWICE.format(job=1)),
        (Plan((STAYS, Grant(77, 1))), "it planned job 77, which neither waits nor runs"),
        (Plan((STAYS, Grant("3", 1))), "it planned job '3', which neither waits nor runs"),
        (Plan((STAYS, Grant(True, 1))), "it planned job True, which neither waits nor runs"),
        (Plan((STAYS, Grant(3, 9))), "it gave 9 replicas to job 3, which may have 1"),
        (Plan((STAYS, Grant(3, -1))), "it gave -1 replicas to job 3, which may have 1"),
        (Plan((STAYS, Grant(3, 1.0))), "it gave 1.0 replicas to job 3, which may have 1"),
        (Plan((STAYS, Grant(3, float("nan")))), "it gave nan replicas to job 3, which may have 1"),
        (Plan((STAYS, Grant(3, True))), "it gave True replicas to job 3, which may have 1"),
        (Plan((STAYS, Grant(3, "x" * 900))), "replicas to job 3, which may have 1"),
        (Plan((Grant(1, STAYS.replicas + 1),)), "replicas to job 1, which may have"),
        (Plan((Grant(3, 1),)), f"{messages.LEFT_OUT_JOB} 1, which must keep its slots"),
        (Plan((STAYS,), again_at=float("nan")), "its again_at is nan"),
        (Plan((STAYS,), again_at=float("inf")), "its again_at is inf"),
        (Plan((STAYS,), again_at="soon"), "its again_at is 'soon'"),
        (Plan((STAYS,), reserved=7), "its `reserved` is 7; it must be places"),
        (Plan((STAYS,), reserved=(("moon", (0,)),)), "it reserves slots [0] of moon, which do not exist"),
        (
            Plan((STAYS,), reserved=(("node-1", (-1,)),)),
            "it reserves slots [-1] of node-1, which do not exist",
        ),
    ],
)
def test_what_cannot_be_is_told(told, wrong):
    with pytest.raises(PolicyFailed) as failed:
        sound(HERE, told)
    assert wrong in str(failed.value) and len(str(failed.value)) < 200


def test_what_can_be_is_taken_and_asked_again_in_a_second_at_the_soonest():
    plan = Plan((STAYS, Grant(4, HERE.jobs[3].min_replicas)), again_at=HERE.now - 5, head_blocks=False)
    taken = sound(HERE, plan)
    assert (taken.grants, taken.head_blocks, taken.again_at) == (plan.grants, False, HERE.now + AGAIN_S)
    assert sound(HERE, Plan((STAYS,), again_at=HERE.now + 99)).again_at == HERE.now + 99
    assert sound(HERE, Plan((STAYS,))).again_at is None


def test_of_jobs_that_are_gone_by_then_nothing_is_left_in_the_plan():
    plan = Plan((STAYS, Grant(3, 1), Grant(4, 4)), again_at=9.0)
    later = snapshot(HERE.jobs[0], HERE.jobs[3], waits(5, 1))
    assert fitted(plan, later).grants == (STAYS, Grant(4, 4))


def test_one_that_lost_a_node_may_keep_what_it_has_whatever_a_quota_leaves():
    def taken(replicas, most):
        here = snapshot(runs(1, 1, least=2, most=most))
        return sound(here, Plan((Grant(1, replicas),))).grants[0].replicas

    assert [taken(1, 3), taken(2, 3), taken(3, 3)] == [1, 2, 3]
    assert [taken(1, 1), taken(2, 1)] == [1, 2]
    for replicas, most in ((0, 3), (4, 3), (3, 1)):
        with pytest.raises(PolicyFailed, match="which may have"):
            taken(replicas, most)


class WithOptions:
    preemptive = True

    def __init__(self, share=1.0):
        self.share = share

    def plan(self, _snapshot):
        return Plan((STAYS,), again_at=1e9 * self.share)


def test_a_class_a_function_or_a_module_may_be_one():
    made = policy_in(WithOptions, {"share": 2.0})
    assert (made.preemptive, made.elastic, made.plan(HERE).again_at) == (True, False, 2e9)
    assert policy_in(WithOptions().plan, {}).plan(HERE).grants == (STAYS,)
    with pytest.raises(PolicyFailed, match="takes no options"):
        policy_in(WithOptions().plan, {"share": 2.0})
    for found in (7, SimpleNamespace(), None, type("Empty", (), {})):
        with pytest.raises(PolicyFailed, match=messages.NO_FUNCTION_PLAN):
            policy_in(found, {})


def test_a_policy_of_an_earlier_release_may_use_the_old_names():
    job, gang = HERE.jobs[1], WarmGang(7, "eve", (("node-3", (0, 1)),), 2, 0.0)
    assert (job.chunks, job.chunk_slots, job.min_chunks, job.max_chunks) == (
        job.replicas,
        job.slots_per_replica,
        job.min_replicas,
        job.max_replicas,
    )
    assert (job.attained(HERE.now), job.attained_slot_s) == (job.consumed(HERE.now), job.consumed_slot_s)
    assert HERE.leaving is HERE.releasing and HERE.held_out is HERE.delayed_since
    assert (gang.chunks, gang.chunk_slots) == (1, 2)
    grant = Grant(job_id=3, chunks=2)
    assert grant == Grant(3, 2) == Grant(3, replicas=2) and grant.chunks == 2
    with pytest.raises(TypeError):
        Grant(3, 2, chunks=2)
    assert [job.fixed(HERE.now) for job in HERE.running] == [
        not job.is_preemptible(HERE.now) for job in HERE.running
    ]
    assert not any(job.fixed(HERE.now) for job in HERE.waiting)
    assert (job.scatter, job.steady_until, job.goes_on, job.settles, job.move_s, job.turn) == (
        job.one_replica_per_node,
        job.not_preemptible_until,
        job.resumes_gang_id,
        job.awaits_network,
        job.restart_cost_s,
        job.submit_order,
    )
    plan = Plan((grant,), in_turn=False, kept=(("node-1", (0,)),))
    assert plan == Plan((grant,), head_blocks=False, reserved=(("node-1", (0,)),))
    assert (plan.in_turn, plan.kept, replace(plan, in_turn=True).head_blocks) == (False, plan.reserved, True)


def test_free_slots_have_their_old_names_too():
    free = FreeSlots({"node-1": range(4)})
    free.take((("node-1", (0, 1)),))
    free.give((("node-1", (1,)),))
    assert free.on("node-1") == (1, 2, 3)
    assert (
        free.replicas_that_fit(1, scatter=True) == free.replicas_that_fit(1, one_replica_per_node=True) == 1
    )


def test_a_policy_of_an_earlier_release_may_say_that_it_moves_running_jobs():
    old = type("Policy", (), {"moves_running": True, "plan": lambda _, snapshot: Plan((STAYS,))})
    assert policy_in(old, {}).preemptive
