"""Notebooks and cells in images on Slurm: a published one runs there, by the scenario of all engines."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from minicluster.publishing.layer import write_layer
from minicluster.wire import LAYER_FILE, Pin, Recipe
from minicluster_hub.images.pushing import DerivedImage, push
from minicluster_hub.images.references import ImageReference
from minicluster_hub.images.registry import Registries
from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.support.processes import find, of_data_folder, signal_all

from .. import scenarios
from ..hub.clusters import RunningCluster
from ..service.publishing import registries
from ..service.publishing.bases import BASE, push_base
from ..service.publishing.conftest import make_environment
from ..service.publishing.index import Index
from .daemons import SlurmDaemons
from .hub import SlurmSite, given_back, running

CONTAINER = Path(__file__).with_name("container.py")
ROOMS = ("kernels", "hub_ext", "spawner")
_SPAWNER = """
c.Spawner.cmd = {command}
c.Spawner.environment.update({variables})
"""
_SERVICE = """
c.MiniclusterHub.pip_index_url = {index!r}
c.RegistrySettings.url = "https://{name}"
c.RegistrySettings.name = "{name}"
c.RegistrySettings.ca_file = {ca!r}
c.RegistrySettings.login_file = {login!r}
c.SlurmEngine.images = [{image!r}]
c.SlurmEngine.image_command = {command}
"""


class ImagesSite(SlurmSite):
    package = ("tinytints==1.0", "tinytints")

    async def allow(self, digest: str) -> None:
        """The visitor is an admin."""
        path = f"{SERVICE_PATH}api/images/{digest}/allow"
        assert (await self.visitor.call("POST", path, SERVICE_PATH))["state"] == "allowed"


@pytest.fixture(scope="module")
def registry(
    tmp_path_factory: pytest.TempPathFactory, needs: Callable[[object, str], None]
) -> Iterator[registries.RealRegistry]:
    with registries.running(tmp_path_factory.mktemp("registry") / "own", needs) as made:
        yield made


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index(tmp_path_factory.mktemp("index")) as served:
        served.add("tinytints", "1.0", {"tinytints/__init__.py": "RED = 'ff0000'\n"})
        yield served


def environment(folder: Path, tree: Path) -> Path:
    """Make the environment of an image, with this one's packages and JupyterLab."""
    made = make_environment(folder / "minicluster", "").folder
    (packages,) = made.glob("lib/python*/site-packages")
    with (packages / "tests.pth").open("a") as paths:
        paths.writelines(f"{tree / room}\n" for room in ROOMS)
    for name in ("share", "etc"):
        (made / name).symlink_to(Path(sys.prefix) / name)
    return made


async def pushed(registry: registries.RealRegistry, environment: Path, folder: Path) -> str:
    """Push an image of an environment; return its reference."""
    layer = folder / LAYER_FILE
    diff_sha256 = write_layer(environment, layer)
    packed = layer.read_bytes()
    recipe = Recipe(
        packages=(Pin(name="environment", version="1"),),
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        machine=platform.machine(),
        layer_sha256=hashlib.sha256(packed).hexdigest(),
        layer_bytes=len(packed),
        diff_sha256=diff_sha256,
    )
    client = registry.client()
    try:
        base = ImageReference.of(f"{registry.name}/{BASE}@{await push_base(client)}")
        image = DerivedImage(base, layer, recipe, "lab/notebook", "1")
        made = await push(image, Registries({registry.name: client}, registry.name), lambda *_: None)
    finally:
        await client.close()
    return f"{registry.name}/{image.repository}@{made.digest}"


@pytest.fixture
async def site(
    slurm: SlurmDaemons, registry: registries.RealRegistry, index: Index, tree: Path, tmp_path: Path
) -> AsyncIterator[ImagesSite]:
    """The first user at work, in the cluster's image."""
    image = await pushed(registry, environment(tmp_path, tree), tmp_path)
    container = [sys.executable, "-P", str(CONTAINER), str(registry.folder)]
    variables = {"MINICLUSTER_IMAGE": image, "PIP_INDEX_URL": index.url, "PIP_USER": "1"}
    server = [*container, image, "python", "-P", "-m", "minicluster_spawner.server"]
    service = _SERVICE.format(
        index=index.url,
        name=registry.name,
        ca=registry.ca_file,
        login=str(registry.folder / "login"),
        image=image,
        command=[*container, "{image}"],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINICLUSTER_TREE", str(tmp_path))
        hub = _SPAWNER.format(command=server, variables=variables)
        started = running(slurm, tmp_path, service=service, hub=hub)
        try:
            async with Visitor(started.url, "admin") as visitor:
                await visitor.log_in(started.password)
                await visitor.start_server()
                await visitor.http.get(SERVICE_PATH)
                yield ImagesSite(slurm, visitor)
                await given_back(slurm)
            assert started.end() == 0
        finally:
            started.kill()
            signal_all(find(of_data_folder(tmp_path / "shared")))


async def test_a_published_image_runs_on_slurm(site: ImagesSite) -> None:
    await scenarios.published_image(site)
