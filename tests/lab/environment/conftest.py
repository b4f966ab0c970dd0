"""A package index that the session's lab reaches, and a cluster whose users install from it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ...service.publishing.index import Index
from ..cluster import LabCluster
from ..machines import Lab
from .catalogue import MOVING, move


@pytest.fixture(scope="session")
def index(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """An index of small packages, at an address that nodes and their containers reach."""
    with Index(tmp_path_factory.mktemp("index"), lab.root_address) as served:
        served.add("tinytints", "1.0", {"tinytints/__init__.py": "RED = 'ff0000'\n"})
        yield served


@pytest.fixture(scope="session")
def moving(images: tuple[str, ...], lab: Lab) -> str:
    """The digest of a tag in the outside registry when the cluster first offered it."""
    return move(lab, "first")


@pytest.fixture(scope="module")
def offering(standing: LabCluster, index: Index, moving: str) -> LabCluster:
    """The cluster with its own package index and a second image; administrators must allow images."""
    standing.set_options(
        f"--service-option=--MiniclusterHub.pip_index_url={index.url}",
        f"--service-option=--SwarmEngine.images=127.0.0.1:5101/{MOVING}",
    )
    return standing
