"""Job logs on a real disk: nothing lost or repeated when reports are sent again."""

import asyncio
import resource
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicluster_hub.storage.logs import JobLogs, LogNotKept, StreamUnknown

from ...patience import WITHIN_S


@pytest.fixture
def logs(tmp_path):
    return JobLogs(tmp_path / "logs")


def test_chunks_in_order_make_the_stream(logs):
    assert logs.append(7, 1, "rank-0", 0, b"epoch 1\n") == 8
    assert logs.append(7, 1, "rank-0", 8, b"epoch 2\r") == 16
    assert logs.read(7, 1, "rank-0", 0, 100) == b"epoch 1\nepoch 2\r"
    assert logs.read(7, 1, "rank-0", 6, 4) == b"1\nep"
    assert logs.read(7, 1, "rank-0", 16, 100) == b""
    assert logs.size(7, 1, "rank-0") == 16


def test_a_chunk_that_comes_again_or_overlaps_is_kept_once(logs):
    logs.append(7, 1, "rank-0", 0, b"abcdef")
    assert logs.append(7, 1, "rank-0", 0, b"abcdef") == 6
    assert logs.append(7, 1, "rank-0", 2, b"cd") == 6
    assert logs.append(7, 1, "rank-0", 4, b"efgh") == 8
    assert logs.read(7, 1, "rank-0", 0, 100) == b"abcdefgh"


def test_a_chunk_beyond_the_end_keeps_nothing_and_tells_the_size(logs):
    logs.append(7, 1, "rank-0", 0, b"abc")
    assert logs.append(7, 1, "rank-0", 4, b"e") == 3
    assert logs.append(7, 1, "rank-1", 9, b"e") == 0
    assert logs.read(7, 1, "rank-0", 0, 100) == b"abc"


@given(
    data=st.binary(min_size=1, max_size=200),
    sends=st.lists(st.tuples(st.integers(0, 210), st.integers(0, 60)), max_size=30),
)
def test_any_sends_in_any_order_keep_a_prefix_and_then_the_whole(tmp_path_factory, data, sends):
    folder = tmp_path_factory.mktemp("logs")
    size = 0
    for offset, length in sends:
        size = JobLogs(folder).append(7, 1, "rank-0", offset, data[offset : offset + length])
        assert JobLogs(folder).read(7, 1, "rank-0", 0, 1000) == data[:size]
    while size < len(data):
        size = JobLogs(folder).append(7, 1, "rank-0", size, data[size : size + 50])
    assert JobLogs(folder).read(7, 1, "rank-0", 0, 1000) == data


def test_streams_attempts_and_jobs_do_not_mix(logs):
    logs.append(7, 1, "rank-0", 0, b"a")
    logs.append(7, 1, "rank-1", 0, b"bb")
    logs.append(7, 1, "records", 0, b"ccc")
    logs.append(7, 1, "agent-2", 0, b"dddd")
    logs.append(7, 2, "rank-0", 0, b"eeeee")
    logs.append(8, 1, "rank-0", 0, b"ffffff")
    assert logs.sizes(7, 1) == {"agent-2": 4, "rank-0": 1, "rank-1": 2, "records": 3}
    assert logs.sizes(7, 2) == {"rank-0": 5}
    assert logs.sizes(9, 1) == {}
    assert logs.size(9, 1, "rank-0") == 0
    assert logs.read(9, 1, "rank-0", 0, 10) == b""


def test_a_removed_job_has_no_output_and_others_keep_theirs(logs):
    logs.append(7, 1, "rank-0", 0, b"a")
    logs.append(8, 1, "rank-0", 0, b"b")
    logs.remove(7)
    logs.remove(7)
    assert logs.sizes(7, 1) == {}
    assert logs.read(8, 1, "rank-0", 0, 10) == b"b"


@pytest.mark.parametrize("stream", ["../x", "rank-", "rank-0/..", "records\n", "RECORDS", "", "rank-123456"])
def test_a_stream_that_no_agent_has_never_becomes_a_path(logs, tmp_path, stream):
    with pytest.raises(StreamUnknown):
        logs.append(7, 1, stream, 0, b"a")
    with pytest.raises(StreamUnknown):
        logs.read(7, 1, stream, 0, 10)
    assert list(tmp_path.iterdir()) == []


def test_output_is_for_the_services_user_only(logs, tmp_path):
    logs.append(7, 1, "rank-0", 0, b"secret")
    modes = [stat.S_IMODE(path.stat().st_mode) for path in sorted((tmp_path / "logs").rglob("*"))]
    assert modes == [0o700, 0o700, 0o600]


def test_what_a_full_disk_did_not_take_is_sent_again(logs):
    """A limit on file sizes simulates the full disk: the kernel cuts the write in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:
        with pytest.raises(LogNotKept, match=r"job 7.*rank-0\.log: File too large"):
            logs.append(7, 1, "rank-0", 0, bytes(range(250)) * 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert logs.size(7, 1, "rank-0") == 600
    assert logs.append(7, 1, "rank-0", 0, bytes(range(250)) * 4) == 1000
    assert logs.read(7, 1, "rank-0", 0, 2000) == bytes(range(250)) * 4


async def test_who_listens_hears_appends_of_that_job_only(logs):
    async with logs.subscribe(7) as subscription:
        logs.append(8, 1, "rank-0", 0, b"other")
        assert await subscription.wait(0.01) == frozenset()
        logs.append(7, 1, "rank-0", 0, b"a")
        logs.append(7, 1, "rank-1", 0, b"a")
        assert await subscription.wait(1) == {7}
        logs.append(7, 1, "rank-0", 0, b"a")
        assert await subscription.wait(0.01) == frozenset(), "a chunk that came again is no news"


async def test_a_reader_that_waits_gets_every_byte(logs):
    got = b""

    async def follow():
        nonlocal got
        async with logs.subscribe(7) as subscription:
            while len(got) < 2000:
                got += logs.read(7, 1, "rank-0", len(got), 64)
                if len(got) == logs.size(7, 1, "rank-0"):
                    await subscription.wait(5)

    reader = asyncio.create_task(follow())
    size = 0
    while size < 2000:
        size = logs.append(7, 1, "rank-0", size, b"0123456789" * 4)
        await asyncio.sleep(0)
    await asyncio.wait_for(reader, WITHIN_S)
    assert got == b"0123456789" * 200


def test_a_stream_over_its_limit_is_taken_and_not_kept(tmp_path):
    logs = JobLogs(tmp_path, limit_bytes=10_000)
    assert logs.append(7, 1, "rank-0", 0, b"a" * 9_000) == 9_000
    assert logs.append(7, 1, "rank-0", 9_000, b"b" * 5_000_000) == 5_009_000
    assert logs.append(7, 1, "rank-0", 9_000, b"b" * 5_000_000) == 5_009_000
    assert logs.append(7, 1, "rank-0", 5_009_000, b"c") == 5_009_001
    assert logs.sizes(7, 1) == {"rank-0": 5_009_001}
    assert logs.readable(7, 1) == {"rank-0": 10_000}
    assert logs.size(7, 1, "rank-0") == 10_000
    assert logs.read(7, 1, "rank-0", 0, 10**9) == b"a" * 9_000 + b"b" * 1_000
    assert logs.read(7, 1, "rank-0", 20_000, 10) == b""
    (file,) = tmp_path.rglob("rank-0.log")
    assert file.stat().st_blocks * 512 < 100_000, "what is not kept takes room"
    assert logs.append(7, 1, "rank-1", 0, b"d") == 1


def test_hundreds_who_read_at_once_look_at_the_disk_once(tmp_path):
    class Counted(JobLogs):
        looks = 0

        def sizes(self, job_id, attempt):
            self.looks += 1
            return super().sizes(job_id, attempt)

    logs = Counted(tmp_path)
    for stream in ("rank-0", "rank-1"):
        logs.append(1, 1, stream, 0, b"one")
    assert [logs.readable(1, 1) for _ in range(256)] == [{"rank-0": 3, "rank-1": 3}] * 256
    assert logs.looks < 100, "a machine that pauses begins another moment"
    logs.append(1, 1, "rank-1", 3, b"two")
    assert logs.readable(1, 1) == {"rank-0": 3, "rank-1": 6}, "what came since is there at once"
    logs.remove(1)
    assert logs.readable(1, 2) == {}


def test_a_stream_that_is_cut_keeps_what_it_has_and_takes_the_rest_as_said(tmp_path):
    logs = JobLogs(tmp_path)
    logs.append(1, 1, "rank-0", 0, b"kept")
    logs.append(1, 1, "rank-1", 0, b"x" * 5_000)
    assert logs.cost_bytes(1) == 4096 + 5_000
    logs.cut(1, 1, "rank-0")
    assert logs.append(1, 1, "rank-0", 4, b"thrown away") == 15  # so that it is not sent again
    logs.append(1, 1, "rank-1", 5_000, b"y")
    for again in (logs, JobLogs(tmp_path)):
        assert again.is_cut(1, 1, "rank-0") and not again.is_cut(1, 1, "rank-1")
        assert again.read(1, 1, "rank-0", 0, 100) == b"kept"
        assert again.size(1, 1, "rank-0") == 4
        assert again.sizes(1, 1) == {"rank-0": 15, "rank-1": 5_001}
        assert again.readable(1, 1) == {"rank-0": 4, "rank-1": 5_001}
        assert again.cost_bytes(1) == 4096 + 5_001
    logs.cut(1, 2, "rank-0")  # which has no output yet
    assert logs.append(1, 2, "rank-0", 0, b"thrown away") == 11
    assert logs.read(1, 2, "rank-0", 0, 100) == b""
    logs.remove(1)
    assert logs.cost_bytes(1) == 0 and logs.jobs() == []
