"""The program TensorBoard in a Jupyter server: started with a run, and ended when nobody looks at it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from minicluster.server_extension.tensorboard import NoTensorBoard, TensorBoard, event_files, fetch
from minicluster.wire import Artifact, ArtifactList, JobState

from ...patience import eventually

VIEW = "/user/ada/minicluster/tensorboard/view"


def service(state: JobState, *paths: str) -> Any:
    made = {"part": 0, "sha256": "a" * 64, "size_bytes": 9, "created_at": 1.0}
    files = tuple(Artifact(path=path, **made) for path in paths)
    job = SimpleNamespace(state=state, name="digits & co")
    return SimpleNamespace(job=lambda _id: job, artifacts=lambda _id: ArtifactList(artifacts=files))


def test_only_its_own_files_are_fetched() -> None:
    of = service(JobState.SUCCEEDED, "a/events.out.tfevents.17.rank.1.0", "model.pt", "tfevents/notes")
    assert [one.path for one in event_files(of, 7)] == ["a/events.out.tfevents.17.rank.1.0"]


@pytest.mark.parametrize(("state", "waits"), [(JobState.RUNNING, True), (JobState.FAILED, False)])
def test_a_run_without_files_says_what_to_do(tmp_path: Path, state: JobState, waits: bool) -> None:
    with pytest.raises(NoTensorBoard, match=r"Run 7 has no files of TensorBoard") as refused:
        fetch(service(state, "model.pt"), 7, tmp_path)
    assert ("when it has ended" in refused.value.message) is waits
    assert "SummaryWriter(mc.output() / 'tensorboard')" in refused.value.hint


async def test_it_answers_below_its_path_and_ends_when_nobody_looks(tmp_path: Path) -> None:
    board = TensorBoard(VIEW, idle_s=0.5)
    await board._start(str(tmp_path))
    program, port = board._program, board.port
    assert program is not None
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{port}{VIEW}/data/environment")
    assert answer.status_code == 200
    board.used()
    await eventually(lambda: board.port is None)
    assert await program.wait() is not None
