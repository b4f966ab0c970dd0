"""Fixtures for the lab's tests: images, machines, a cluster, its users and its jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..browser.conftest import shots as shots
from .cluster import Images, LabCluster
from .jobs import jobs as jobs
from .jobs import other_image as other_image
from .jobs import ready as ready
from .machines import Lab
from .machines.builder import build_engine, build_engine_runs, stop_build_engine
from .machines.images import build_product, build_registry
from .machines.lab import names
from .machines.packages import missing
from .machines.paths import run_folder
from .pages import browser as browser
from .pages import page as page
from .people import People
from .remains import check_nothing_left

GPUS_PER_NODE = 2
# The first test of a session waits for the images; without a cache this takes minutes.
TIMEOUT_S = 1500
FULL = "the gate has of the lab only what is marked `gate`"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    ours = [item for item in items if item.path.is_relative_to(here)]
    for item in ours:
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if not item.get_closest_marker("gate"):
            item.add_marker(pytest.mark.full(FULL))
    # Group test files by the options of their cluster, since each change of options runs `up`.
    items.sort(key=_options)


def _options(item: pytest.Item) -> str:
    """Return the module of the fixture that sets the options of a test's cluster, or ""."""
    wanted = getattr(item, "_fixtureinfo", None)
    known = wanted.name2fixturedefs if wanted else {}
    said_by = next((known[name][-1] for name in ("offering", "ready", "cluster") if name in known), None)
    return said_by.func.__module__ if said_by else ""


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Print long-running steps to the terminal."""
    capture: Any = pytestconfig.pluginmanager.getplugin("capturemanager")

    def write(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n  {line}", flush=True)

    return write


@pytest.fixture(scope="session")
def builder(needs: Callable[[object, str], None], say: Callable[[str], None]) -> Iterator[None]:
    """The build engine with the base image. If tests started it, the last tests to end stop it."""
    lacking = missing()
    needs(not lacking, lacking or "")
    started_by_tests = run_folder() / "build-engine-of-tests"
    if not build_engine_runs():
        started_by_tests.parent.mkdir(parents=True, exist_ok=True)
        started_by_tests.touch()
    say("the lab's build engine and base image (once: some minutes)")
    build_engine()
    yield
    if started_by_tests.exists() and not names():
        stop_build_engine()
        started_by_tests.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def images(builder: None, say: Callable[[str], None]) -> tuple[str, ...]:
    """This tree's hub, notebook and registry images, in the build engine."""
    say("the lab's images (the first time: some minutes)")
    return (*build_product(), build_registry())


@pytest.fixture(scope="session")
def lab(images: tuple[str, ...], say: Callable[[str], None]) -> Iterator[Lab]:
    """Three hosts on fresh engines with the images and fake GPUs, without a Swarm, which `up` makes."""
    say("three nodes with the images (the first time: two minutes)")
    with Lab.fresh(gpus=GPUS_PER_NODE, images=images) as made:
        for image in images:
            made.load(image)
        yield made


@pytest.fixture(scope="session")
def swarm(images: tuple[str, ...], say: Callable[[str], None]) -> Iterator[Lab]:
    """Three hosts in a Swarm, with the images and fake GPUs, without a cluster."""
    say("three nodes in a Swarm")
    with Lab.fresh(gpus=GPUS_PER_NODE, images=images) as made:
        for image in images:
            made.load(image)
        made.form_swarm()
        yield made


@pytest.fixture(scope="module")
def cluster(standing: LabCluster) -> LabCluster:
    """The cluster on the session's lab, with only the options that every lab has."""
    standing.set_options()
    return standing


@pytest.fixture(scope="session")
def standing(lab: Lab, images: tuple[str, ...], say: Callable[[str], None]) -> Iterator[LabCluster]:
    """A cluster on the lab, made by the documented commands. Checks at the end that nothing of jobs is left.

    Its options may be those of another module: request `cluster` or `ready` instead, which set them.
    """
    hub, notebook, registry = (f"{lab.registry.host}/{image}" for image in images)
    made = LabCluster(lab, Images(hub, notebook, registry))
    say("a cluster on the lab: `up`, and two nodes join")
    made.up()
    made.join()
    yield made
    check_nothing_left(made)


@pytest.fixture(scope="session")
def people(standing: LabCluster) -> People:
    """Users of the cluster, each created on first request."""
    return People(standing)
