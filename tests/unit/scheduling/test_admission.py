"""Jobs that the cluster refuses at submission."""

import pytest
from pydantic import ValidationError

from minicluster.wire import CountRange, JobSpec
from minicluster_hub.jobs.records import NodeView
from minicluster_hub.scheduling.admission import AdmissionLimits, JobRefused, Submitter, admit
from minicluster_hub.scheduling.limits import Quota

from ... import messages

NODES = [NodeView(f"node-{i}", True, "127.0.0.1", ("gpu", "gpu")) for i in range(3)]


def spec(**kwargs):
    return JobSpec(payload_sha256="0" * 64, **kwargs)


def refused(asked, nodes=NODES, submitter=None, limits=None):
    with pytest.raises(JobRefused) as caught:
        admit(asked, nodes, submitter or Submitter(), limits or AdmissionLimits())
    return caught.value


def test_all_nodes_when_none_are_named():
    assert admit(spec(), NODES, Submitter(), AdmissionLimits()).nodes == CountRange(min=3, max=3)


def test_nodes_that_are_down_are_not_waited_for_by_default():
    nodes = [*NODES[:2], NodeView("node-9", False, "", ("gpu", "gpu"))]
    assert admit(spec(), nodes, Submitter(), AdmissionLimits()).nodes == CountRange(min=2, max=2)


def test_more_nodes_than_there_are():
    error = refused(spec(nodes=CountRange(min=4, max=4)))
    assert error.code == "too_large"
    assert "needs 4 nodes" in error.message and messages.THIS_CLUSTER_HAS.format(count=3) in error.message
    assert "--nodes 3" in error.hint


def test_slots_wherever_they_are():
    asked = spec(slots=CountRange(min=5, max=6))
    assert admit(asked, NODES, Submitter(), AdmissionLimits()) == asked
    error = refused(spec(slots=CountRange(min=7, max=7)))
    assert (error.code, error.message) == (
        "too_large",
        f"the job needs 7 slots; {messages.THIS_CLUSTER_HAS.format(count=6)}",
    )
    assert "--gpus 6" in error.hint
    assert refused(asked, submitter=Submitter(quota=Quota(slots=4))).code == "over_quota"
    assert refused(asked, limits=AdmissionLimits(max_ranks=5)).code == "too_many_ranks"


@pytest.mark.parametrize(
    "more",
    [
        {"nodes": CountRange(min=1, max=1)},
        {"slots_per_node": 2},
        {"ranks_per_node": 1},
        {"fault_tolerant": True},
    ],
)
def test_slots_wherever_they_are_have_no_shape(more):
    with pytest.raises(ValidationError):
        spec(slots=CountRange(min=4, max=4), **more)


def test_more_slots_than_any_node_has():
    assert "--gpus-per-node" in refused(spec(nodes=CountRange(min=1, max=1), slots_per_node=3)).hint


@pytest.mark.parametrize(
    "name",
    ["RANK", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "MINICLUSTER_TASK", "PATH", "CUDA_MPS_PIPE_DIRECTORY"],
)
def test_env_reservedironment_names(name):
    error = refused(spec(env={name: "1"}))
    assert error.code == "env_reserved"
    assert name in error.message


def test_limits_on_ranks_jobs_and_environment():
    assert refused(spec(ranks_per_node=200)).code == "too_many_ranks"
    assert (
        refused(spec(), submitter=Submitter(5), limits=AdmissionLimits(max_open_jobs=5)).code
        == "too_many_jobs"
    )
    assert (
        refused(spec(env={"A": "\N{GRINNING FACE}" * 10}), limits=AdmissionLimits(max_env_bytes=40)).code
        == "env_too_large"
    )
    assert refused(spec(env={f"A{number}": "" for number in range(257)})).code == "env_too_large"
    assert admit(spec(env={f"A{number}": "" for number in range(256)}), NODES, Submitter(), AdmissionLimits())


USER = AdmissionLimits(max_priority=70)


def test_users_have_priorities_up_to_a_limit_and_admins_all():
    error = refused(spec(priority=71), limits=USER)
    assert error.code == "priority_too_high"
    assert "--priority is 71" in error.message and "up to 70" in error.message
    assert admit(spec(priority=70), NODES, Submitter(), USER).priority == 70
    assert admit(spec(priority=99), NODES, Submitter(is_admin=True), USER).priority == 99


def test_what_no_quota_would_ever_let_run_is_refused_at_once():
    few = Submitter(quota=Quota(slots=2, run_s=600))
    error = refused(spec(nodes=CountRange(min=3, max=3)), submitter=few)
    assert (error.code, error.message) == (
        "over_quota",
        messages.MORE_THAN_YOUR_SLOTS.format(slots=3, quota=2),
    )
    error = refused(spec(nodes=CountRange(min=1, max=1), timeout_s=601), submitter=few)
    assert (error.code, error.message) == ("over_quota", "--timeout is 601 s; your jobs may run for 600 s")
    assert refused(spec(), submitter=Submitter(quota=Quota(jobs=0))).code == "over_quota"


def test_a_quota_decides_what_the_job_leaves_open():
    admitted = admit(spec(), NODES, Submitter(quota=Quota(slots=2, run_s=600)), AdmissionLimits())
    assert (admitted.nodes, admitted.timeout_s) == (CountRange(min=2, max=2), 600)
    wide = spec(nodes=CountRange(min=1, max=3), timeout_s=60)
    admitted = admit(wide, NODES, Submitter(quota=Quota(slots=2, run_s=600)), AdmissionLimits())
    assert (admitted.nodes, admitted.timeout_s) == (wide.nodes, 60), "the scheduler keeps to the quota"
