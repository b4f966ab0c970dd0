"""An agent reports if its container sees other GPUs than those assigned."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicluster.runtime.node.gpus import difference, trouble

A, B = "GPU-aaaaaaaa-1", "GPU-bbbbbbbb-2"


@pytest.mark.parametrize(
    ("wanted", "assigned", "seen", "words"),
    [
        (1, [A], [A], ""),
        (2, [A, B], [B, A], ""),
        (2, ["0", "1"], [A, B], ""),
        (1, [], [A], "Swarm assigned 0"),
        (1, [A, B], [A, B], "Swarm assigned 2"),
        (1, [A], [], "sees 0 (none)"),
        (1, [A], [A, B], "sees 2"),
        (1, [A], [B], f"the GPUs {A} are assigned, the container sees {B}"),
    ],
)
def test_what_differs_is_said(wanted: int, assigned: list[str], seen: list[str], words: str) -> None:
    message = difference(wanted, assigned, seen)
    assert (words in message) if words else message == ""


async def test_without_gpus_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert await trouble({}) == "" and await trouble({"MINICLUSTER_GPUS": "0"}) == ""


async def test_nvidia_smi_is_asked_and_its_absence_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"MINICLUSTER_GPUS": "1", "DOCKER_RESOURCE_GPU": "GPU-ab-1"}
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "nvidia-smi does not tell" in await trouble(given)
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "GPU 0: NVIDIA RTX (UUID: GPU-ab-1)"\n')
    program.chmod(0o755)
    assert await trouble(given) == ""
    assert "assigned, the container sees GPU-ab-1" in await trouble(
        given | {"DOCKER_RESOURCE_GPU": "GPU-cd-2"}
    )


async def test_pretended_gpus_are_only_counted() -> None:
    given = {"MINICLUSTER_GPUS": "1", "DOCKER_RESOURCE_GPU": "GPU-fake", "MINICLUSTER_VERIFY_GPUS": "0"}
    assert await trouble(given) == ""
    assert "Swarm assigned 0" in await trouble(given | {"DOCKER_RESOURCE_GPU": ""})


async def test_where_only_their_number_is_known_it_is_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "GPU 0: NVIDIA RTX (UUID: GPU-ab-1)"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    given = {"MINICLUSTER_GPUS": "1", "MINICLUSTER_VERIFY_GPUS": "count"}
    assert await trouble(given) == ""
    assert "sees 1 (GPU-ab-1)" in await trouble(given | {"MINICLUSTER_GPUS": "2"})


async def test_gpus_that_are_not_to_be_verified_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert await trouble({"MINICLUSTER_GPUS": "2", "MINICLUSTER_VERIFY_GPUS": "never"}) == ""
