"""Packing and unpacking files from the notebook's folder, and the ignore file."""

import os

import pytest

from minicluster.capture.bundle import BundleNotSendable, Ignored, IgnoreFileUnreadable, pack_bundle
from minicluster.capture.payload import PayloadDamaged, pack
from minicluster.runtime.agent.preparation import unpack_bundle


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def unpacked(blob, folder):
    (folder.parent / "blob").write_bytes(blob)
    unpack_bundle(folder.parent / "blob", folder)
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


@pytest.fixture
def here(tmp_path):
    folder = tmp_path / "here"
    write(folder, {"data": "1", "conf/a": "2", "conf/deep/b": "3", "other": "4"})
    return folder


def pack_here(here, *names, limit=1000):
    return pack_bundle(names, here, limit)


def test_files_and_folders_come_to_their_places(here, tmp_path):
    (here / "conf/run.sh").write_text("echo")
    (here / "conf/run.sh").chmod(0o700)
    (here / "conf/ünïcode and space").write_text("5")
    (here / "conf/empty").touch()
    found = unpacked(pack_here(here, "data", "conf/"), tmp_path / "there")
    assert found == {
        "data": "1",
        "conf/a": "2",
        "conf/deep/b": "3",
        "conf/run.sh": "echo",
        "conf/ünïcode and space": "5",
        "conf/empty": "",
    }
    assert os.access(tmp_path / "there/conf/run.sh", os.X_OK)
    assert not os.access(tmp_path / "there/data", os.X_OK)


def test_the_same_files_are_the_same_blob_whatever_their_times_and_order(here):
    blob = pack_here(here, "data", "conf")
    os.utime(here / "data", (1, 1))
    assert pack_here(here, "./conf/", "conf/deep", "data", "d*") == blob
    write(here, {"data": "changed"})
    assert pack_here(here, "data", "conf") != blob


def test_the_ignore_file_leaves_out_what_is_in_folders_but_not_what_is_named(here, tmp_path):
    write(here, {"conf/big/x": "6", "conf/a.log": "7", "conf/__pycache__/c": "8"})
    write(here, {".minicluster-ignore": "big/\n*log\ndata\n"})
    assert set(unpacked(pack_here(here, "data", "."), tmp_path / "all")) == {
        "data",
        "other",
        "conf/a",
        "conf/deep/b",
    }
    assert set(unpacked(pack_here(here, "conf/big"), tmp_path / "named")) == {"conf/big/x"}


@pytest.mark.parametrize(
    ("line", "fits", "others"),
    [
        ("*.log", ["a.log", "x/b.log"], ["a.log.txt", "log"]),
        ("/a", ["a"], ["x/a"]),
        ("x/*.log", ["x/a.log"], ["x/y/a.log", "a.log", "y/x/a.log"]),
        ("**/x/a", ["x/a", "y/z/x/a"], ["x/b"]),
        ("x/**", ["x/a", "x/y/a"], ["x"]),
        ("x/**/a", ["x/a", "x/y/z/a"], ["a"]),
        ("run-?", ["run-1"], ["run-12", "run-"]),
        ("run-[0-3]", ["run-1"], ["run-4"]),
        ("run-[!0-3]", ["run-4"], ["run-1"]),
        ("\\#a", ["#a"], ["a"]),
        ("\\!a", ["!a"], ["a"]),
        ("a b  ", ["a b"], ["a b  "]),
        ("x/**\n!x/keep", ["x/a"], ["x/keep"]),
        ("x/*\n!x/keep", ["x/a"], ["x/keep"]),
        ("folder/", [], ["folder"]),
        ("# folder", [], ["folder", "# folder"]),
        ("", [], ["a"]),
    ],
)
def test_patterns_are_those_of_gitignore(line, fits, others):
    ignored = Ignored(tuple(line.split("\n")))
    for paths, wanted in ((fits, True), (others, False)):
        assert {path: ignored(path, is_folder=False) for path in paths} == dict.fromkeys(paths, wanted)


def test_what_a_later_line_takes_back_travels_and_a_pattern_that_is_none_is_refused(here, tmp_path):
    write(here, {"conf/big/x": "6", "conf/big/keep": "7", ".minicluster-ignore": "conf/big/**\n!keep\n"})
    assert "conf/big/keep" in unpacked(pack_here(here, "conf"), tmp_path / "there")
    assert "conf/big/x" not in unpacked(pack_here(here, "conf"), tmp_path / "again")
    write(here, {".minicluster-ignore": "[z-a]\n"})
    with pytest.raises(IgnoreFileUnreadable, match="bad character range z-a"):
        pack_here(here, "conf")


def test_a_later_line_takes_back_an_earlier_one():
    ignored = Ignored(("*.log", "!keep.log", "folder/"))
    assert ignored("a.log", is_folder=False) and not ignored("keep.log", is_folder=False)
    assert ignored("x/folder", is_folder=True)


def test_links_to_files_travel_as_the_files_and_links_to_folders_are_refused(here, tmp_path):
    (tmp_path / "elsewhere").write_text("9")
    (here / "conf/link").symlink_to(tmp_path / "elsewhere")
    assert unpacked(pack_here(here, "conf"), tmp_path / "there")["conf/link"] == "9"
    (here / "conf/up").symlink_to("..")
    with pytest.raises(BundleNotSendable, match="conf/up is a link to a folder"):
        pack_here(here, "conf")
    write(here, {".minicluster-ignore": "up\n"})
    pack_here(here, "conf")


def test_what_cannot_travel_is_refused_with_its_name(here):
    with pytest.raises(BundleNotSendable, match="no such file or folder"):
        pack_here(here, "absent.json")
    with pytest.raises(BundleNotSendable, match="only what is beside the notebook"):
        pack_here(here, "../x")
    with pytest.raises(BundleNotSendable, match=r"\*\* stands alone"):
        pack_here(here, "**.json")
    (here / "conf/broken").symlink_to("nowhere")
    with pytest.raises(BundleNotSendable, match="conf/broken is no file"):
        pack_here(here, "conf")
    (here / "conf/broken").unlink()
    os.mkfifo(here / "conf/pipe")
    with pytest.raises(BundleNotSendable, match="conf/pipe is no file"):
        pack_here(here, "conf")


def test_too_much_is_refused_with_the_largest(here):
    write(here, {"conf/big": "x" * 600, "conf/bigger": "x" * 700})
    with pytest.raises(BundleNotSendable) as refused:
        pack_here(here, "conf", limit=1000)
    assert "conf/bigger (700 bytes), conf/big (600 bytes)" in str(refused.value)


@pytest.mark.parametrize("path", ["../x", "/tmp/x", "a/../../x"])
def test_a_bundle_writes_nowhere_else(tmp_path, path):
    blob = pack({"kind": "bundle", "runnable": []}, {path: b"x"})
    with pytest.raises(PayloadDamaged, match="path"):
        unpacked(blob, tmp_path / "there")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
