"""Three managers with a shared folder and PostgreSQL: the cluster survives the loss of any one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from minicluster_hub.launch.errors import VisitFailed

from ...service.conftest import a_postgres
from ..cluster import Images, LabCluster
from ..jobs import Jobs, administrator, counted, counting
from ..machines import Lab, LabError, Node
from ..machines.processes import wait_for
from ..remains import wait_none

pytestmark = pytest.mark.apart("it makes machines of its own")

STEPS = 150
WITHIN_S = 300
DEATHS = int(os.environ.get("MINICLUSTER_DEATHS", "1"))
"""Number of managers killed one after the other, at most until each part was hit; 3 by hand."""
ROLES = ("proxy", "hub", "registry")


class Managers(LabCluster):
    """A cluster whose first machine may be off: commands run on a machine that is on."""

    def __init__(self, lab: Lab, images: Images, database: Any) -> None:
        super().__init__(lab, images)
        self._database = database

    @property
    def living(self) -> list[Node]:
        return [node for node in self.lab.nodes if node.machine.is_on]

    @property
    def manager(self) -> Node:
        return self.living[0]

    def docker(self, *words: str, node: Node | None = None) -> list[str]:
        until = time.monotonic() + WITHIN_S
        while True:
            try:
                return super().docker(*words, node=node or self.living[0])
            except LabError as error:  # the managers elect a leader
                if "rpc error" not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(0.5)

    def command(self, *words: str, check: bool = True, within_s: float = WITHIN_S) -> str:
        done = self.living[-1].run(self.docker_run(*words), check=check, within_s=within_s)
        return done.stdout + done.stderr

    def join(self) -> None:
        """Make a Swarm by hand, of managers only."""
        first, *others = self.lab.nodes
        first.run(["docker", "swarm", "init", f"--advertise-addr={first.address}"])
        token = first.run(["docker", "swarm", "join-token", "--quiet", "manager"]).stdout.strip()
        for node in others:
            node.run(["docker", "swarm", "join", f"--token={token}", f"{first.address}:2377"])

    def node_of(self, role: str) -> Node | None:
        """Return the machine of a platform service; None while it is not known or off."""
        form = "{{.Node}} {{.CurrentState}}"
        listing = ("service", "ps", f"minicluster_{role}", "--filter=desired-state=running", "--format", form)
        found = [line.split()[0] for line in self.docker(*listing) if "Running" in line]
        return next((node for node in self.living if node.name in found), None)

    def job_leader(self) -> Node | None:
        """Return the machine of the leading job service, from the database."""
        with self._database.connect() as connection:
            holder = connection.execute("SELECT holder FROM leadership").fetchone()[0]
        return next((node for node in self.living if f"//{node.address}:" in holder), None)

    def places(self) -> dict[str, str]:
        """Return the machine of each part of the control plane."""
        found = {role: self.node_of(role) for role in ROLES} | {"job service": self.job_leader()}
        named = {role: node.name for role, node in found.items() if node is not None}
        leader = [name for name, status in self.managers().items() if status == "Leader"]
        return named | {"Swarm": leader[0]}

    def managers(self) -> dict[str, str]:
        """Return each manager's state in the Swarm: Leader, Reachable, Unreachable."""
        listing = self.docker("node", "ls", "--format", "{{.Hostname}} {{.ManagerStatus}}")
        return {name: status for name, status in (line.split() for line in listing)}

    def is_whole(self) -> bool:
        return sorted(self.managers().values()) == ["Leader", "Reachable", "Reachable"]

    @property
    def url(self) -> str:
        found: list[Node] = []

        def there() -> bool:
            found[:] = filter(None, [self.node_of("proxy")])
            return bool(found)

        wait_for(there, "a proxy", WITHIN_S, 0.5)
        return f"https://{found[0].address}"


@pytest.fixture(scope="module")
def three(images: tuple[str, ...], say: Callable[[str], None]) -> Iterator[Managers]:
    say("three managers, and a cluster on them")
    folder = Path(tempfile.mkdtemp(prefix="mc-shared-"))
    folder.chmod(0o755)
    try:
        with Lab.fresh(gpus=1, images=images) as lab, a_postgres(lab.root_address) as database:
            try:
                yield a_cluster(lab, images, database, folder)
            finally:
                database.kill()  # a normal shutdown would wait for sessions of dead machines
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def a_cluster(lab: Lab, images: tuple[str, ...], database: Any, folder: Path) -> Managers:
    cluster = Managers(lab, Images(*(lab.load(image) for image in images)), database)
    cluster.join()
    cluster.up(
        f"--db-url=postgresql://minicluster@{lab.root_address}/postgres",
        f"--shared-data={folder}",
        "--service-option=--MiniclusterHub.keep_warm_s=5",
    )
    return cluster


@contextmanager
def entered(cluster: Managers) -> Iterator[Jobs]:
    """An administrator's jobs, after a login at the proxy's present machine."""
    until = time.monotonic() + WITHIN_S
    with ExitStack() as stack:
        while True:
            try:
                found = stack.enter_context(administrator(cluster, log_in=True))
                break
            except (httpx.HTTPError, AssertionError, LabError, VisitFailed):
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)
        found.nodes()  # until the hub has sent a new proxy its routes, the hub answers
        yield found


def test_the_cluster_goes_on_without_one_of_its_managers(
    three: Managers, say: Callable[[str], None], tmp_path: Path
) -> None:
    to_die = {*ROLES, "job service", "Swarm"}
    with entered(three) as jobs:
        wait_for(jobs.is_idle, "three nodes, each with its relay", WITHIN_S, 0.5)
    publish(three, tmp_path)
    for _ in range(DEATHS):
        if not to_die:
            break
        places = three.places()
        # An election takes a while, so cause few.
        lost = max(
            three.living,
            key=lambda node: (len(to_die & stands_on(places, node)), places["Swarm"] != node.name),
        )
        say(f"{lost.name} dies; there: {', '.join(sorted(stands_on(places, lost)))}")
        to_die -= stands_on(places, lost)
        lose(three, lost, say)
    wait_none(three.remains, "the Swarm has something left of jobs", WITHIN_S)


def stands_on(places: dict[str, str], node: Node) -> set[str]:
    return {role for role, name in places.items() if name == node.name}


def lose(three: Managers, lost: Node, say: Callable[[str], None]) -> None:
    """Kill a manager while two jobs run: they continue, and a new job is accepted."""
    with entered(three) as jobs:
        wait_for(jobs.is_idle, "three idle nodes", WITHIN_S, 0.5)
        pair = jobs.submit(counting(STEPS), nodes={"min": 1, "max": 2})
        single = jobs.submit(counting(STEPS))
        for job in (pair, single):
            jobs.wait_log(job, "step 5")
        were_on = {job: set(jobs.job(job)["nodes"]) for job in (pair, single)}
    assert set().union(*were_on.values()) == {node.name for node in three.lab.nodes}
    began = time.monotonic()
    lost.kill()
    try:
        check_goes_on(three, lost, were_on, lambda text: say(f"{time.monotonic() - began:5.1f} s: {text}"))
    finally:
        lost.power_on()
    wait_for(three.is_whole, "three managers", WITHIN_S, 0.5)


def check_goes_on(
    three: Managers, lost: Node, were_on: dict[int, set[str]], tell: Callable[[str], None]
) -> None:
    wait_for(three.job_leader, "a job service that leads", WITHIN_S, 0.2)
    tell("a job service leads")
    for role in ROLES:
        wait_for(lambda role=role: three.node_of(role), f"the {role}", WITHIN_S, 0.5)
        tell(f"the {role} runs")
    with entered(three) as jobs:
        tell(f"an administrator is logged in at {three.url}")
        after = jobs.submit(counting(3))
        for job, nodes in were_on.items():
            done = jobs.wait(job)
            assert done["state"] == "succeeded", (done, jobs.history(job))
            assert done["attempt"] == (2 if lost.name in nodes else 1), jobs.history(job)
            assert counted(jobs.log(job, 0)) == list(range(STEPS))
        assert jobs.wait(after)["state"] == "succeeded"
        tell("all jobs are done")
    assert re.search(rf"URL +{three.url}\n", three.command("status", check=False))
    wait_for(lambda: pulls(three), "the registry to give what was published", WITHIN_S, 0.5)


PUBLISHED = "minicluster/tiny:1"


def publish(three: Managers, folder: Path) -> None:
    """Publish an image from a manager without the registry, as the guide says."""
    at = next(node for node in three.lab.nodes if node != three.node_of("registry"))
    text = at.run(three.docker_run("publisher")).stdout
    password = re.search(r"password +(\S+)", text)
    assert password, text
    docker = ["docker", f"--config={folder}"]
    at.run([*docker, "login", "--username=publisher", f"--password={password[1]}", "127.0.0.1:5102"])
    at.run(["sh", "-c", f"tar -cf - -T /dev/null | docker import - 127.0.0.1:5102/{PUBLISHED}"])
    at.run([*docker, "push", f"127.0.0.1:5102/{PUBLISHED}"])


def pulls(three: Managers) -> bool:
    """Whether each running machine can pull the published image, wherever the registry runs."""
    for node in three.living:
        node.run(["docker", "rmi", f"127.0.0.1:5100/{PUBLISHED}"], check=False)
    pull = ["docker", "pull", f"127.0.0.1:5100/{PUBLISHED}"]
    return all(node.run(pull, check=False).returncode == 0 for node in three.living)
