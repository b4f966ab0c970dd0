"""Fixtures of the tests with a real Kubernetes: `./test kubernetes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..lab.conftest import builder as builder
from ..lab.conftest import say as say
from ..lab.machines.images import build_product
from .lab.build import missing, programs
from .lab.cluster import KubernetesCluster

# The first test of a session waits for the programs and the images; without a cache this takes minutes.
TIMEOUT_S = 2400
APART = "a part of its own: it builds Kubernetes, and its machines want the processor for themselves"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.full(APART))
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(scope="session")
def built(needs: Callable[[object, str], None], say: Callable[[str], None]) -> Path:
    """The folder of Kubernetes' programs."""
    lacking = missing()
    needs(not lacking, lacking)
    say("Kubernetes' programs (once: ten minutes)")
    return programs()


@pytest.fixture(scope="session")
def product(builder: None, say: Callable[[str], None]) -> tuple[str, str]:
    """This tree's hub and notebook images, in the build engine."""
    say("the images of hub and notebook (the first time: some minutes)")
    return build_product()


@pytest.fixture(scope="session")
def cluster(built: Path, product: tuple[str, str], say: Callable[[str], None]) -> Iterator[KubernetesCluster]:
    """Three nodes with the notebook image and fake GPUs; at the end, nothing is left in it."""
    say("a Kubernetes cluster of three nodes")
    _, notebook = product
    with KubernetesCluster([notebook]) as made:
        yield made
