"""Data sets in the store: the newest version by name, owners of pieces, unused pieces."""

from minicluster.wire import BlobInfo, DataUse
from minicluster_hub.jobs.records import DataSetRecord, DataSetVersion
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.store.storage.datasets import EARLIER_MOST


def record(name="pets", owner="ada", manifest="m1", shared=False, at=1.0):
    return DataSetRecord(owner, name, manifest.ljust(64, "0"), 2, 30, shared, at)


def blob(name, size_bytes=10):
    return BlobInfo(sha256=name.encode().hex().ljust(64, "0"), size_bytes=size_bytes)


A, B, C = blob("a"), blob("b"), blob("c")


def test_a_later_version_takes_the_place_of_the_one_before(store):
    store.datasets.keep(record(), [A.sha256, B.sha256])
    store.datasets.keep(record(manifest="m2", at=2.0), [B.sha256, C.sha256])
    store.datasets.keep(record(manifest="m2", at=3.0), [B.sha256, C.sha256])
    assert store.datasets.visible("ada") == [record(manifest="m2", at=3.0)]
    assert store.datasets.find("bob", "pets") is None
    store.datasets.keep(record("birds", "bob", shared=True), [A.sha256])
    assert [(one.owner, one.name) for one in store.datasets.visible("ada")] == [
        ("ada", "pets"),
        ("bob", "birds"),
    ]
    assert [one.name for one in store.datasets.visible("bob")] == ["birds"]
    assert len(store.datasets.visible(None)) == 2
    assert (store.datasets.remove("ada", "birds"), store.datasets.remove("bob", "birds")) == (False, True)


def test_a_piece_is_of_whoever_brought_it(store):
    for _ in range(2):
        store.datasets.add_piece("ada", A, 1.0)
    assert store.datasets.lacking("ada", (A, B), 2.0) == [B]
    assert store.datasets.lacking("bob", (A,), 2.0) == [A]
    assert [use.files for use in store.storage.used("ada").values()] == [1]
    assert store.storage.used("bob") == {}


def test_pieces_go_when_no_version_and_no_push_wants_them(store, given):
    for piece in (A, B, C):
        store.datasets.add_piece("ada", piece, 1.0)
    store.datasets.add_piece("bob", C, 1.0)
    store.datasets.keep(record("his", "bob", "m3"), [C.sha256])
    first, second = record(), record(manifest="m2")
    store.datasets.keep(first, [A.sha256])
    use = DataUse(name="pets", owner="ada", manifest_sha256=first.manifest_sha256)
    job = given.job(data=(use,))
    store.datasets.keep(second, [B.sha256])
    assert store.datasets.sweep(5.0, 5.0).gone == frozenset()  # the job has A, bob has C
    assert store.datasets.lacking("ada", (C,), 6.0) == [C]
    store.apply(job.id, JobEvent.STOP_ASKED, 7.0)
    assert store.datasets.lacking("ada", (A,), 8.0) == []  # a push asks for it
    assert store.datasets.sweep(7.5, 7.5).gone == frozenset()
    assert store.datasets.sweep(9.0, 9.0).gone == {A.sha256}
    assert store.datasets.lacking("ada", (B,), 10.0) == []


def read(made, at):
    return DataSetVersion(made.owner, made.name, made.manifest_sha256, made.files, made.size_bytes, at)


def two_versions(store, second_at):
    """A data set whose first version a run read at 10.0, and the version that took its place."""
    first, second = record(), record(manifest="m2", at=second_at)
    for piece in (A, B):
        store.datasets.add_piece("ada", piece, 1.0)
    store.datasets.keep(first, [A.sha256])
    store.datasets.note_read([read(first, 10.0)])
    store.datasets.keep(second, [B.sha256])
    return first, second


def test_a_version_stays_some_time_after_a_run_read_it(store):
    _, second = two_versions(store, 2.0)
    store.datasets.note_read([read(second, 11.0)])
    assert store.datasets.sweep(20.0, 10.0).gone == frozenset()
    assert [one.read_at for one in store.datasets.versions("ada", "pets")] == [11.0, 10.0]
    assert store.datasets.sweep(20.0, 10.5).gone == {A.sha256}
    assert store.datasets.sweep(20.0, 99.0).gone == frozenset(), "the newest stays, read or not"


def test_earlier_versions_are_bounded_and_go_at_once_when_asked(store):
    for number in range(EARLIER_MOST + 3):
        made, piece = record(manifest=f"m{number:02}x", at=float(number)), blob(f"{number}")
        store.datasets.add_piece("ada", piece, float(number))
        store.datasets.keep(made, [piece.sha256])
        store.datasets.note_read([read(made, float(number))])
    assert store.datasets.sweep(99.0, 0.0).gone == {blob(f"{number}").sha256 for number in range(2)}
    assert store.datasets.drop_earlier("ada")
    assert not store.datasets.drop_earlier("ada")
    assert store.datasets.sweep(-1.0, 0.0).gone == frozenset()
    gone = store.datasets.sweep(1.0, 0.0).gone
    assert gone == {blob(f"{number}").sha256 for number in range(2, EARLIER_MOST + 2)}


def test_a_removed_data_set_loses_all_its_versions(store):
    two_versions(store, 12.0)
    assert store.datasets.remove("ada", "pets")
    assert store.datasets.versions() == []
    assert store.datasets.sweep(0.5, 0.0).gone == {A.sha256, B.sha256}


def test_that_an_attempts_data_is_there_is_kept_for_that_attempt(store, given):
    job, _, _ = given.admitted()
    assert job.data_attempt_id is None
    store.datasets.ready_for(job.id, job.attempt_id)
    assert store.job(job.id).data_attempt_id == job.attempt_id
    store.datasets.ready_for(job.id, job.attempt_id + 1)  # of another one
    assert store.job(job.id).data_attempt_id == job.attempt_id
