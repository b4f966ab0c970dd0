"""What `%distribute doctor` makes of the cluster's answers."""

import pytest

from minicluster import doctor
from minicluster.doctor import Doctor, Health
from minicluster.publishing.site import Addition
from minicluster.wire import (
    About,
    MyQueue,
    Node,
    OwnerStorage,
    QuotaUse,
    Share,
    SlotUse,
    StorageReport,
    Versions,
)
from minicluster.wire.serving.models import ModelList, ServedModel
from minicluster.wire.starts import StartAnswer, StartForecast

from ..wire.wire_serving import MODEL

OURS = Versions(python="3.11.7", torch="2.13.0", minicluster="1.0", cloudpickle="3")


def about(**more):
    return About(user="ada", wire_version=1, release="1.0", **more)


def healths(lines):
    return [line.health for line in lines]


def test_versions_that_differ_are_noted_and_equal_ones_are_fine():
    assert healths(doctor.version_lines(OURS, about(ranks=OURS))) == [Health.OK]
    (line,) = doctor.version_lines(OURS, about(ranks=OURS.model_copy(update={"python": "3.12.1"})))
    assert line.health is Health.NOTE and "3.12 on the cluster" in line.advice
    assert healths(doctor.version_lines(OURS, about())) == [Health.NOTE]


def test_a_token_that_may_only_read_is_a_problem():
    reads = about(scopes=("custom:minicluster:read!user=ada",))
    assert healths(doctor.connection_lines(reads, "https://lab.org/")) == [Health.OK, Health.PROBLEM]
    both = about(scopes=(*reads.scopes, "custom:minicluster:submit!user=ada"))
    assert healths(doctor.connection_lines(both, "https://lab.org/")) == [Health.OK]


@pytest.mark.parametrize(
    ("start", "health", "said"),
    [
        (StartForecast(at_once=True, reason="starts now"), Health.OK, "would start now"),
        (StartForecast(reason="needs 3 nodes", expected_start_at=700.0), Health.NOTE, "in about 10 min 0 s"),
        (StartForecast(reason="needs 3 nodes"), Health.NOTE, "nobody knows until when: it needs 3 nodes"),
        (StartForecast(refused="your quota is 1", hint="Ask."), Health.PROBLEM, "your quota is 1"),
    ],
)
def test_when_a_cell_would_start(start, health, said):
    nodes = (
        Node(name="a", up=True, slots=(SlotUse(slot=0), SlotUse(slot=1, job_id=3))),
        Node(name="b", up=False, slots=()),
    )
    answer = StartAnswer(now=100.0, starts=(start, start), nodes=nodes)
    slots, away, one, all_nodes = doctor.start_lines(answer)
    assert slots.found == "1 of 2 slots on 1 nodes are free"
    assert away.found == "not usable: b (down)"
    assert (one.health, all_nodes.health) == (health, health)
    assert said in one.found


def test_a_cluster_without_nodes_is_a_problem():
    start = StartForecast(at_once=True)
    first = next(doctor.start_lines(StartAnswer(now=0.0, starts=(start, start))))
    assert first.health is Health.PROBLEM


def test_only_quotas_that_are_reached_are_problems():
    def quotas(*uses):
        return MyQueue(
            now=0.0, policy="fifo", share=Share(slots=1, fair_slots=1, cluster_slots=3, quotas=uses)
        )

    below, each_job = QuotaUse(kind="slots", limit=2, used=1), QuotaUse(kind="run_s", limit=60)
    assert healths(doctor.quota_lines(quotas(below, each_job))) == [Health.OK]
    (line,) = doctor.quota_lines(quotas(below, QuotaUse(kind="jobs", limit=3, used=3, summary="at once")))
    assert line.health is Health.PROBLEM and line.found == "3 of 3 jobs (at once)"


def test_full_storage_is_a_problem():
    def storage(used_bytes):
        own = OwnerStorage(owner="ada", used_bytes=used_bytes, limit_bytes=10**9)
        return StorageReport(owners=(own,), things=())

    assert healths(doctor.storage_lines(storage(10**8))) == [Health.OK]
    assert healths(doctor.storage_lines(storage(2 * 10**9))) == [Health.PROBLEM]


def test_packages_that_the_image_lacks_are_named():
    many = tuple(Addition(f"package-{number}", "1", "", frozenset()) for number in range(7))
    (line,) = doctor.package_lines(many)
    assert line.health is Health.NOTE and line.found.endswith("package-4 1 and 2 more")
    assert healths(doctor.package_lines(())) == [Health.OK]


def test_a_gpu_that_torch_cannot_use_is_noted():
    assert healths(doctor.gpu_lines(OURS, [])) == [Health.OK]
    assert healths(doctor.gpu_lines(OURS, ["RTX 4090"])) == [Health.OK]
    cpu_build = OURS.model_copy(update={"torch": "2.13.0+cpu"})
    assert healths(doctor.gpu_lines(cpu_build, ["RTX 4090"])) == [Health.NOTE]


def test_a_full_disk_is_a_problem_and_all_is_summed_up(tmp_path):
    full, fine = doctor.disk_line(tmp_path, 10**6), doctor.disk_line(tmp_path, 10**11)
    assert [full.health, fine.health] == [Health.PROBLEM, Health.OK]
    assert Doctor((full, fine)).summary == "1 problem stands between this notebook and a run."
    assert Doctor((full, full)).summary == "2 problems stand between this notebook and a run."
    assert "PROBLEM  disk: 0.0 GB" in repr(Doctor((full,)))


def test_a_slow_way_to_models_is_noted_where_there_are_some():
    model = ServedModel.model_validate(MODEL)
    assert list(doctor.model_lines(ModelList(models=(), front="HAProxy"))) == []
    (fine,) = doctor.model_lines(ModelList(models=(model,), front="HAProxy"))
    assert (fine.health, fine.found) == (Health.OK, "you serve 1; requests are led to them by HAProxy")
    slow = "the job service itself, which is slower: HAProxy is not installed"
    (line,) = doctor.model_lines(ModelList(models=(model,), front=slow))
    assert line.health is Health.NOTE and "HAProxy" in line.advice
