"""The lines of the magics: what is understood, and how mistakes are told."""

import pytest

from minicluster.options import CellOptions, Command, OptionWrong, parse_cell_line, parse_command_line
from minicluster.runs import job_spec


def test_nothing_is_all_nodes_with_one_slot_each():
    assert parse_cell_line("") == CellOptions()


def test_every_option_that_is_there():
    line = (
        "--nodes 1:3 --gpus-per-node 2 --ranks-per-node=4 --name 'my run' --push a,b --pull model,history "
        "--detach --env A=1 --env B=x=y --timeout 30m --image lab/torch:2 --shm 2g "
        "--quiet 5m --comm ddp --plain  # a note"
    )
    assert parse_cell_line(line) == CellOptions(
        nodes=(1, 3),
        slots_per_node=2,
        ranks_per_node=4,
        name="my run",
        push=("a", "b"),
        pull=("model", "history"),
        detach=True,
        env={"A": "1", "B": "x=y"},
        timeout_s=1800.0,
        image="lab/torch:2",
        shm_bytes=2 << 30,
        quiet_after_s=300.0,
        plain=True,
    )


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("1.5h", 5400), ("2d", 172800)])
def test_times(text, seconds):
    assert parse_cell_line(f"--timeout {text}").timeout_s == seconds


@pytest.mark.parametrize(("text", "size"), [("512m", 512 << 20), ("2g", 2 << 30), ("1.5GiB", 3 << 29)])
def test_sizes(text, size):
    assert parse_cell_line(f"--shm {text}").shm_bytes == size


@pytest.mark.parametrize(
    ("line", "notebooks", "image"),
    [
        ("", None, None),
        ("", "", None),
        ("", "lab/notebook:1", "lab/notebook:1"),
        ("--image lab/torch:2", "lab/notebook:1", "lab/torch:2"),
    ],
)
def test_ranks_run_in_the_image_of_the_line_or_of_the_notebook(line, notebooks, image):
    assert job_spec(parse_cell_line(line), "a" * 64, notebooks).image == image


@pytest.mark.parametrize(("line", "seconds"), [("", None), ("--quiet 0", 0.0), ("--quiet 90s", 90.0)])
def test_a_cell_can_ask_to_be_told_sooner_or_never_that_ranks_stand_still(line, seconds):
    assert job_spec(parse_cell_line(line), "a" * 64).quiet_after_s == seconds


def test_pull_none_brings_nothing_back():
    assert parse_cell_line("--pull none").pull == ()


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("--nodez 3", "Did you mean --nodes?", "--gpus-per-node"),
        ("3", "Unknown word '3'", "--nodes 3"),
        ("--nodes", "--nodes needs a value", "--nodes 3 (or 1:3)"),
        ("--nodes --detach", "--nodes needs a value", "--nodes 3"),
        ("--nodes 3:1", "the least is above the most", "--nodes 3 (or 1:3)"),
        ("--nodes many", "a number from 1 on", "--nodes 3"),
        ("--push a-b", "'a-b' is not a variable's name", "--push a,b"),
        ("--env A", "a name, =, and a value", "NAME=VALUE"),
        ("--timeout soon", "30m", "--timeout 30m"),
        ("--name 'x", "cannot be read", "Close each quote"),
        ("--image 'torch 2'", "the name of an image", "--image NAME:TAG"),
        ("--shm 64k", "a size from 1m on", "--shm 2g"),
        ("--priority 3", "not there yet", "Valid:"),
        ("--comm powersgd", "later version", "--comm auto"),
        ("--comm pigeon", "auto and ddp are there", "--comm auto"),
    ],
)
def test_wrong_cell_lines(line, message, hint):
    with pytest.raises(OptionWrong) as caught:
        parse_cell_line(line)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_commands():
    assert parse_command_line("") == Command("status")
    assert parse_command_line("logs 7 --rank 2") == Command("logs", 7, 2)
    assert parse_command_line("attach 12") == Command("attach", 12)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("statsu", "Did you mean status?"),
        ("up --nodes 3", "up is not there yet"),
        ("doctor", "doctor is not there yet"),
        ("connect http://x", "connect is not there yet"),
        ("attach", "needs the number of a job"),
        ("stop last", "not 'last'"),
        ("logs 3 --rank", "--rank needs the number"),
        ("nodes 3", "'3' is too much"),
    ],
)
def test_wrong_commands(line, message):
    with pytest.raises(OptionWrong) as caught:
        parse_command_line(line)
    assert message in caught.value.message
    assert caught.value.hint


def test_a_cell_can_be_fault_tolerant():
    assert parse_cell_line("--nodes 2:3 --fault-tolerant").fault_tolerant
    assert not parse_cell_line("--nodes 2:3").fault_tolerant
