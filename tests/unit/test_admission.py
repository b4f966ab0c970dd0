"""What the cluster refuses before a job waits for it."""

import pytest

from minicluster.wire import JobSpec, NodeRange
from minicluster_hub.models import NodeView
from minicluster_hub.scheduling.admission import AdmissionLimits, JobRefused, admit

NODES = [NodeView(f"node-{i}", True, "127.0.0.1", ("gpu", "gpu")) for i in range(3)]


def spec(**kwargs):
    return JobSpec(payload_sha256="0" * 64, **kwargs)


def refused(asked, nodes=NODES, open_jobs=0, limits=None):
    with pytest.raises(JobRefused) as caught:
        admit(asked, nodes, open_jobs, limits or AdmissionLimits())
    return caught.value


def test_all_nodes_when_none_are_named():
    assert admit(spec(), NODES, 0, AdmissionLimits()).nodes == NodeRange(min=3, max=3)


def test_nodes_that_are_down_are_not_waited_for_by_default():
    nodes = [*NODES[:2], NodeView("node-9", False, "", ("gpu", "gpu"))]
    assert admit(spec(), nodes, 0, AdmissionLimits()).nodes == NodeRange(min=2, max=2)


def test_more_nodes_than_there_are():
    error = refused(spec(nodes=NodeRange(min=4, max=4)))
    assert error.code == "too_large"
    assert "needs 4 nodes with 1 slot each; this cluster has 3" in error.message
    assert "--nodes 3" in error.hint


def test_more_slots_than_any_node_has():
    assert "--gpus-per-node" in refused(spec(nodes=NodeRange(min=1, max=1), slots_per_node=3)).hint


@pytest.mark.parametrize("name", ["RANK", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "MINICLUSTER_TASK", "PATH"])
def test_env_reservedironment_names(name):
    error = refused(spec(env={name: "1"}))
    assert error.code == "env_reserved"
    assert name in error.message


def test_limits_on_ranks_jobs_and_environment():
    assert refused(spec(ranks_per_node=200)).code == "too_many_ranks"
    assert refused(spec(), open_jobs=5, limits=AdmissionLimits(max_open_jobs=5)).code == "too_many_jobs"
    assert (
        refused(spec(env={"A": "x" * 50}), limits=AdmissionLimits(max_env_bytes=40)).code == "env_too_large"
    )
