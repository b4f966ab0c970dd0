"""The container that runs custom policies: it can order jobs, and do nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ..behind import query
from ..cluster import UP_WITHIN_S, LabCluster
from ..jobs import Jobs
from ..machines.processes import wait_for

WITHIN_S = 120
SANDBOX = "policy.sandbox_child"
"""The command line of a policy's process."""
WHOLE_NODES = {"slots_per_node": 2}
OURS = '''"""The last one first, {edition}."""

from minicluster_hub.scheduling.base import Grant, Plan


def plan(snapshot):
    running = [Grant(job.job_id, job.replicas) for job in snapshot.running]
    last = sorted(snapshot.waiting, key=lambda job: -job.job_id)
    return Plan((*running, *(Grant(job.job_id, job.min_replicas) for job in last)))
'''
LOOKS = """
import json, os, pathlib, socket, sys

def tried(what):
    try:
        what()
    except OSError as error:
        return error.strerror or str(error)
    return "done"

def reaches(host, port):
    with socket.socket() as line:
        line.settimeout(3)
        line.connect((host, port))

found = {
    "user": os.getuid(),
    "groups": os.getgroups(),
    "secrets": os.path.exists("/run/secrets"),
    "engine": os.path.exists("/var/run/docker.sock"),
    "tokens": [name for name in os.environ if "TOKEN" in name or "KEY" in name],
    "policies": sorted(path.name for path in pathlib.Path("/etc/minicluster/policies").iterdir()),
    "interfaces": sorted(name for _, name in socket.if_nameindex()),
    "privileges": [line for line in open("/proc/self/status") if line.startswith(("CapEff", "NoNewPrivs"))],
    "writes": {
        path: tried(lambda: open(f"{path}/made", "w").close())
        for path in ("/", "/tmp", "/srv/minicluster", "/etc/minicluster/policies", "/dev/shm")
    },
    "reaches": {
        f"{host}:{port}": tried(lambda: reaches(host, int(port)))
        for host, port in (one.rsplit(":", 1) for one in sys.argv[1:])
    },
    "names": tried(lambda: socket.getaddrinfo("example.org", 80)),
}
print(json.dumps(found))
"""


class PolicyFolder:
    """The folder of policies on the first machine."""

    def __init__(self, cluster: LabCluster, folder: Path) -> None:
        self.cluster = cluster
        self.path = folder / "ours.py"

    def up(self) -> None:
        """Run `up` with the present folder, without warm gangs, since each test waits for idle nodes."""
        cold = "--service-option=--MiniclusterHub.keep_warm_s=0.2"
        arguments = (*self.cluster.up_words, "--policies", "/policies", cold)
        folder = f"{self.path.parent}:/policies:ro"
        self.cluster.first.run(self.cluster.docker_run(*arguments, volumes=(folder,)), within_s=UP_WITHIN_S)
        self.cluster.forget_options()

    def put(self, edition: str) -> None:
        self.path.write_text(OURS.format(edition=edition))
        self.up()


@pytest.fixture(scope="module")
def policies(standing: LabCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyFolder]:
    """A custom policy; afterwards, it and its container are removed."""
    made = PolicyFolder(standing, tmp_path_factory.mktemp("policies"))
    made.put("first edition")
    yield made
    made.path.unlink()
    made.up()
    assert "minicluster_policy" not in standing.services()


@pytest.fixture(scope="module")
def ready(standing: LabCluster, policies: PolicyFolder) -> LabCluster:
    return standing


@pytest.fixture
def jobs(jobs: Jobs) -> Iterator[Jobs]:
    """An administrator's jobs; afterwards, the default policy is active again."""
    yield jobs
    jobs.http.put("api/policy", json={"policy": "backfill"}).raise_for_status()


def container(cluster: LabCluster) -> str:
    found: list[str] = []

    def there() -> bool:
        found[:] = cluster.docker("ps", "--quiet", "--filter", "label=org.minicluster.role=policy")
        return len(found) == 1

    wait_for(there, "one container of policies", WITHIN_S, 0.3)
    return found[0]


def choose(jobs: Jobs) -> None:
    answer = jobs.http.put("api/policy", json={"policy": "ours"})
    assert answer.is_success, answer.text
    check_active(jobs)


def check_active(jobs: Jobs) -> None:
    data = jobs.http.get("api/policy").json()
    assert data["in_force"]["choice"]["policy"] == "ours", data["trouble"]


def probe_container(cluster: LabCluster, *addresses: str) -> dict[str, Any]:
    lines = cluster.docker("exec", container(cluster), "python", "-P", "-c", LOOKS, *addresses)
    return json.loads(lines[-1])


def test_it_has_no_secret_no_socket_no_network_and_nothing_to_write_to(ready: LabCluster) -> None:
    addresses = [f"{node.address}:{port}" for node in ready.lab.nodes[:2] for port in (8083, 443, 2377)]
    found = probe_container(
        ready, *addresses, "127.0.0.1:5100", "hub:8081", "service:8082", "proxy:8001", "1.1.1.1:53"
    )
    assert found["user"] == 1001 and 0 not in found["groups"]
    assert (found["secrets"], found["engine"], found["tokens"]) == (False, False, [])
    assert found["policies"] == ["ours.py"]
    written = {path for path, outcome in found["writes"].items() if outcome == "done"}
    assert written <= {"/dev/shm"}, "but in the container's own memory"
    assert "done" not in found["reaches"].values(), found["reaches"]
    assert found["names"] != "done"
    assert {line.split()[-1] for line in found["privileges"]} == {"0000000000000000", "1"}


def test_it_has_little_memory_and_few_processes(ready: LabCluster) -> None:
    (text,) = ready.docker("inspect", "--format", "{{json .HostConfig}}", container(ready))
    limits = json.loads(text)
    assert 0 < limits["Memory"] <= 3 << 30 and 0 < limits["PidsLimit"] <= 64
    assert limits["ReadonlyRootfs"] and limits["CapDrop"] in (["ALL"], ["CAP_ALL"])


def test_the_policy_orders_jobs_and_the_job_service_runs_none_of_it(ready: LabCluster, jobs: Jobs) -> None:
    choose(jobs)
    first = jobs.submit("import time; time.sleep(3600)", nodes=3, **WHOLE_NODES)
    jobs.wait(first, "running")
    earlier, later = (jobs.submit("print('done')", nodes=3, **WHOLE_NODES) for _ in range(2))
    jobs.stop(first)
    assert jobs.wait(earlier, "succeeded") and jobs.wait(later, "succeeded")
    check_active(jobs)
    began = "SELECT job_id FROM events WHERE kind = 'admitted' ORDER BY id"
    admitted = [row[0] for row in query(ready, began)[0]]
    assert admitted.index(later) < admitted.index(earlier), jobs.history(earlier)
    (service,) = ready.docker("ps", "--quiet", "--filter", "label=org.minicluster.role=service")
    assert not [line for line in ready.docker("top", service) if SANDBOX in line]
    assert [line for line in ready.docker("top", container(ready)) if SANDBOX in line]


def test_jobs_start_while_the_container_is_away_and_then_by_the_policy_again(
    ready: LabCluster, jobs: Jobs
) -> None:
    choose(jobs)
    ready.docker("kill", container(ready))
    job = jobs.submit("print('done')", nodes=1)
    jobs.wait(job, "succeeded")

    def again() -> bool:
        data = jobs.http.get("api/policy").json()
        return data["in_force"]["choice"]["policy"] == "ours" and not data["trouble"]

    wait_for(again, "the lab's policy to be active again", WITHIN_S, 0.5)
    jobs.wait(jobs.submit("print('done')", nodes=1), "succeeded")
    wait_for(again, "the lab's policy to stay active", WITHIN_S, 0.5)


def test_a_changed_file_is_there_after_the_next_up(policies: PolicyFolder, jobs: Jobs) -> None:
    choose(jobs)
    policies.put("second edition")

    def offers_second_edition() -> bool:
        answer = jobs.http.get("api/policy")
        offered = (
            {one["name"]: one["summary"] for one in answer.json()["policies"]} if answer.is_success else {}
        )
        return offered.get("ours") == "The last one first, second edition."

    wait_for(offers_second_edition, "the policy's second edition", WITHIN_S, 0.5)
    jobs.wait(jobs.submit("print('done')", nodes=1), "succeeded")
    wait_for(lambda: jobs.active_policy() == "ours", "the lab's policy to be active", WITHIN_S, 0.5)
