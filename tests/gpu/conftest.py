"""Cells on a GPU: `python -m pytest tests/gpu`, on any machine with one, without a hub or a network.

Each test runs on `device`: "cuda" if torch finds a GPU; else the same code runs on "cpu", so that it does not
rot. What only a GPU can show is skipped there. A run on the CPU says so in its first lines: it tells nothing
about GPUs. `wheels` makes the folder from which a machine without a network installs what it needs.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from minicluster.machine.gpus import Gpus, find_gpus

from ..service.notebook.conftest import cluster, hub_url, notebook, service

__all__ = ["cluster", "hub_url", "notebook", "service"]
NO_GPU = "no CUDA GPU"


def pytest_report_header() -> str:
    if not torch.cuda.is_available():
        return f"tests/gpu: {NO_GPU} was seen; the same code runs on the CPU, as far as it goes"
    names = {torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())}
    return f"tests/gpu: {torch.cuda.device_count()} x {', '.join(names)}, torch {torch.__version__}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", ["cuda" if torch.cuda.is_available() else "cpu"], scope="session")


@pytest.fixture
def driver(device: str) -> Gpus:
    """NVIDIA's driver; the test is skipped where no GPU is."""
    if device == "cpu":
        pytest.skip(NO_GPU)
    gpus = find_gpus()
    assert gpus is not None, "torch sees a GPU, and NVML does not"
    return gpus


@pytest.fixture
def used_bytes(driver: Gpus) -> Callable[[], int]:
    """Returns the memory in use on all GPUs, by whomever."""
    return lambda: sum(gpu.memory_bytes for gpu in driver.read())
