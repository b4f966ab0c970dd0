"""Each owner's storage, summed up from rows, on both databases."""

import pytest
from sqlalchemy import text

from minicluster.wire import (
    BlobInfo,
    ImageState,
    JobError,
    RankReport,
    RankState,
    Recipe,
    StorageKind,
    TaskReport,
)
from minicluster_hub.jobs.records import DataSetRecord, ImageRecord
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.store.jobs import job_rows
from minicluster_hub.store.storage.storage import sums_queries

ROW = 4096
"""The bytes that a small job's row counts."""


def blob(number, size_bytes):
    return BlobInfo(sha256=f"{number:064x}", size_bytes=size_bytes)


def sizes(store, owner="ada"):
    return {kind.value: use.size_bytes for kind, use in store.storage.used(owner).items()}


def test_each_kind_counts_for_its_owner_alone(store, given):
    job = given.job()
    store.blobs.add("ada", blob(1, 10_000).sha256, 10_000, 1.0)
    store.datasets.add_piece("ada", blob(2, 20_000), 1.0)
    store.storage.add("ada", job.id, StorageKind.SNAPSHOTS, [blob(3, 30_000)])
    store.storage.add("ada", job.id, StorageKind.FILES, [blob(4, 40_000)])
    store.storage.set_output("ada", job.id, 50_000)
    store.storage.set_output("ada", job.id, 60_000)
    wanted = {"cells": 10_000 + ROW, "data": 20_000, "snapshots": 30_000, "files": 40_000, "output": 60_000}
    assert sizes(store) == wanted
    assert sizes(store, "bob") == {}
    assert set(store.storage.used_by_all()) == {"ada"}


def test_a_file_costs_4_kb_however_small_it_is(store, given):
    job = given.job()
    for number in range(10):
        store.blobs.add("ada", blob(number, 1).sha256, number % 2, 1.0)
    store.storage.add("ada", job.id, StorageKind.FILES, [blob(number, 1) for number in range(20)])
    assert sizes(store) == {"cells": 10 * 4096 + ROW, "files": 20 * 4096}
    assert store.storage.used("ada")[StorageKind.FILES].files == 20


def test_who_brought_the_same_has_it_each(store):
    for owner in ("ada", "bob"):
        store.blobs.add(owner, blob(1, 5_000).sha256, 5_000, 1.0)
        store.datasets.add_piece(owner, blob(2, 6_000), 1.0)
        store.datasets.add_piece(owner, blob(2, 6_000), 2.0)
    assert sizes(store) == sizes(store, "bob") == {"cells": 5_000, "data": 6_000}


def test_small_files_of_a_data_set_count_although_they_are_in_few_pieces(store):
    common = {"owner": "ada", "shared": False, "created_at": 1.0}
    store.datasets.add_piece("ada", blob(1, 10_000), 1.0)
    many = DataSetRecord(name="many", manifest_sha256="a" * 64, files=1_000, size_bytes=10_000, **common)
    large = DataSetRecord(name="large", manifest_sha256="b" * 64, files=2, size_bytes=10_000, **common)
    store.datasets.keep(large, [blob(1, 0).sha256])
    assert sizes(store) == {"data": 10_000 + 4096}
    store.datasets.keep(many, [blob(1, 0).sha256])
    assert sizes(store) == {"data": 1_000 * 4096 + 4096}
    store.datasets.remove("ada", "many")
    assert sizes(store) == {"data": 10_000 + 4096}


def test_what_is_forgotten_counts_no_more(store, given):
    job = given.job()
    for kind in (StorageKind.SNAPSHOTS, StorageKind.FILES):
        store.storage.add("ada", job.id, kind, [blob(1, 5_000), blob(2, 5_000)])
        store.storage.remove(job.id, kind, [blob(1, 0).sha256])
        assert not store.storage.has(job.id, kind, blob(1, 0).sha256)
        assert store.storage.has(job.id, kind, blob(2, 0).sha256)
    store.storage.set_output("ada", job.id, 9_000)
    assert (store.storage.output_bytes(job.id), store.storage.output_bytes(99)) == (9_000, 0)
    store.old_jobs.forget([job.id], 2.0)
    assert sizes(store) == {"files": 5_000}
    store.artifacts.forget(job.id)
    assert sizes(store) == {}


def test_a_published_image_counts_what_it_has_more_than_its_base(store):
    layer = {"layer_sha256": "c" * 64, "layer_bytes": 7_000_000, "diff_sha256": "d" * 64}
    pins = ({"name": "einops", "version": "0.8.1"},)
    recipe = Recipe.model_validate({"packages": pins, "python": "3.11", "machine": "x86_64", **layer})
    image = ImageRecord(
        digest=f"sha256:{'e' * 64}",
        name="vision",
        reference="r/vision@sha256:x",
        owner="ada",
        description="",
        device="cpu",
        size_bytes=2_000_000_000,
        base_digest=None,
        recipe=recipe,
        state=ImageState.PENDING,
        created_at=1.0,
        changed_at=1.0,
    )
    store.images.publish(image)
    assert sizes(store) == {"images": 7_000_000 + len(recipe.model_dump_json())}
    store.images.change(image.digest, ImageState.RETIRED, 2.0)
    assert sizes(store) == {}


@pytest.fixture
def crowded(store, given):
    """A store with 100,000 rows of each kind of another owner, and few of Ada's."""
    job = given.job(owner="bob")
    numbers = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) SELECT {} FROM n"
    )
    files = f"{job.id}, 'files', CAST(i AS TEXT), 'bob', 5000"
    rows = {
        "blobs (owner, sha256, size_bytes, created_at)": "'bob', CAST(i AS TEXT), 5000, 1.0",
        "pieces (owner, sha256, size_bytes, asked_at)": "'bob', CAST(i AS TEXT), 5000, 1.0",
        "job_files (job_id, kind, sha256, owner, size_bytes)": files,
    }
    with store._database.write() as connection:
        for into, values in rows.items():
            connection.execute(text(f"INSERT INTO {into} {numbers.format(values)}"))
    if not store._database.is_sqlite:  # nobody does it there, and PostgreSQL does it by itself
        with store._database.write() as connection:
            connection.execute(text("ANALYZE"))
    mine = given.job("key-0002")
    store.blobs.add("ada", blob(1, 0).sha256, 5_000, 1.0)
    store.datasets.add_piece("ada", blob(1, 5_000), 1.0)
    store.storage.add("ada", mine.id, StorageKind.FILES, [blob(1, 5_000)])
    return store


def test_others_rows_cost_an_owners_sum_nothing(crowded):
    """By the query plans: each table with owners' rows is read through an index on the owner."""
    assert sum(sizes(crowded, "bob").values()) == 3 * 100_000 * 5_000 + ROW
    assert sum(sizes(crowded).values()) == 3 * 5_000 + ROW
    explain = "EXPLAIN QUERY PLAN " if crowded._database.is_sqlite else "EXPLAIN "
    for query in sums_queries("ada"):
        compiled = query.compile(crowded._database._engine, compile_kwargs={"literal_binds": True})
        with crowded._database.read() as connection:
            plan = "\n".join(str(row[-1]) for row in connection.exec_driver_sql(f"{explain}{compiled}"))
        if any(name in plan for name in ("blobs", "pieces", "job_files")):
            assert "owner" in plan and ("SEARCH" in plan or "Index" in plan), plan
            assert "SCAN" not in plan and "Seq Scan" not in plan, plan


def test_the_largest_things_come_first(store, given):
    jobs = [given.job(f"key-000{number}") for number in range(4)]
    store.blobs.add("ada", "a" * 64, 5_000, 1.0)  # which all four take along
    for number, job in enumerate(jobs):
        store.storage.add("ada", job.id, StorageKind.FILES, [blob(number, 10_000 * number), blob(99, 1)])
    set_of_ada = {"owner": "ada", "name": "pets", "manifest_sha256": "b" * 64, "shared": False}
    store.datasets.keep(DataSetRecord(**set_of_ada, files=2, size_bytes=18_000, created_at=1.0), [])
    others = given.job("key-0001", "bob")
    store.storage.add("bob", others.id, StorageKind.SNAPSHOTS, [blob(1, 99_000)])
    found = store.storage.largest("ada", 3)
    assert [(thing.job_id, thing.name) for thing in found] == [
        (jobs[3].id, "cell"),
        (jobs[2].id, "cell"),
        (jobs[1].id, "cell"),
    ]
    assert {use.kind.value: (use.size_bytes, use.files) for use in found[0].uses} == {
        "cells": (5_000 + ROW, 2),
        "files": (34_096, 2),
    }
    assert found[0].open and found[0].size_bytes == 39_096 + ROW
    assert [thing.owner for thing in store.storage.largest(None, 2)] == ["bob", "ada"]
    assert [thing.name for thing in store.storage.largest("ada", 9)].index("pets") == 3


def run_to_the_end(store, given, key, long="x" * 10_000):
    """Run a job on three nodes with a long report of its end; return its id."""
    job, gang_id, tasks = given.admitted(key)
    error = JobError(kind="exception", message="no luck", traceback=long)
    for task in tasks:
        report = TaskReport(attempt=job.attempt_id, ranks=[_exited(rank, error) for rank in range(3)])
        store.report(
            task, report.model_copy(update={"notes": (f"a note of {task.node} {'y' * 1_000}",)}), 3.0
        )
    store.apply(job.id, JobEvent.FAILURE_SEEN, 4.0, error=error)
    store.apply(job.id, JobEvent.ATTEMPT_CLEANED_UP, 5.0)
    store.end_gang(gang_id)
    for task in tasks:
        store.task_ended(task.id, 6.0)
    return job.id


def _exited(rank, error):
    return RankReport(rank=rank, state=RankState.EXITED, exit_code=1, error=error)


def rows(store):
    """Return the number of rows of each table, and of characters in errors and histories."""
    tables = ("jobs", "events", "attempts", "ranks", "tasks", "gangs", "job_files", "job_blobs")
    chars = ("jobs.error", "jobs.spec", "events.text", "ranks.error")
    with store._database.read() as connection:
        counts = {
            table: connection.exec_driver_sql(f"SELECT COUNT(*) FROM {table}").scalar() for table in tables
        }
        for name in chars:
            table, _, column = name.partition(".")
            counts[name] = (
                connection.exec_driver_sql(f"SELECT SUM(LENGTH({column})) FROM {table}").scalar() or 0
            )
    return counts


def test_what_ranks_tell_of_their_end_counts_until_the_job_is_removed(store, given):
    job_id = run_to_the_end(store, given, "key-0001")
    assert 4 * 10_000 < sizes(store)["cells"] < 50_000
    store.storage.remove_job(job_id, "ada", 9.0)
    assert sizes(store) == {}
    left = rows(store)
    assert sum(left[name] for name in ("jobs.error", "jobs.spec", "events.text", "ranks.error")) < 1_500
    assert store.job(job_id).error.message == "no luck"
    assert store.history.nodes([store.job(job_id).attempt_id]), "its page names the nodes"


def test_rows_of_jobs_that_ran_and_were_removed_have_an_end(store, given, monkeypatch):
    monkeypatch.setattr(job_rows, "MOST_REMOVED", 3)
    others = run_to_the_end(store, given, "key-other")
    after = []
    for number in range(12):
        job_id = run_to_the_end(store, given, f"key-{number:04}")
        store.storage.remove_job(job_id, "ada", 10.0 + number)
        after.append(rows(store))
    assert after[11] == after[5], "no table grows any more"
    assert after[11]["jobs"] == 1 + 3
    assert store.job(job_id) and store.job(others) and store.job(job_id - 3) is None
    given.check_invariants(store.open_state())
    store.old_jobs.forget([others], 99.0)
    assert rows(store)["jobs"] == 3


def test_a_removed_job_whose_files_are_kept_longer_stays(store, given, monkeypatch):
    monkeypatch.setattr(job_rows, "MOST_REMOVED", 0)
    job = given.job()
    store.apply(job.id, JobEvent.STOP_ASKED, 2.0)
    store.storage.add("ada", job.id, StorageKind.FILES, [blob(1, 5_000)])
    store.old_jobs.forget([job.id], 3.0)
    assert store.job(job.id) is not None and sizes(store) == {"files": 5_000}


def test_what_a_task_says_of_a_removed_job_is_not_kept(store, given):
    job, _, (task, *_others) = given.admitted()
    store.apply(job.id, JobEvent.STOP_ASKED, 2.0)
    store.apply(job.id, JobEvent.ATTEMPT_CLEANED_UP, 2.0)
    store.storage.remove_job(job.id, "ada", 3.0)
    assert not store.report(task, TaskReport(attempt=job.attempt_id, notes=("late",)), 4.0)


def test_a_job_that_is_removed_gives_back_what_no_other_of_its_owner_names(store, given):
    job, other = given.job(), given.job("key-0002")
    store.blobs.add("ada", "a" * 64, 5_000, 1.0)  # both take it along
    store.storage.add("ada", job.id, StorageKind.SNAPSHOTS, [blob(1, 7_000)])
    assert store.storage.remove_job(job.id, "ada", 2.0) == []
    assert sizes(store) == {"cells": 5_000 + ROW}
    assert store.job(job.id).removed_at == 2.0
    store.blobs.add("bob", "a" * 64, 5_000, 1.0)
    assert store.storage.remove_job(other.id, "ada", 2.0) == ["a" * 64]
    assert (sizes(store), sizes(store, "bob")) == ({}, {"cells": 5_000})
