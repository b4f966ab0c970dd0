"""Files of the output folder are uploaded however an attempt ends: real agents and ranks."""

from __future__ import annotations

import asyncio

import pytest
from tornado.web import HTTPError

from minicluster.wire import ReportAnswer, StopMode, TaskReport

from ... import messages
from ...patience import eventually
from ..cluster import Cluster, Run
from ..conftest import Start
from ..task_service import Task, TaskService

WRITE = """
    import minicluster as mc
    (mc.output() / "empty").touch()
    (mc.output() / "a folder/ünïcode ☃").mkdir(parents=True)
    (mc.output() / "a folder/ünïcode ☃/rank.txt").write_text(f"rank {mc.rank()}")
    """


def brought(run: Run) -> dict[tuple[int, str], bytes]:
    """Return the files that the service has, by task and path."""
    blobs = run.cluster.service.blobs
    return {(one.part, one.path): blobs[one.blob.sha256] for one in run.attempt.artifacts.values()}


async def test_files_of_all_tasks_come_before_the_attempt_is_cleared(cluster: Cluster) -> None:
    run = await cluster.run(WRITE, nodes=2)
    assert (await run.over()).succeeded
    assert brought(run) == {
        (part, path): content
        for part in range(2)
        for path, content in {
            "empty": b"",
            "a folder/ünïcode ☃/rank.txt": f"rank {part}".encode(),
        }.items()
    }
    assert not run.attempt.notes


@pytest.mark.parametrize(
    "end", ["raise ValueError('no luck')", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
)
async def test_files_of_an_attempt_that_fails_come_too(cluster: Cluster, end: str) -> None:
    run = await cluster.run(f"{WRITE}{end}", nodes=1)
    assert (await run.over()).failed
    assert len(brought(run)) == 2


async def test_files_of_a_stopped_attempt_come_too(cluster: Cluster) -> None:
    run = await cluster.run(f"{WRITE}print('here')\n    import time; time.sleep(600)")
    await run.started()
    await run.stop()
    await run.over()
    assert len(brought(run)) == 6


async def test_what_goes_on_elsewhere_is_brought_and_the_next_attempt_finds_it(cluster: Cluster) -> None:
    first = await cluster.run(f"{WRITE}print('here')\n    import time; time.sleep(600)", nodes=1)
    await first.started()
    await first.stop(StopMode.KILL)
    await first.over()
    assert len(brought(first)) == 2
    again = await cluster.run(
        "import minicluster as mc\n(mc.output() / 'more').write_text('x')", nodes=1, job_id=first.attempt.id
    )
    await again.over()
    assert {path for _, path in brought(again)} == {"empty", "more", "a folder/ünïcode ☃/rank.txt"}
    other = await cluster.run("import minicluster as mc\nprint(list(mc.output().iterdir()))", nodes=1)
    assert (await other.over()).text(0) == "[]\n"


async def test_what_cannot_come_is_told(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import os, minicluster as mc
        folder = mc.output()
        (folder / "sub").mkdir()
        (folder / "sub/model").write_text("the model")
        (folder / "latest").symlink_to("sub/model")
        (folder / "subs").symlink_to("sub")
        (folder / "secret").symlink_to("/etc/passwd")
        (folder / "circle").symlink_to("circle")
        os.mkfifo(folder / "pipe")
        open(os.fsencode(folder) + b"/\\xff", "w").close()
        """,
        nodes=1,
    )
    await run.over()
    assert brought(run) == {(0, "sub/model"): b"the model", (0, "latest"): b"the model"}
    notes = " ".join(run.attempt.notes)
    assert "on node-0: circle, secret, subs (a link" in notes
    assert "pipe (neither a file nor a folder)" in notes
    assert "� (the name is not UTF-8, or too long)" in notes


async def test_more_than_a_report_holds(cluster: Cluster) -> None:
    run = await cluster.run(
        """
        import minicluster as mc
        for number in range(1203):
            (mc.output() / f"{number}").write_text(f"{number % 7}")
        """,
        nodes=1,
    )
    await run.over()
    assert len(brought(run)) == 1203


LARGE = 100_000


class Full(TaskService):
    """Accepts no large file until there is space."""

    room = False

    def put_blob(self, sha256: str, data: bytes) -> None:
        if not self.room and len(data) == LARGE:
            raise HTTPError(507, reason="the disk is full")
        super().put_blob(sha256, data)


@pytest.mark.full("in the gate a service that is away is waited for")
async def test_a_service_without_room_is_waited_for(start: Start) -> None:
    service = Full()
    cluster = await start(1, service)
    run = await cluster.run(
        f"import minicluster as mc\n(mc.output() / 'a').write_text('x' * {LARGE})\nprint('x')", nodes=1
    )
    await run.started()
    await asyncio.sleep(1.0)
    assert not run.attempt.cleared
    service.room = True
    await run.over()
    assert brought(run) == {(0, "a"): b"x" * LARGE}


@pytest.mark.full("twenty seconds of waiting")
async def test_a_stop_does_not_wait_for_ever_and_says_what_is_missing(start: Start) -> None:
    cluster = await start(1, Full())
    source = f"""
        import minicluster as mc
        (mc.output() / "small").write_text("s")
        (mc.output() / "a").write_text("x" * {LARGE})
        print("here", flush=True)
        """
    run = await cluster.run(source, nodes=1)
    await run.started()
    # Files are uploaded after the ranks have ended.
    await eventually(lambda: b"s" in cluster.service.blobs.values())
    await run.stop()
    await run.over()
    assert brought(run) == {(0, "small"): b"s"}
    assert run.attempt.notes == {f"{messages.FILES_LEFT.format(node='node-0')}a ({messages.NO_TIME_LEFT})."}


async def test_a_service_that_is_away_is_waited_for(cluster: Cluster) -> None:
    run = await cluster.run(f"{WRITE}print('x', flush=True)\n    import time; time.sleep(0.3)", nodes=1)
    await run.started()
    await cluster.service.close()
    await asyncio.sleep(2.0)
    await cluster.service.open()
    assert (await run.over()).succeeded
    assert len(brought(run)) == 2


class Deaf(TaskService):
    """Does not acknowledge the first reports of files."""

    heard = 0

    async def answer(self, task: Task, report: TaskReport) -> ReportAnswer:
        answer = await super().answer(task, report)
        if report.artifacts:
            self.heard += 1
            if self.heard < 3:
                raise HTTPError(503)
        return answer


@pytest.mark.full("test_service_away has reports that are repeated")
async def test_a_report_that_was_not_answered_comes_again(start: Start) -> None:
    service = Deaf()
    cluster = await start(1, service)
    run = await cluster.run(WRITE, nodes=1)
    await run.over()
    assert service.heard >= 3
    assert len(brought(run)) == 2


@pytest.mark.full("in the gate an attempt ends by itself")
async def test_an_attempt_that_fails_with_a_lost_node_leaves_its_files_to_the_next(start: Start) -> None:
    cluster = await start(1, Full())
    source = f"import minicluster as mc\n(mc.output() / 'a').write_text('x' * {LARGE})\nraise ValueError"
    run = await cluster.run(source, nodes=1)
    await cluster.service.until(lambda: run.attempt.failed)
    await run.stop(StopMode.ABORT)
    await run.stop(StopMode.KILL)
    await run.over(10)
    assert not run.attempt.notes
    cluster.service.room = True
    again = await cluster.run("pass", nodes=1, job_id=run.attempt.id)
    await again.over()
    assert brought(again) == {(0, "a"): b"x" * LARGE}


class Robbed(TaskService):
    """Answers to the first reports that it has lost the files."""

    robbed = False

    async def answer(self, task: Task, report: TaskReport) -> ReportAnswer:
        if self.robbed or not report.artifacts:
            return await super().answer(task, report)
        self.robbed = True
        lost = tuple({one.blob.sha256 for one in report.artifacts})
        for sha256 in lost:
            del self.blobs[sha256]
        answer = await super().answer(task, report.model_copy(update={"artifacts": ()}))
        return answer.model_copy(update={"missing": lost})


async def test_files_that_the_service_has_lost_are_sent_again(start: Start) -> None:
    service = Robbed()
    cluster = await start(1, service)
    run = await cluster.run(f"{WRITE}(mc.output() / 'a').write_text('x' * {LARGE})", nodes=1)
    assert (await run.over()).succeeded
    assert service.robbed
    assert {path for _, path in brought(run)} == {"empty", "a folder/ünïcode ☃/rank.txt", "a"}
    assert not run.attempt.notes
