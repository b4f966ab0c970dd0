"""Files to the ranks and back, as a user sends them: a shell, the job service, real agents."""

import time

import pytest

from minicluster.capture.bundle import BundleNotSendable
from minicluster.display.failures import DistributedCellError
from minicluster.options import OptionWrong
from minicluster.results.downloads import NotDownloaded, download

from .... import messages


@pytest.fixture
def files(notebook, service):
    """Run a cell that writes files on two nodes; return the job's id."""
    notebook.run(
        """%%distribute --nodes 2
import minicluster as mc
(mc.output() / "same").write_text("same")
(mc.output() / "a folder").mkdir()
(mc.output() / "a folder/ünïcode").write_text(f"of {mc.rank()}")
(mc.output() / f"rank-{mc.rank()}").write_bytes(b"0123456789" * 100_000)
"""
    )
    return service.jobs(1)[0].id


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


WRITTEN = {
    "same": b"same",
    "a folder/ünïcode": b"of 0",
    "task-1/a folder/ünïcode": b"of 1",
    "rank-0": b"0123456789" * 100_000,
    "rank-1": b"0123456789" * 100_000,
}


def test_files_are_listed_and_brought(notebook, files, tmp_path):
    table = notebook.run(f"%distribute files {files}")
    assert {row[0] for row in table.rows} == set(WRITTEN)
    assert "1 MB" in {row[1] for row in table.rows}
    brought = notebook.run(f"%distribute files {files} --to there")
    assert repr(brought) == "5 files (2 MB) in there."
    assert content(tmp_path / "there") == WRITTEN
    again = notebook.run(f"%distribute files {files} --to there")
    assert again.there == 5
    one = notebook.run(f'%distribute files {files} "a folder" --to "one of them"')
    assert one.files == 2
    assert set(content(tmp_path / "one of them")) == {"a folder/ünïcode", "task-1/a folder/ünïcode"}
    with pytest.raises(NotDownloaded, match="left no file 'none'"):
        notebook.run(f"%distribute files {files} none")


def test_a_file_of_somebody_else_is_not_overwritten(notebook, files, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there/rank-1").write_text("mine")
    with pytest.raises(NotDownloaded, match="rank-1 is there already"):
        notebook.run(f"%distribute files {files} --to there")
    assert content(tmp_path / "there") == {"rank-1": b"mine"}
    (tmp_path / "there/rank-1").unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "there/a folder").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotDownloaded, match="leads out of"):
        notebook.run(f"%distribute files {files} --to there")


def test_a_download_that_was_cut_goes_on_and_a_damaged_one_is_seen(service, files, tmp_path, monkeypatch):
    listed = service.artifacts(files).artifacts
    asked = []
    whole = service.download

    def continued(path, file, sha256):
        asked.append(file.tell())
        whole(path, file, sha256)

    class Cut(Exception):
        pass

    def cut(path, file, sha256):
        whole(path, file, sha256)
        file.truncate(file.tell() // 2)
        raise Cut

    monkeypatch.setattr(service, "download", cut)
    with pytest.raises(Cut):
        download(service, files, [one for one in listed if one.path == "rank-0"], tmp_path / "there")
    monkeypatch.setattr(service, "download", continued)
    download(service, files, [one for one in listed if one.path == "rank-0"], tmp_path / "there")
    assert asked == [500_000]
    assert content(tmp_path / "there") == {"rank-0": WRITTEN["rank-0"]}
    monkeypatch.setattr(service, "download", cut)
    (tmp_path / "there/rank-0").unlink()
    with pytest.raises(Cut):
        download(service, files, [one for one in listed if one.path == "rank-0"], tmp_path / "there")
    (part,) = (tmp_path / "there").iterdir()
    part.write_bytes(b"x" * 10)
    monkeypatch.setattr(service, "download", continued)
    with pytest.raises(NotDownloaded, match="damaged"):
        download(service, files, [one for one in listed if one.path == "rank-0"], tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_files_of_a_failed_job_are_there(notebook, service):
    notebook.fails(
        """%%distribute --nodes 1
import minicluster as mc
(mc.output() / "before").write_text("it failed")
raise ValueError("no luck")
""",
        DistributedCellError,
    )
    (found,) = service.artifacts(service.jobs(1)[0].id).artifacts
    assert found.path == "before"


@pytest.mark.full("a rare moment")
def test_a_job_is_stopped_while_its_files_come(cluster, notebook, service, tmp_path):
    """1 GB of different files: they are still uploading at the stop, which does not wait for all of them."""
    handle = notebook.run(
        """%%distribute --nodes 1 --detach
import os, minicluster as mc
block = os.urandom(1 << 20)
for number in range(16):
    with open(mc.output() / f"{number}", "wb") as file:
        file.write(number.to_bytes(4, "big"))
        for _ in range(64):
            file.write(block)
(mc.output() / "small").write_text("x")
print("written", flush=True)
"""
    )
    while "written" not in service.log(handle.id, 0, 1000)[0]:
        time.sleep(0.05)
    asked_at = time.monotonic()
    handle.stop()
    while not handle.state.terminal:
        time.sleep(0.05)
    listed = service.artifacts(handle.id)
    print(f"stopped after {time.monotonic() - asked_at:.1f} s, with {len(listed.artifacts)} of 17 files")
    assert "small" in {one.path for one in listed.artifacts}
    assert len(listed.artifacts) == 17 or messages.NO_TIME_LEFT in listed.left[0]


def test_named_files_lie_in_the_working_folder(notebook, service, tmp_path):
    (tmp_path / "data.json").write_text('{"a": 1}')
    (tmp_path / "conf/deep").mkdir(parents=True)
    (tmp_path / "conf/deep/x.txt").write_text("deep")
    (tmp_path / "conf/left.out").write_text("x")
    (tmp_path / ".minicluster-ignore").write_text("*.out\n")
    cell = """%%distribute --nodes 2 --with data.json,conf/
import json, os
from pathlib import Path
found = json.load(open("data.json")), Path("conf/deep/x.txt").read_text(), sorted(os.listdir("conf"))
Path("written").touch()
"""
    notebook.run(cell)
    assert notebook.names["found"] == ({"a": 1}, "deep", ["deep"])
    assert not (tmp_path / "written").exists()
    handles = [notebook.run(cell.replace("--nodes 2", "--nodes 1 --detach")) for _ in range(2)]
    assert len({handle.id for handle in handles}) == 2


def test_too_large_a_bundle_is_refused_before_anything_is_sent(notebook, service, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"x" * 5000)
    notebook.shell.run_line_magic("config", "Distribute.bundle_limit_bytes = 1000")
    newest = service.jobs(1)[0].id
    error = notebook.fails("%%distribute --with data.bin\npass", BundleNotSendable)
    assert "data.bin (5 KB)" in str(error)
    assert service.jobs(1)[0].id == newest
    notebook.fails("%%distribute --with\npass", OptionWrong)
