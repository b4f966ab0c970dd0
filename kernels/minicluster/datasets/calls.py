"""The requests to the job service about data sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minicluster.wire import BlobInfo, DataSet, DataSetList, MissingPieces, SaveDataSet

if TYPE_CHECKING:
    from minicluster.client.client import JobServiceClient


def listed(service: JobServiceClient) -> tuple[DataSet, ...]:
    return DataSetList.model_validate_json(service.ask("GET", "api/data").content).sets


def missing(service: JobServiceClient, pieces: Sequence[BlobInfo]) -> tuple[BlobInfo, ...]:
    """Return the pieces that the cluster lacks."""
    body = MissingPieces(pieces=tuple(pieces)).model_dump_json()
    answer = service.ask("POST", "api/data/missing", content=body)
    return MissingPieces.model_validate_json(answer.content).pieces


def put_piece(service: JobServiceClient, sha256: str, data: bytes) -> None:
    service.ask("PUT", f"api/data/pieces/{sha256}", content=data)


def keep(service: JobServiceClient, name: str, manifest_sha256: str, shared: bool | None) -> DataSet:
    """Register the uploaded manifest as a data set with this name."""
    body = SaveDataSet(manifest_sha256=manifest_sha256, shared=shared).model_dump_json()
    return DataSet.model_validate_json(service.ask("PUT", f"api/data/sets/{name}", content=body).content)


def remove(service: JobServiceClient, name: str) -> None:
    service.ask("DELETE", f"api/data/sets/{name}")
