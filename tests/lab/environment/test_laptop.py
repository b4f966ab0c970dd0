"""A pip-installed Jupyter kernel outside of the cluster with another Python: connecting, compatibility."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from minicluster_hub.cluster.plan.certificates import make_ca_and_cert
from minicluster_hub.launch.demo import SERVICE_PATH

from ... import messages
from ...hub.laptop import Laptop, laptop_in, token_of
from ..cluster import LabCluster, Person
from ..people import People
from ..remains import check_nothing_left
from .other_python import CLUSTERS_MINOR, LACKING, environment_of, other_python
from .outside import CERTIFICATE

READ = ["access:services!service=minicluster", "custom:minicluster:read!user"]
TRAIN = """%%distribute --nodes 3 --plain --pull weight,ranks,state
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from slopes import slope_of
dist.init_process_group()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
x = torch.arange(dist.get_rank(), 12, 3).unsqueeze(1) / 12
def loss_of(wanted):
    return ((model(x) - wanted * x) ** 2).mean()
for step in range(200):
    optimizer.zero_grad()
    loss_of(slope_of(given)).backward()
    optimizer.step()
weight, ranks = model.module.weight.item(), dist.get_world_size()
state = model.module.state_dict()
"""
SLOPES = """import torch
def slope_of(given):
    return torch.tensor(float(given["slope"]))
"""
DETACHED = """%%distribute --nodes 3 --plain --detach --name outlives
import os
told = "from rank " + os.environ["RANK"]
print(told)
"""


@pytest.fixture(scope="module")
def python(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    found = other_python()
    if found is None:
        pytest.skip(LACKING)  # Skip on CI as well: Debian 12 has no package with one.
    return str(environment_of(found, tree, tmp_path_factory.mktemp("environment")))


@pytest.fixture
def ca(cluster: LabCluster, tmp_path: Path) -> Path:
    """The hub's certificate as a file, as made by its administrator."""
    path = tmp_path / "lab.pem"
    path.write_text(cluster.first.run(["sh", "-c", CERTIFICATE]).stdout)
    return path


async def test_addresses_certificates_and_tokens_that_are_wrong(
    cluster: LabCluster, people: People, python: str, ca: Path, tmp_path: Path
) -> None:
    async with people.logged_in("otto") as otto, laptop_in(tmp_path, python) as laptop:
        await otto.visitor.http.get(SERVICE_PATH)
        node = cluster.lab.nodes[1].address
        for url, message in (
            (f"https://{node}", f"{messages.NOTHING_LISTENS.format(port=443)} of {node}"),
            (f"{cluster.url}:8443", messages.NOTHING_LISTENS.format(port=8443)),
            (f"http://{cluster.lab.registry.host}", messages.NO_JUPYTERHUB),
            (cluster.url, messages.CANNOT_PROVE),
            (f"{cluster.url} --ca {stranger(ca)}", messages.CANNOT_PROVE),
        ):
            shown = await laptop.run(f"%distribute connect {url}", "not-to-be-asked-for")
            assert message in shown and "The token:" not in shown, shown
        connect = f"%distribute connect {cluster.url}/hub/home --ca {ca}"
        expired, narrow = (
            await token_of(otto.visitor, expires_in=1),
            await token_of(otto.visitor, scopes=READ),
        )
        await refused(cluster, expired["token"])
        assert "it expired, it was revoked" in await laptop.run(connect, expired["token"])
        assert not (tmp_path / ".config").exists()
        assert messages.CONNECTED.format(hub=f"{cluster.url}/", user="otto") in await laptop.run(
            connect, narrow["token"]
        )
        shown = await laptop.run("%%distribute --nodes 1 --plain\n1")
        assert messages.TOKEN_MAY_NOT in shown and "custom:minicluster:submit" in shown
        assert f"{cluster.url}/hub/token" in shown
        assert not (await otto.ask("api/jobs"))["jobs"]


def stranger(ca: Path) -> Path:
    """Return the certificate file of another authority than the hub's."""
    path = ca.with_name("stranger.pem")
    path.write_text(make_ca_and_cert(["127.0.0.1"]).ca_pem)
    return path


async def refused(cluster: LabCluster, token: str) -> None:
    """Wait until the hub no longer accepts a token."""
    headers = {"Authorization": f"token {token}"}
    async with httpx.AsyncClient(trust_env=False, verify=False, headers=headers) as http:
        async with asyncio.timeout(30):
            while (await http.get(f"{cluster.url}/hub/api/user")).is_success:
                await asyncio.sleep(0.2)


async def test_another_python_without_torch_trains_on_three_nodes(
    cluster: LabCluster, people: People, python: str, ca: Path, tmp_path: Path
) -> None:
    (tmp_path / "slopes.py").write_text(SLOPES)
    async with people.logged_in("petra") as petra:
        await petra.visitor.http.get(SERVICE_PATH)
        token = await token_of(petra.visitor)
        async with laptop_in(tmp_path, python) as laptop:
            connect = f"%distribute connect {cluster.url} --ca {ca}"
            assert messages.CONNECTED.format(hub=f"{cluster.url}/", user="petra") in await laptop.run(
                connect, token["token"]
            )
            await laptop.run("given = {'slope': 5}")
            await trains(laptop)
            await says_what_differs(laptop, connect)
            await laptop.run(DETACHED)
        await a_job_outlives_its_token(petra, token, laptop_in(tmp_path, python))
    check_nothing_left(cluster)


async def trains(laptop: Laptop) -> None:
    """Run a cell of plain PyTorch with a module beside the notebook; built-in types are returned."""
    shown = await laptop.run(TRAIN)
    assert abs(float(await laptop.run("weight")) - 5) < 0.1, shown
    assert await laptop.run("ranks") == "3"
    assert "state" in shown and "needs torch, which the other side does not have" in shown
    assert "NameError" in await laptop.run("state")


async def says_what_differs(laptop: Laptop, connect: str) -> None:
    """After ranks have run, the cluster's versions are known; a local function is refused by name."""
    shown = await laptop.run(connect)
    here = (await laptop.run("'%d.%d' % __import__('sys').version_info[:2]")).strip("'")
    assert here != CLUSTERS_MINOR
    assert f"Python {here} here, {CLUSTERS_MINOR} on the cluster. Works: cells" in shown
    assert messages.NO_TORCH_HERE in shown and "pip install torch==" in shown
    await laptop.run("def triple(number):\n    return 3 * number")
    shown = await laptop.run("%%distribute --nodes 3 --plain\nprint(triple(2))")
    assert f"is code of Python {here}, which Python {CLUSTERS_MINOR}" in shown and "triple" in shown
    inside = "%%distribute --nodes 3 --plain\ndef triple(number):\n    return 3 * number\nprint(triple(2))"
    assert re.search(r"^.*\b6$", await laptop.run(inside), re.MULTILINE)


async def a_job_outlives_its_token(petra: Person, gone: dict[str, Any], started: Any) -> None:
    """Revoke the token; with another one, the whole job is shown and its result is fetched."""
    await petra.visitor.call("DELETE", f"/hub/api/users/petra/tokens/{gone['id']}", "/hub/")
    job = next(job for job in (await petra.ask("api/jobs"))["jobs"] if job["name"] == "outlives")
    async with started as laptop:
        await laptop.run("%distribute disconnect")
        another = (await token_of(petra.visitor))["token"]
        shown = await laptop.run(f"%distribute connect {petra.visitor.url} --ca lab.pem", another)
        assert messages.CONNECTED_TO in shown
        assert "from rank 0" in await laptop.run(f"%distribute attach {job['id']}")
        assert "from rank 0" in await laptop.run("told")
        assert "from rank 2" in await laptop.run(f"%distribute logs {job['id']} --rank 2")
