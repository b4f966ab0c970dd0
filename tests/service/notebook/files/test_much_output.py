"""Very long output: the service's disk has all of it, and no process on the way holds it in memory."""

import hashlib
import os

import httpx
import pytest

from ....patience import WITHIN_S
from .memory import Peak, agents_of

MB = 1 << 20
MOST_MORE_BYTES = 64 * MB
"""Far less than the output: a process that held all of it would need more."""


@pytest.mark.full("much is tested in tests/service/storage/test_logs, too")
def test_100_mb_without_a_newline_are_kept_and_held_by_nobody(cluster, notebook):
    notebook.run("%%distribute --plain\nready = 1")  # The gang stays warm, so that its agent can be measured.
    peaks = [Peak(pid) for pid in (os.getpid(), cluster.process.pid, *agents_of(cluster))]
    notebook.run(
        "%%distribute --plain --name much\n"
        "import sys\n"
        "for number in range(100):\n"
        "    n = sys.stdout.write(chr(97 + number % 26) * (1 << 20))\n"
        "last = n"
    )
    assert notebook.names["last"] == MB
    for peak in peaks:
        assert peak.more_bytes() < MOST_MORE_BYTES, peak.name
    assert kept(cluster) == written()


def kept(cluster):
    """Return the digest and the size of the newest job's log."""
    digest, size = hashlib.sha256(), 0
    headers = {"Authorization": "token ada-token"}
    with httpx.Client(base_url=cluster.url, headers=headers, timeout=WITHIN_S) as client:
        job_id = client.get("api/jobs", params={"limit": 1}).json()["jobs"][0]["id"]
        with client.stream("GET", f"api/jobs/{job_id}/log") as answer:
            for piece in answer.iter_bytes():
                digest.update(piece)
                size += len(piece)
    return digest.hexdigest(), size


def written():
    digest = hashlib.sha256()
    for number in range(100):
        digest.update(bytes([97 + number % 26]) * MB)
    return digest.hexdigest(), 100 * MB
