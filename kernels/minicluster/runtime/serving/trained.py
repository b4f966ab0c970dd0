"""The objects that a training job left, read where its owner's own model is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minicluster.capture.payload import CellPayload
from minicluster.results.results import copies_of, opened, read_result
from minicluster.runtime.rank.parts import PartStore
from minicluster.serving.calling import NotServable
from minicluster.wire import Job, JobState
from minicluster.wire.serving.replicas import TrainedBy


def trained_names(
    trained: TrainedBy, variable: str, parts: PartStore, namespace: dict[str, Any]
) -> Mapping[str, Any]:
    """Return what the job made or changed, by name. Raises NotServable, ResultNotReadable."""
    job = Job(id=trained.job_id, owner="", name="", state=JobState.SUCCEEDED, created_at=0.0)
    with parts.path(trained.result_sha256).open("rb") as file:
        result = opened(file, job)
        if result.has_shared_objects:
            payload = CellPayload.from_bytes(parts.path(trained.payload_sha256).read_bytes())
            copies = copies_of(payload.with_parts(parts.memory).to_bytes(), job, namespace)
            found = copies.with_changes(read_result(result, job, namespace, copies.sent), job)
        else:
            found = read_result(result, job, namespace, None)
    names: dict[str, Any] = {}
    found.put({}, names.update)
    if variable not in names:
        raise NotServable(
            trained.left_no(variable),
            f"The cell has to assign or change {variable}, and to return it (--pull names what returns).",
        )
    return names
