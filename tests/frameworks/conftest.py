"""Agents as those of tests/runtime. If a framework is missing, its tests are skipped; on CI, they fail."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from ..conftest import Needs
from ..runtime.conftest import agents as agents
from ..runtime.conftest import cluster as cluster
from ..runtime.conftest import start as start

LONG_S = 600
"""Time limit of a test in s: three ranks import a framework on the cores of one machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run this folder's tests in one event loop, which serves the warm agents, and give them time."""
    for item in items:
        if "tests/frameworks/" not in item.path.as_posix():
            continue
        if item.get_closest_marker("asyncio"):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_S))


@pytest.fixture
def jax(needs: Needs) -> None:
    needs(find_spec("jax") and find_spec("optax"), "JAX is not installed: ./test frameworks installs it")


@pytest.fixture
def tensorflow(needs: Needs) -> None:
    needs(find_spec("tensorflow"), "TensorFlow is not installed: ./test frameworks installs it")
