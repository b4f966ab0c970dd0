"""A run is found, compared and repeated in a notebook, with the real service and real ranks."""

import subprocess

import pytest

import minicluster as mc
from minicluster.client.connection import ServiceError
from minicluster.wire import GitCommit

LOGS = """%%distribute --nodes 2 --plain --tag first,b --seed 5 --name curves
import random
import minicluster as mc
for step in range(6):
    mc.log(step=step, loss=scale / (step + 1))
drawn = random.random()
"""


def git(folder, *words):
    who = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    return subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout


def test_a_run_is_found_compared_and_repeated(notebook, service, tmp_path, capsys):
    (tmp_path / "model.py").write_text("x = 1\n")
    for words in (["init", "-q", "-b", "main"], ["add", "model.py"], ["commit", "-q", "-m", "first"]):
        git(tmp_path, *words)
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    notebook.run("scale = 2.0")
    notebook.run(LOGS)
    first = service.jobs(1)[0].id
    origin = service.run(first).origin
    assert origin.source == LOGS.partition("\n")[2]
    assert origin.line == LOGS.partition("\n")[0].removeprefix("%%distribute ")
    assert [(one.name, one.type) for one in origin.names] == [("scale", "float")]
    assert origin.commit == GitCommit(commit=head, branch="main", changed=0)

    drawn = notebook.names["drawn"]
    capsys.readouterr()
    notebook.run(f"%distribute rerun {first}")
    assert capsys.readouterr().out == ""
    cell = notebook.shell.rl_next_input
    assert cell.startswith(f"{LOGS.partition(chr(10))[0]} --rerun-of {first}\n")
    notebook.run("scale = 4.0")
    notebook.run(cell)
    assert notebook.names["drawn"] == drawn
    second = service.jobs(1)[0].id
    assert service.run(second).run.rerun_of == first

    table = mc.runs([first, second])
    assert table["metrics.loss"].tolist() == [pytest.approx(2 / 6), pytest.approx(4 / 6)]
    assert table["rerun_of"].tolist()[1] == first
    assert set(mc.runs(tag="first", limit=2)["id"]) == {first, second}
    curves = table.curves("loss")
    assert curves[curves["run"] == second]["value"].tolist() == [pytest.approx(4 / n) for n in range(1, 7)]
    axes = table.plot("loss")
    assert [line.get_label() for line in axes.lines] == [f"{first} curves", f"{second} curves"]


def test_a_rerun_says_what_is_not_as_it_was(notebook, service, capsys):
    notebook.run("rate, model = 0.1, [1]")
    notebook.run("%%distribute --nodes 1 --plain\nrate * len(model)")
    number = service.jobs(1)[0].id
    notebook.run("del rate\nmodel = {}")
    capsys.readouterr()
    notebook.run(f"%distribute rerun {number}")
    text = capsys.readouterr().out
    assert "The notebook has no rate" in text
    assert "`model` was list then; it is dict now." in text
    assert notebook.fails("%distribute rerun 1000000", ServiceError).code == "unknown_job"


def test_a_script_is_repeated_with_its_arguments(notebook, service, tmp_path):
    (tmp_path / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    notebook.run("%distribute run --nodes 1 --plain train.py --lr 'a b'")
    number = service.jobs(1)[0].id
    notebook.run(f"%distribute rerun {number}")
    cell = notebook.shell.rl_next_input
    assert cell == f"%distribute run --nodes 1 --plain --rerun-of {number} train.py --lr 'a b'"
    notebook.run(cell)
    assert service.run(service.jobs(1)[0].id).run.rerun_of == number


def test_a_repeated_run_reads_the_data_that_the_first_one_read(notebook, service, tmp_path, capsys):
    data = tmp_path / "pets"
    data.mkdir()
    (data / "name.txt").write_text("Rex")
    notebook.run(f"%distribute data push {data} --name pets")
    reads = "%%distribute --nodes 1 --plain --seed 1 --data pets\nimport minicluster as mc\n"
    notebook.run(reads + 'name = (mc.data("pets") / "name.txt").read_text()\n')
    (first,) = service.jobs(1)
    (data / "name.txt").write_text("Tom")
    notebook.run(f"%distribute data push {data} --name pets")
    capsys.readouterr()
    notebook.run(f"%distribute rerun {first.id}")
    assert capsys.readouterr().out == ""
    cell = notebook.shell.rl_next_input
    assert "--data pets@" in cell.partition("\n")[0]
    notebook.run(cell)
    assert notebook.names["name"] == "Rex"
    notebook.run(reads + 'name = (mc.data("pets") / "name.txt").read_text()\n')
    assert notebook.names["name"] == "Tom"
