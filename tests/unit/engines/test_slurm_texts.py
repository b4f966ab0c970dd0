"""What Slurm 22.05 prints, and 24.11 by its documentation; what its commands are asked for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from minicluster_hub.engines.capabilities import QueueRequest
from minicluster_hub.engines.slurm import parsing
from minicluster_hub.engines.slurm.names import AllocationName, Names, TaskName
from minicluster_hub.engines.slurm.parsing import Granted, SlurmJob
from minicluster_hub.engines.slurm.reasons import queue_wait, tells_of_a_loss
from minicluster_hub.engines.slurm.settings import SlurmSettings

REQUEST = QueueRequest(job_id=7, owner="ada", attempt=0, min_replicas=2, max_replicas=3, slots_per_replica=1)
MARK = "5eed"
JOBS = """\
5eed|12|ada|PENDING|2026-11-30T14:00:00|2026-11-30T15:00:00|n[1-2]|Priority|mc-7-0-0123abcd-0123456789abcdef
5eed|13|bob|RUNNING|2026-11-30T13:00:00|2026-11-30T14:00:00|n[1,3]|None|wrap
5eed|14|ada|PENDING|N/A|N/A||ReqNodeNotAvail, UnavailableNodes:n3|mc-8-0-0123abcd-0123456789abcdef
5eed|15_2|bob|PENDING|N/A|N/A||Resources|array
5eed|16+1|bob|PENDING|N/A|NONE||Resources|het
"""
STEPS = """\
5eed|13.0|n1|ada|mc-t5-g2-0123456789abcdef
5eed|13.batch|n1|ada|batch
5eed|13.extern|n[1-3]|ada|extern
"""
NODES = """\
n1|idle|4|15000|gpu:2(S:0)|127.0.0.1|none
n1|idle|4|15000|gpu:2(S:0)|127.0.0.1|none
n2|down*|4|15000+|gpu:tesla:2,gpu:a100:1|10.0.0.2|Not responding
n3|drained|4|15000|(null)|10.0.0.3|a new fan | since noon
n4|allocated|4|15000|(null)|10.0.0.4|none
n5|mixed-|4|15000|(null)|10.0.0.5|none
"""
DETAIL_22 = (
    "JobId=2 JobName=mc UserId=root(0) JobState=RUNNING NodeList=n[1-2] "
    "JOB_GRES=gpu:2 Nodes=n[1-2] CPU_IDs=0-1 Mem=0 GRES=gpu:1(IDX:0) MinCPUsNode=1 Command=(null)"
)
DETAIL_24 = (
    "JobId=3 JobName=mc NodeList=n[1-3] JOB_GRES=gpu:a100:4 "
    "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:0-1) "
    "Nodes=n[2,3] CPU_IDs=1 Mem=1024 GRES=gpu:a100:1(IDX:1) TRES"
)


def test_jobs_that_wait_and_run():
    pending, running, stuck = parsing.jobs(JOBS, MARK)
    at = datetime(2026, 11, 30, 14, tzinfo=UTC).timestamp()
    assert pending == SlurmJob(12, "mc-7-0-0123abcd-0123456789abcdef", "ada", "PENDING", at, (), "Priority")
    assert (running.running, running.nodes, running.starts_at) == (True, ("n1", "n3"), None)
    assert (running.ends_at, pending.ends_at) == (at, None)
    assert (stuck.starts_at, stuck.reason) == (None, "ReqNodeNotAvail, UnavailableNodes:n3")


def test_a_name_cannot_make_a_line_of_somebody_elses_job():
    forged = "12|ada|RUNNING|N/A|N/A|n1|None|mc-7-0-0123abcd-0123456789abcdef"
    text = f"5eed|20|bob|PENDING|N/A|N/A||Resources|x\n{forged}\n5eed|21|bob|PENDING|N/A|N/A||None|a|b\n"
    assert [(job.id, job.user, job.name) for job in parsing.jobs(text, MARK)] == [
        (20, "bob", "x"),
        (21, "bob", "a|b"),
    ]
    assert [step.name for step in parsing.steps("5eed|13.0|n1|bob|x\n13.1|n1|ada|y\n", MARK)] == ["x"]


def test_steps_without_slurms_own():
    (step,) = parsing.steps(STEPS, MARK)
    assert (step.id, step.job_id, step.nodes, step.name[:7]) == ("13.0", 13, ("n1",), "mc-t5-g")


def test_nodes_once_with_their_gpus_and_why_they_take_nothing():
    first, second, third, fourth, fifth = parsing.nodes(NODES)
    assert (first.up, first.gpus, first.closed, first.memory_bytes) == (True, 2, "", 15000 * 2**20)
    assert (second.up, second.gpus, second.address) == (False, 3, "10.0.0.2")
    assert third.up and third.closed == "Slurm: drained (a new fan | since noon)"
    assert fourth.full and fourth.up and not fourth.closed
    assert fifth.up and not fifth.full


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (DETAIL_22, [Granted("n1", (0,), 1, 2), Granted("n2", (0,), 1, 2)]),
        (
            DETAIL_24,
            [Granted("n1", (0, 1), 2, 1), Granted("n2", (1,), 1, 1), Granted("n3", (1,), 1, 1)],
        ),
        ("Nodes=n1 CPU_IDs=0-3,6 Mem=0 GRES= MinCPUsNode=1", [Granted("n1", (), 0, 5)]),
        ("Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:2 MinCPUsNode=1", [Granted("n1", (), 2, 1)]),
        (
            "Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:a100:1(IDX:2),gpu:tesla:2(IDX:0-1)",
            [Granted("n1", (0, 1, 2), 3, 1)],
        ),
        ("JobId=4 JobState=PENDING NodeList=(null)", []),
    ],
)
def test_what_a_job_has_of_each_node(text, found):
    assert parsing.granted(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,5]", ["n1", "n2", "n3", "n5"]),
        ("login,n[08-10]", ["login", "n08", "n09", "n10"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-2]-ib,gpu-a", ["n1-ib", "n2-ib", "gpu-a"]),
    ],
)
def test_lists_of_hosts(text, found):
    assert list(parsing.hosts(text)) == found


@pytest.mark.parametrize(
    ("reason", "said", "for_slots"),
    [
        ("Resources", "waits in Slurm's queue for free nodes (Slurm: Resources)", True),
        ("Priority", "where other jobs have a higher priority (Slurm: Priority)", True),
        ("QOSMaxGRESPerUser", "a limit of your account in Slurm (Slurm: QOSMaxGRESPerUser)", True),
        ("(ReqNodeNotAvail, UnavailableNodes:n3)", "are down, drained or reserved in Slurm", False),
        ("SomethingNew", "waits in Slurm's queue (Slurm: SomethingNew)", False),
        ("None", "was just submitted to Slurm", False),
    ],
)
def test_reasons_are_sentences_with_slurms_own_word(reason, said, for_slots):
    wait = queue_wait(SlurmJob(1, "mc", "ada", "PENDING", 100.0, (), reason))
    assert said in wait.reason and wait.for_slots is for_slots
    assert wait.expected_start_at == 100.0


@pytest.mark.parametrize(
    ("output", "lost"),
    [
        ("srun: error: Task launch for StepId=1.0 failed on node n3: Communication connection failure", True),
        ("srun: error: Unable to create step for job 1: Required node not available (down, drained)", True),
        ("srun: error: n1: task 0: Exited with exit code 1", False),
        ("srun: error: Task launch for StepId=1.0 failed on node n1: User not found on host", False),
        ("ConnectionRefusedError: Connection refused", False),
        ("", False),
    ],
)
def test_srun_tells_whether_a_node_was_lost(output, lost):
    assert tells_of_a_loss(f"minicluster.agent\n{output}\n") is lost


def test_a_name_is_read_by_its_own_cluster_for_its_own_user_only():
    ours, others = Names(b"secret"), Names(b"another")
    name = ours.allocation(REQUEST, "ada")
    read = ours.read_allocation(name, "ada")
    assert isinstance(read, AllocationName) and (read.job_id, read.attempt) == (7, 0)
    assert ours.read_allocation(name, "bob") is None
    assert others.read_allocation(name, "ada") is None
    assert ours.read_allocation("wrap", "ada") is None
    task = ours.task(5, 2, slurm_job=12)
    assert ours.read_task(task, 12) == TaskName(5, 2)
    assert ours.read_task(task, 13) is None and others.read_task(task, 12) is None


def test_a_request_that_differs_has_another_name():
    names = Names(b"secret")
    other = QueueRequest(7, "ada", 0, 1, 2, 1, without=("n1",))
    assert names.allocation(REQUEST, "ada") == names.allocation(REQUEST, "ada")
    assert names.allocation(REQUEST, "ada") != names.allocation(other, "ada")


def test_what_is_asked_of_slurm_for_a_gang():
    settings = SlurmSettings("/usr/bin/python3", partition="lab", qos="high", extra=("--reservation=mine",))
    words = settings.sbatch("mc-1", REQUEST, gpus=True)
    for word in ("--nodes=2-3", "--ntasks-per-node=1", "--gres=gpu:1", "--partition=lab", "--qos=high"):
        assert word in words
    assert words[-2:] == ["--reservation=mine", "--wrap=exec sleep infinity"]
    assert not [word for word in words if word.startswith(("--time", "--account", "--exclude"))]


def test_a_jobs_limit_leaves_time_for_its_start_and_its_owner_has_an_account():
    settings = SlurmSettings("python3", account="lab", accounts={"ada": "physics"}, time_limit_s=7200.0)
    long = QueueRequest(7, "ada", 1, 1, 1, 1, without=("n1", "n2"), time_limit_s=90.0)
    words = settings.sbatch("mc-1", long, gpus=False)
    assert {"--account=physics", "--time=12", "--exclude=n1,n2", "--nodes=1", "--exclusive"} <= set(words)
    other = settings.sbatch("mc-2", QueueRequest(8, "bob", 0, 1, 1, 1), gpus=False)
    assert {"--account=lab", "--time=120"} <= set(other)


@pytest.mark.parametrize(
    ("settings", "gpus", "expected"),
    [
        (SlurmSettings("python3", cpus_per_slot=4), True, {"--gpus=3", "--cpus-per-gpu=4"}),
        (SlurmSettings("python3", gres="gpu:a100"), True, {"--gpus=a100:3"}),
        (SlurmSettings("python3"), False, {"--nodes=3", "--exclusive"}),
        (SlurmSettings("python3", cpu_slots=4, cpus_per_slot=2), False, {"--ntasks=3", "--cpus-per-task=2"}),
    ],
)
def test_slots_that_may_be_on_any_nodes(settings, gpus, expected):
    request = QueueRequest(7, "ada", 0, 3, 6, 1, one_per_node=False)
    assert expected <= set(settings.sbatch("mc-1", request, gpus=gpus))


def test_a_task_in_an_image_runs_the_images_python():
    settings = SlurmSettings("/opt/python", image_command=("apptainer", "exec", "docker://{image}"))
    assert settings.start_words(None) == ("/opt/python", "-P", "-m", "minicluster.runtime.step")
    words = settings.start_words("lab@sha256:1f")
    assert words[:4] == ("apptainer", "exec", "docker://lab@sha256:1f", "python")
