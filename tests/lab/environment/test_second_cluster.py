"""A second lab's administrator, who has only the names of images, makes the same cluster."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ...service.publishing.index import Index
from ..cluster import UP_WITHIN_S, Images, LabCluster, Person
from ..machines import Lab, Node
from ..people import People, shown_text, text
from ..remains import check_nothing_left
from .catalogue import judge
from .pictures import run_experiment

pytestmark = pytest.mark.apart("it makes machines of its own, and lasts")

NAME = "twincity"
PACKAGE = """import torch
KERNEL = 3
def network():
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, KERNEL, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(512, 2)
    )
"""
CELL = """%%distribute --nodes 2 --plain --pull digest,losses
import hashlib
import torch
import torch.distributed as dist
from tinynetwork import network
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group()
torch.set_num_threads(1)  # elsewhere a rank's share of its node's cores may be another
torch.manual_seed(seed)
model = DistributedDataParallel(network())
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
mine = torch.Generator().manual_seed(dist.get_rank())
losses = []
for step in range(60):
    images = torch.randn(64, 1, 8, 8, generator=mine)
    loss = torch.nn.functional.cross_entropy(model(images), (images.mean((1, 2, 3)) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item().hex())
state = model.module.state_dict()
digest = hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()
"""


@pytest.fixture
def second(say: Callable[[str], None]) -> Iterator[Lab]:
    """Three machines with fresh engines, without any image and without GPUs."""
    say("a second lab: three machines without images")
    with Lab.fresh(gpus=(0, 0, 0)) as made:
        yield made


async def test_a_cluster_from_published_images_gives_the_same_to_the_last_bit_and_runs_the_experiment(
    offering: LabCluster, people: People, index: Index, second: Lab, tree: Path
) -> None:
    index.add("tinynetwork", "1.0", {"tinynetwork.py": PACKAGE})
    steps = recipe(tree)
    async with published(offering, people) as reference:
        async with people.at_work("nora", image=NAME) as nora:
            here = await results(nora)
        hand_over(offering, steps[0], reference, second)
        published_ids = image_ids(offering.first, f"/nora/{NAME}")
    there = cluster_of(second, steps[1], offering.images)
    user = People(there)
    async with user.at_work("nora") as nora:
        assert await results(nora) == here
        assert await results(nora, seed=1) != here
        async with nora.kernel() as kernel:
            assert "tinynetwork" not in shown_text(await kernel.run("%pip list --user --format=freeze"))
        await run_experiment(nora, tree)
    assert len(published_ids) == 1
    assert all(image_ids(node, "/lab/vision") == published_ids for node in second.nodes)
    check_nothing_left(offering)


@asynccontextmanager
async def published(cluster: LabCluster, people: People) -> AsyncIterator[str]:
    """An image that a user of the first cluster published and its admin allowed; retired at the end."""
    async with people.at_work("nora") as nora, nora.kernel() as kernel:
        text(await kernel.run("%pip install tinynetwork==1.0"))
        output = text(await kernel.run(f"%distribute publish {NAME}"))
    found = re.search(rf"^\S+/published/nora/{NAME}@(sha256:\w+)$", output, re.MULTILINE)
    assert found, output
    async with cluster.person() as admin:
        await judge(admin, found.group(1), "allow")
        yield found.group()
        await judge(admin, found.group(1), "retire")


async def results(person: Person, seed: int = 0) -> tuple[str, str]:
    """Run the notebook's cell; return the digest of the trained weights, and all losses exactly."""
    async with person.kernel() as kernel:
        await kernel.run(f"seed = {seed}")
        text(await kernel.run(CELL))
        return await kernel.evaluate("digest"), await kernel.evaluate("losses")


def recipe(tree: Path) -> list[str]:
    """Return the two blocks of commands for a second cluster in docs/administration.md."""
    guide = (tree / "docs" / "administration.md").read_text()
    section = guide.partition("### A second cluster from images\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2, section
    return blocks


def hand_over(cluster: LabCluster, block: str, reference: str, second: Lab) -> None:
    """Run the first block on the first cluster's machine; both labs share the outside registry's storage."""
    outside = cluster.lab.registry.host
    block = re.sub(r"127\.0\.0\.1:5100/\S+", reference, block).replace(" IMAGE ", f" {cluster.images.hub} ")
    for line in block.replace("ghcr.io", outside).splitlines():
        cluster.first.run(line, within_s=UP_WITHIN_S)
    for name in ("vision", "hub"):
        cluster.first.run(["docker", "rmi", f"{outside}/lab/{name}:1"])


def cluster_of(second: Lab, block: str, images: Images) -> LabCluster:
    """Run the second block on the second lab's first machine, with the lab's values for other options."""
    outside = second.registry.host
    registry = images.registry.partition("/")[2]
    made = LabCluster(
        second, Images(f"{outside}/lab/hub:1", f"{outside}/lab/vision:1", f"{outside}/{registry}")
    )
    *pulls, up = block.replace("ghcr.io", outside).splitlines()
    for line in pulls:
        made.first.run(line, within_s=UP_WITHIN_S)
    ours = ("--registry", "--upstream", "--advertise", "--disk-reserve")
    of_the_lab = [word for word in made.up_words if word.startswith(ours)]
    made.said = made.first.run([*shlex.split(up), *of_the_lab], within_s=UP_WITHIN_S).stdout
    made.join()
    return made


def image_ids(node: Node, ending: str) -> set[str]:
    """Return the ids of a node's images by the end of their names."""
    listed = node.run(["docker", "images", "--no-trunc", "--format", "{{.Repository}} {{.ID}}"]).stdout
    pairs = (line.split() for line in listed.splitlines())
    return {found for repository, found in pairs if repository.endswith(ending)}
