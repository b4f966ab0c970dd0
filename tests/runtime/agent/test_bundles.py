"""Files from the notebook's folder in the ranks' working folder: real agents and ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicluster.capture.bundle import pack_bundle
from minicluster.capture.payload import pack

from ..cluster import Cluster

LOOK = """
    import os, minicluster.train.place as place
    found = open("conf/a.txt").read(), open("run.sh").read(), os.access("run.sh", os.X_OK)
    open(f"of rank {place.rank()}", "w").close()
    here = os.getcwd()
    """


@pytest.fixture
def bundle(tmp_path: Path) -> bytes:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/a.txt").write_text("a")
    (tmp_path / "run.sh").write_text("echo")
    (tmp_path / "run.sh").chmod(0o755)
    return pack_bundle(["conf", "run.sh"], tmp_path, 1000)


async def test_ranks_start_in_a_folder_with_the_files(cluster: Cluster, bundle: bytes) -> None:
    run = await cluster.run(LOOK, nodes=2, ranks_per_node=2, bundle=bundle)
    result = await run.result()
    assert result["found"] == ("a", "echo", True)
    assert Path(result["here"]).is_relative_to(cluster.folder / "task-0")
    plain = await cluster.run("import os\nhere = os.getcwd()", nodes=1)
    assert (await plain.result())["here"] == str(Path.cwd())
    assert not Path(result["here"]).exists()


async def test_a_module_among_the_files_can_be_imported(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "helper_of_mine.py").write_text("answer = 42")
    bundle = pack_bundle(["helper_of_mine.py"], tmp_path, 1000)
    run = await cluster.run("from helper_of_mine import answer", nodes=1, bundle=bundle)
    assert (await run.result())["answer"] == 42


@pytest.mark.parametrize("blob", [b"no bundle", pack({"kind": "bundle", "runnable": []}, {"../x": b"x"})])
async def test_what_is_no_bundle_fails_the_cell_and_not_the_agent(cluster: Cluster, blob: bytes) -> None:
    error = await (await cluster.run("pass", nodes=1, bundle=blob)).culprit()
    assert "The cell could not be fetched" in error.message
    assert not list(cluster.folder.rglob("x"))
