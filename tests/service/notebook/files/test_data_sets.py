"""Data sets from the notebook to the ranks: pushed, named on a cell's line, read by ranks."""

import os

import pytest

from minicluster.client.connection import ServiceError
from minicluster.display.failures import DistributedCellError
from minicluster.options import OptionWrong

from .... import messages
from ....patience import until
from ....processes import runs


def make_folder(root, files):
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def test_a_folder_is_pushed_and_read_by_the_ranks(notebook, tmp_path):
    files = {f"train/cat/{number}.png": os.urandom(500) for number in range(50)}
    files["large.bin"] = os.urandom(20 << 20)
    files["empty"] = b""
    folder = make_folder(tmp_path / "pets", files)
    notebook.run(f"%distribute data push {folder} --name pets")
    notebook.run(
        "%%distribute --nodes 2 --data pets --pull found\n"
        "import minicluster as mc\n"
        "root = mc.data('pets')\n"
        "found = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob('*') if p.is_file()}\n"
    )
    assert notebook.names["found"] == files


def test_what_people_see(notebook, tmp_path, capsys):
    folder = make_folder(tmp_path / "birds", {"a": b"abc", "b/c": b"de"})
    notebook.run(f"%distribute data push {folder} --name birds --shared")
    text = capsys.readouterr().out
    assert "birds: 2 files, 5 bytes in" in text
    assert "%%distribute --data birds" in text and "mc.data('birds')" in text
    assert "others name it ada/birds" in text
    table = repr(notebook.run("%distribute data"))
    assert "birds  5 bytes  2      yes" in table
    error = notebook.fails("%%distribute --data birdz\npass", ServiceError)
    assert error.message == messages.NO_SUCH_DATA_SET.format(name="birdz")
    assert "birds" in error.hint
    notebook.run("%distribute data rm birds")
    assert "birds" not in repr(notebook.run("%distribute data"))
    error = notebook.fails(f"%distribute data push {folder}", OptionWrong)
    assert "the following arguments are required: --name" in error.message
    error = notebook.fails(
        "%%distribute --nodes 1\nimport minicluster as mc\nmc.data('cats')", DistributedCellError
    )
    assert "no data set 'cats'; it has none" in str(error)


def begin_to_read(notebook, cluster, folder, ranks):
    """Push a large data set, and submit ranks that sum up its bytes; return the job while it is fetched."""
    make_folder(folder, {f"{number}.bin": os.urandom(16 << 20) for number in range(12)})
    notebook.run(f"%distribute data push {folder} --name {folder.name}")
    job = notebook.run(
        f"%%distribute --detach --nodes {ranks} --data {folder.name}\n"
        "import minicluster as mc\n"
        f"print('sum', sum(path.stat().st_size for path in mc.data('{folder.name}').iterdir()))\n"
    )
    until(lambda: any((cluster.folder / "data-cache" / "sets").glob("*.part/*.bin")))
    return job


def read_all(service, job, rank):
    until(lambda: service.job(job.id).state.terminal)
    assert service.job(job.id).state == "succeeded", service.job(job.id)
    assert f"sum {12 * (16 << 20)}" in service.log(job.id, rank, 10_000)[0]


@pytest.mark.full("tests/service/api/storage/test_data_agents has it without ranks")
def test_a_restart_of_the_service_in_the_middle_of_a_fetch(notebook, cluster, service, tmp_path):
    job = begin_to_read(notebook, cluster, tmp_path / "large", ranks=3)
    cluster.kill()
    cluster.start()
    read_all(service, job, rank=2)


@pytest.mark.full("tests/service/api/storage/test_data_agents has it without ranks")
def test_a_killed_keeper_is_started_again_and_goes_on(notebook, cluster, service, tmp_path):
    job = begin_to_read(notebook, cluster, tmp_path / "fish", ranks=2)
    (data_agent,) = [one for one in cluster.tasks() if runs(one, "minicluster.runtime.node.data_agent")]
    data_agent.kill()
    read_all(service, job, rank=1)
