"""Blobs on a real disk: each is complete or absent."""

import hashlib
import resource
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from minicluster_hub.storage.blobs import BlobDamaged, BlobFiles, BlobNameWrong, BlobNotKept, UnsyncedBlobs

from ...patience import until

DATA = b"a payload" * 1000
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def root(tmp_path):
    return tmp_path / "blobs"


@pytest.fixture
def blobs(root):
    """A blob folder; at the end, check that it has only complete blobs."""
    yield BlobFiles(root)
    for path in root.rglob("*"):
        if path.is_file():
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_a_blob_is_there_once_all_of_it_is(blobs, root):
    assert blobs.size(SHA) is None
    with blobs.writer(SHA) as writer:
        for start in range(0, len(DATA), 1000):
            writer.write(DATA[start : start + 1000])
            assert blobs.size(SHA) is None
        assert writer.size_bytes == len(DATA)
    assert blobs.size(SHA) == len(DATA)
    assert blobs.path(SHA) == root / SHA[:2] / SHA
    assert blobs.path(SHA).read_bytes() == DATA


def test_a_blob_of_nothing_is_a_blob(blobs):
    empty = hashlib.sha256(b"").hexdigest()
    with blobs.writer(empty):
        pass
    assert blobs.size(empty) == 0


def test_a_damaged_blob_is_refused_and_gone(blobs):
    with pytest.raises(BlobDamaged, match=rf"{SHA} came damaged: its 9 bytes .* send it again"):  # noqa: SIM117
        with blobs.writer(SHA) as writer:
            writer.write(b"something")
    assert blobs.size(SHA) is None


def test_a_cut_upload_leaves_nothing(blobs):
    with pytest.raises(ConnectionError), blobs.writer(SHA) as writer:
        writer.write(DATA)
        raise ConnectionError
    assert blobs.size(SHA) is None


def test_a_writer_can_be_discarded_and_committed_by_hand(blobs):
    writer = blobs.writer(SHA)
    writer.write(DATA)
    writer.discard()
    writer.discard()
    assert blobs.size(SHA) is None
    writer = blobs.writer(SHA)
    writer.write(DATA)
    assert writer.commit() == blobs.path(SHA)
    writer.discard()
    assert blobs.size(SHA) == len(DATA)


def test_the_same_blob_from_many_at_once_is_whole(blobs):
    def send(_):
        with blobs.writer(SHA) as writer:
            for start in range(0, len(DATA), 500):
                writer.write(DATA[start : start + 500])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(send, range(12)))
    assert blobs.path(SHA).read_bytes() == DATA


@pytest.mark.parametrize("name", ["", "..", "../" * 22 + "x", SHA.upper(), SHA[:-1], SHA + "0", SHA + "\n"])
def test_a_name_that_is_no_hash_never_becomes_a_path(blobs, root, name):
    with pytest.raises(BlobNameWrong, match="64 lower-case hexadecimal digits"):
        blobs.writer(name)
    with pytest.raises(BlobNameWrong):
        blobs.size(name)
    assert not root.exists()


def test_what_a_kill_left_is_swept_at_the_next_start(blobs, root):
    with blobs.writer(SHA) as writer:
        writer.write(DATA)
    left = blobs.writer("b" * 64)
    left.write(b"half")
    assert len(list((root / "incoming").iterdir())) == 1
    BlobFiles(root).sweep()
    assert list((root / "incoming").iterdir()) == []
    assert blobs.size(SHA) == len(DATA)
    left.discard()


def test_a_full_disk_is_told_and_leaves_nothing(blobs, root):
    """A limit on file sizes simulates the full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:
        with pytest.raises(BlobNotKept, match=f"{SHA} was not kept in {root}.*File too large"):  # noqa: SIM117
            with blobs.writer(SHA) as writer:
                writer.write(DATA)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((root / "incoming").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_told(blobs, root):
    root.write_text("a file where a folder should be")
    with pytest.raises(BlobNotKept, match=f"was not kept in {root}"):
        blobs.writer(SHA)
    root.unlink()


def test_blobs_are_for_the_services_user_only(blobs):
    with blobs.writer(SHA) as writer:
        writer.write(DATA)
    assert stat.S_IMODE(blobs.path(SHA).stat().st_mode) == 0o600
    assert stat.S_IMODE(blobs.path(SHA).parent.stat().st_mode) == 0o700


@pytest.fixture
def unsynced(root, monkeypatch):
    """A function that writes a blob which the disk has not taken when the service is killed."""

    def write(data: bytes) -> str:
        sha256 = hashlib.sha256(data).hexdigest()
        with monkeypatch.context() as patch:
            patch.setattr(UnsyncedBlobs, "sync_soon", lambda *_: None)
            with BlobFiles(root).writer(sha256, durable=False) as writer:
                writer.write(data)
        return sha256

    return write


def marks(root):
    return [path.name[:64] for path in (root / "unsynced").iterdir()]


def test_a_blob_that_is_synced_later_is_there_at_once(blobs, root):
    with blobs.writer(SHA, durable=False) as writer:
        writer.write(DATA)
    assert blobs.path(SHA).read_bytes() == DATA
    until(lambda: not marks(root))


def test_what_a_power_cut_damaged_is_gone_after_the_start(blobs, root, unsynced):
    sound, cut, empty = unsynced(b"sound"), unsynced(b"cut short"), unsynced(b"nothing came")
    blobs.path(cut).write_bytes(b"cut")
    blobs.path(empty).write_bytes(b"")
    assert sorted(marks(root)) == sorted([sound, cut, empty])
    blobs.sweep()
    assert [blobs.size(one) for one in (sound, cut, empty)] == [5, None, None]
    assert marks(root) == []


def test_a_mark_whose_blob_is_gone_goes_too(blobs, root, unsynced):
    blobs.remove(unsynced(DATA))
    blobs.sweep()
    assert marks(root) == []


def test_a_damaged_blob_that_would_be_synced_later_is_refused(blobs, root):
    with pytest.raises(BlobDamaged), blobs.writer(SHA, durable=False) as writer:
        writer.write(b"something")
    assert blobs.size(SHA) is None
    assert not (root / "unsynced").exists()
