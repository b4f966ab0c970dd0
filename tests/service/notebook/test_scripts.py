"""`%distribute run train.py ARGS`: plain scripts run as by torchrun."""

import pytest

from minicluster.display.failures import DistributedCellError
from minicluster.options import OptionWrong
from minicluster.scripts import ScriptMissing
from minicluster.wire import ErrorKind

TRAIN = '''"""A script for torchrun."""
import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from helper_of_train import scale


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.add_argument("--code", type=int, default=0)
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(3, 2)).sum().backward()
    total = torch.tensor(scale(arguments.lr))
    dist.all_reduce(total)
    beside = (Path(__file__).parent / "settings.txt").read_text()
    here = open("settings.txt").read()
    print(f"{sys.argv[0]}: {total.item():.1f} of {dist.get_world_size()}, {beside}, {here}")
    dist.destroy_process_group()
    if arguments.code == 9:
        raise ValueError("nine")
    return arguments.code


if __name__ == "__main__":
    sys.exit(main())
'''


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "helper_of_train.py").write_text("def scale(lr):\n    return 10 * lr\n")
    (tmp_path / "settings.txt").write_text("deep")


@pytest.mark.parametrize("options", ["--nodes 2", "--nodes 2 --with settings.txt"], ids=["sees", "is sent"])
def test_a_script_runs_as_with_torchrun(notebook, script, capsys, options):
    assert notebook.run(f"%distribute run {options} train.py --lr 0.5") is None
    assert "train.py: 10.0 of 2, deep, deep" in capsys.readouterr().out
    assert notebook.run("%distribute status").rows[0][1] == "train.py"


def test_a_scripts_exit_code_is_the_jobs(notebook, script):
    error = notebook.fails("%distribute run --nodes 1 train.py --lr 1 --code 3", DistributedCellError)
    assert (error.error.kind, error.error.exit_code) == (ErrorKind.EXIT, 3)


def test_a_scripts_error_has_its_lines(notebook, script):
    error = notebook.fails("%distribute run --nodes 1 train.py --lr 1 --code 9", DistributedCellError)
    assert error.error.message == "ValueError: nine"
    assert 'File "train.py", line 29, in main' in error.error.traceback
    assert 'raise ValueError("nine")' in error.error.traceback


def test_what_is_no_script_is_told_before_anything_starts(notebook):
    assert "there is no such file" in notebook.fails("%distribute run tain.py", ScriptMissing).message
    assert "needs a script" in notebook.fails("%distribute run --nodes 2", OptionWrong).message
    (wrong,) = [notebook.fails("%distribute run --pull a train.py", OptionWrong)]
    assert "mc.output()" in wrong.hint


@pytest.mark.full("tests/runtime/rank/test_folders has a cell that does")
def test_a_script_may_spawn_processes_of_its_own(notebook, tmp_path, capsys):
    (tmp_path / "spawning.py").write_text(
        "import torch.multiprocessing as mp\n"
        "def work(rank):\n    print('process', rank, flush=True)\n"
        "if __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n"
    )
    notebook.run("%distribute run --nodes 1 spawning.py")
    shown = capsys.readouterr().out
    assert "process 0" in shown
    assert "process 1" in shown


def test_a_name_that_an_earlier_cell_did_not_bring_is_told(notebook):
    notebook.run("%%distribute --nodes 1 --pull none\nmade = 1")
    error = notebook.fails("%%distribute --nodes 1\nprint(made)", DistributedCellError)
    assert "`made` stayed on the ranks" in error.hint and "--pull" in error.hint
