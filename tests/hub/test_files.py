"""A job's files, downloaded through the hub's proxy under the names that the cell gave them."""

from __future__ import annotations

import httpx
import pytest

from minicluster.results.downloads import file_path
from minicluster.wire import ArtifactList

from .jobs import submit
from .test_snapshots import over

NAMES = ["a folder/ünïcode ☃", "100% of it?", "a#b&c=d;e", "new\nline", "back\\slash", "+ %41 %2F", "'\"<b>"]
WRITE = f"""
import minicluster as mc
for name in {NAMES!r}:
    (mc.output() / name).parent.mkdir(exist_ok=True)
    (mc.output() / name).write_text(name)
raise ValueError("it failed")
"""


@pytest.mark.asyncio
@pytest.mark.full("tests/service/notebook/files/test_files has it without a hub")
async def test_files_of_any_name_come_home(ada_api: httpx.AsyncClient, grace_api: httpx.AsyncClient) -> None:
    job_id = (await submit(ada_api, WRITE)).json()["id"]
    job = await over(ada_api, job_id)
    assert job["state"] == "failed", job
    listed = ArtifactList.model_validate_json((await ada_api.get(f"api/jobs/{job_id}/files")).content)
    assert [one.path for one in listed.artifacts] == sorted(NAMES)
    for one in listed.artifacts:
        path = file_path(job_id, one)
        answer = await ada_api.get(path)
        assert (answer.status_code, answer.text) == (200, one.path)
        rest = await ada_api.get(path, headers={"Range": "bytes=2-", "If-Range": f'"{one.sha256}"'})
        assert (rest.status_code, rest.content) == (206, one.path.encode()[2:])
        assert (await grace_api.get(path)).status_code == 404
