"""A result of some GB from a rank to the notebook: only these two hold it in memory.

MINICLUSTER_RESULT_GB=5 makes it as large as one likes (by hand: it needs three times that on the disk).
"""

import os
from pathlib import Path

import httpx
import numpy as np
import pytest

from minicluster.changes.returning import ResultWriter, ReturnRequest
from minicluster.changes.shared_objects import SharedObjects
from minicluster.errors import MiniclusterError
from minicluster.pickling.pickler import ANY_TARGET
from minicluster.results.result_file import ResultFile, write_result_file

from ....patience import WITHIN_S
from .memory import Peak, agents_of

MB = 1 << 20
SIZE_BYTES = int(float(os.environ.get("MINICLUSTER_RESULT_GB", "0.4")) * 10**9)
AROUND_BYTES = 80 * MB
"""Memory that a process may need; far less than a copy of the result."""


@pytest.fixture
def tidy(cluster):
    """Drop the large blob at the end."""
    yield
    for path in (cluster.folder / "service" / "blobs").glob("??/*"):
        if path.stat().st_size > 100 * MB:
            path.unlink()


@pytest.mark.full("it is about memory; that results come is in test_client_magics")
def test_only_the_two_ends_hold_a_large_result(cluster, notebook, tidy):
    notebook.run(f"%config Distribute.result_limit_bytes = {2 * SIZE_BYTES}")
    notebook.run("%%distribute --plain\nready = 1")
    between = [Peak(pid) for pid in (cluster.process.pid, *agents_of(cluster))]
    here = Peak(os.getpid())
    notebook.run(
        "%%distribute --plain --name large\n"
        "import numpy as np\n"
        f"big = np.arange({SIZE_BYTES // 8}, dtype='u8')\n"
        "small = 3"
    )
    assert notebook.names["big"].nbytes == SIZE_BYTES // 8 * 8
    assert notebook.names["big"][-1] == SIZE_BYTES // 8 - 1
    assert notebook.names["small"] == 3
    for peak in between:
        assert peak.more_bytes() < AROUND_BYTES, peak.name
    assert here.more_bytes() < SIZE_BYTES + AROUND_BYTES


@pytest.mark.full("half a minute of large results")
def test_what_is_over_the_notebooks_limit_is_named_and_the_rest_comes(notebook):
    notebook.run(f"%config Distribute.result_limit_bytes = {10 * MB}")
    notebook.run(
        "%%distribute --plain\nimport numpy as np\nbig = np.zeros(20_000_000, dtype='u1')\nsmall = 4"
    )
    assert notebook.names["small"] == 4
    assert "big" not in notebook.names


def test_a_rank_writes_a_result_that_it_has_no_memory_for_twice(tmp_path):
    namespace = {"a": np.arange(40_000_000, dtype="u8"), "f": lambda: 1}
    peak = Peak(os.getpid())
    back = ResultWriter(SharedObjects({}), namespace, ANY_TARGET)
    write_result_file(tmp_path / "result", back, ReturnRequest(["a", "f"]))
    assert peak.more_bytes() < AROUND_BYTES < namespace["a"].nbytes / 3
    with (tmp_path / "result").open("rb") as file:
        result = ResultFile(file)
        body, broken = result.open({}, None, {})
        assert body["names"]["a"][-1] == 39_999_999
        assert body["names"]["f"]() == 1
        assert (body["value"], broken) == ({}, {})
        assert result.left_behind() == ()


def test_a_result_that_does_not_fit_here_says_what_to_do(cluster, notebook, monkeypatch):
    notebook.run("%%distribute --plain\nanswer = 'x' * 100_000")
    # Each write to this file system fails with "no space left".
    full = Path("/dev/full")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: full.open("r+b", buffering=0))
    with httpx.Client(
        base_url=cluster.url, headers={"Authorization": "token ada-token"}, timeout=WITHIN_S
    ) as client:
        job_id = client.get("api/jobs", params={"limit": 1}).json()["jobs"][0]["id"]
    error = notebook.fails(f"%distribute result {job_id}", MiniclusterError)
    assert "No space left on device" in error.message
    assert f"%distribute result {job_id}" in error.hint
