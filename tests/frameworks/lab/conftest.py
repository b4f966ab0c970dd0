"""Three Docker hosts whose cluster offers the images with JAX and with TensorFlow, too."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ...lab.cluster import LabCluster
from ...lab.conftest import builder as builder
from ...lab.conftest import images as images
from ...lab.conftest import lab as lab
from ...lab.conftest import say as say
from ...lab.conftest import standing as standing
from ...lab.jobs import Jobs, administrator, wait_idle
from ...lab.machines import Lab
from ...lab.machines.builder import build_engine
from ...lab.machines.images import NOTEBOOK_IMAGE
from ...lab.machines.packages import locked

TREE = Path(__file__).resolve().parents[3]
NAMES = ("notebook-jax", "notebook-tensorflow")
TIMEOUT_S = 3000
"""Images are built, with packages of more than a GB, and three nodes pull them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S), append=False)


@pytest.fixture(scope="session")
def framework_images(images: tuple[str, ...], lab: Lab, say: Callable[[str], None]) -> dict[str, str]:
    """The images in the outside registry, built and published as documented: name to reference."""
    say("the images with JAX and TensorFlow (the first time: some minutes)")
    engine, tag = build_engine(), NOTEBOOK_IMAGE.rpartition(":")[2]
    environment = {**os.environ, **engine.environment(), "DOCKER_BUILDKIT": "0"}
    options = ["--tag", tag, "--network", "host", "--from-environment", "--quiet"]
    found: dict[str, str] = {}
    for name in NAMES:
        with locked("images"):
            subprocess.run(["images/build", name, *options], check=True, cwd=TREE, env=environment)
        # images/publish pushes what is called :dev.
        engine.docker("tag", f"minicluster/{name}:{tag}", f"minicluster/{name}:dev")
        record = lab.folder / "published.json"
        words = ["images/publish", name, "--built", "--record", str(record)]
        registry = ["--registry", lab.registry.host, "--seen-as", "127.0.0.1:5101"]
        done = subprocess.run(
            [*words, *registry], check=True, cwd=TREE, env=environment, capture_output=True, text=True
        )
        called, reference = done.stdout.split()
        found[called] = reference
    return found


@pytest.fixture(scope="session")
def offering(standing: LabCluster, framework_images: dict[str, str]) -> LabCluster:
    """The cluster, which offers them beside the notebook image."""
    standing.set_options(
        *(f"--service-option=--SwarmEngine.images={one}" for one in framework_images.values()),
        "--service-option=--MiniclusterHub.keep_warm_s=0.2",
    )
    return standing


@pytest.fixture
def jobs(offering: LabCluster) -> Iterator[Jobs]:
    with administrator(offering) as found:
        yield found
        found.stop_all()
        wait_idle(found)
