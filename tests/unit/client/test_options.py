"""The magics' lines: accepted options, and messages about mistakes."""

from argparse import REMAINDER, SUPPRESS

import pytest

from minicluster.cell_run import job_spec
from minicluster.commands import COMMANDS, Command, commands_help, parse_command_line
from minicluster.options import (
    CellOptions,
    OptionWrong,
    cell_arguments,
    cell_options,
    cell_parser,
    parse_cell_line,
)
from minicluster.parsing.parser import Argument, HelpRequested
from minicluster.parsing.values import local_path
from minicluster.wire import CountRange, DataUse


def test_nothing_is_all_nodes_with_one_slot_each():
    assert parse_cell_line("") == CellOptions()


def test_gpus_wherever_they_are():
    assert parse_cell_line("--gpus 2:4").slots == CountRange(min=2, max=4)
    spec = job_spec(parse_cell_line("--gpus 3"), "a" * 64)
    assert (spec.slots, spec.nodes) == (CountRange(min=3, max=3), None)


@pytest.mark.parametrize("more", ["--nodes 2", "--gpus-per-node 2", "--ranks-per-node 1", "--fault-tolerant"])
def test_gpus_wherever_they_are_have_no_shape(more):
    with pytest.raises(OptionWrong, match="--gpus takes GPUs on any nodes"):
        parse_cell_line(f"--gpus 4 {more}")


def test_half_a_gpu_on_each_node():
    spec = job_spec(parse_cell_line("--nodes 2 --gpu-share 0.5"), "a" * 64)
    assert (spec.gpu_share, spec.slots_per_replica, spec.ranks_on_each_node) == (0.5, 0.5, 1)
    with pytest.raises(OptionWrong, match="a GPU is shared by halves"):
        parse_cell_line("--gpu-share 0.25")


@pytest.mark.parametrize("more", ["--gpus 2", "--gpus-per-node 2", "--ranks-per-node 2", "--shm 2g"])
def test_half_a_gpu_goes_with_one_rank(more):
    with pytest.raises(OptionWrong, match="--gpu-share takes half of one GPU on each node"):
        parse_cell_line(f"--gpu-share 0.5 {more}")


def test_gather_needs_ranks_that_stay():
    with pytest.raises(OptionWrong, match="ranks come and go"):
        parse_cell_line("--gather losses --fault-tolerant")


def test_every_option_that_is_there():
    line = (
        "--nodes 1:3 --gpus-per-node 2 --ranks-per-node=4 --name 'my run' --push a,b --pull model,history "
        "--gather losses --gather acc "
        "--detach --env A=1 --env B=x=y --timeout 30m --image lab/torch:2 --shm 2g "
        "--stall-timeout 5m --priority 40 --comm ddp --plain  # a note"
    )
    assert parse_cell_line(line) == CellOptions(
        nodes=CountRange(min=1, max=3),
        slots_per_node=2,
        ranks_per_node=4,
        name="my run",
        push=("a", "b"),
        pull=("model", "history"),
        gather=("losses", "acc"),
        detach=True,
        env={"A": "1", "B": "x=y"},
        timeout_s=1800.0,
        image="lab/torch:2",
        shm_bytes=2 << 30,
        stall_timeout_s=300.0,
        priority=40,
        comm="ddp",
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


@pytest.mark.parametrize(
    ("line", "seconds"), [("", None), ("--stall-timeout 0", 0.0), ("--stall-timeout 90s", 90.0)]
)
def test_a_cell_can_ask_to_be_told_sooner_or_never_that_ranks_are_stalled(line, seconds):
    assert job_spec(parse_cell_line(line), "a" * 64).quiet_after_s == seconds


def test_an_option_of_an_earlier_release_works_and_is_not_shown():
    assert parse_cell_line("--quiet 5m") == parse_cell_line("--stall-timeout 5m")
    _, found = parse_command_line("run --quiet 5m train.py")
    assert found["stall_timeout_s"] == 300.0
    assert "--quiet" not in f"{cell_parser().format_help()} {cell_parser().hint} {[*cell_parser().options]}"
    with pytest.raises(OptionWrong) as caught:
        parse_cell_line("--quiet soon")
    assert caught.value.hint == "Like this: --quiet 5m (0: never)"


@pytest.mark.parametrize(("line", "priority"), [("", 50), ("--priority 1", 1), ("--priority=99", 99)])
def test_a_cell_says_how_urgent_it_is(line, priority):
    assert job_spec(parse_cell_line(line), "a" * 64).priority == priority


def test_a_run_has_tags_and_a_seed():
    options = parse_cell_line("--tag 'first try',resnet --tag resnet,b --seed 7 --rerun-of 67")
    assert options.tags == ("first try", "resnet", "b")
    assert options.rerun_of == 67
    assert job_spec(options, "a" * 64).seed == 7
    assert job_spec(parse_cell_line(""), "a" * 64).seed is None


@pytest.mark.parametrize(
    "line", ["--seed -1", "--seed 4294967296", f"--tag {'x' * 65}", "--tag ,", "--tag ''"]
)
def test_a_tag_or_a_seed_that_does_not_fit_is_refused(line):
    with pytest.raises(OptionWrong):
        parse_cell_line(line)


def test_pull_none_brings_nothing_back():
    assert parse_cell_line("--pull none").pull == ()


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("--nodez 3", "Did you mean --nodes", "--gpus-per-node"),
        ("--strategy fsdp", "'--strategy'. The cell says it: mc.prepare", "--nodes 3"),
        ("3", "Unknown word '3'", "--nodes 3"),
        ("--nodes", "--nodes: expected one argument", "--nodes 3 (or 1:3)"),
        ("--nodes --detach", "--nodes: expected one argument", "--nodes 3"),
        ("--nodes 3:1", "the minimum of 3:1 is above the maximum", "--nodes 3 (or 1:3)"),
        ("--nodes many", "a number from 1 to 10000", "--nodes 3"),
        ("--push a-b", "--push: 'a-b' is not the name of a variable", "--push a,b"),
        ("--env A", "--env: 'A' is not NAME=VALUE", "--env NAME=VALUE"),
        ("--timeout soon", "30m", "--timeout 30m"),
        ("--name 'x", "cannot be read", "Close each quote"),
        ("--image 'torch 2'", "the name of an image", "--image NAME"),
        ("--shm 64k", "a size from 1m to 16t", "--shm 2g"),
        ("--priority 0", "a number from 1 to 99", "--priority 40"),
        ("--priority 100", "a number from 1 to 99", "--priority 40"),
        ("--comm pigeon", "--comm: 'pigeon' is no way to communicate", "There are: auto, ddp"),
    ],
)
def test_wrong_cell_lines(line, message, hint):
    with pytest.raises(OptionWrong) as caught:
        parse_cell_line(line)
    assert message in caught.value.message
    assert hint in caught.value.hint


def parsed(line):
    """Return a line's command and its arguments."""
    command, found = parse_command_line(line)
    return command.verb, found


def test_commands():
    assert parsed("") == ("status", {})
    assert parsed("logs 7 --rank 2") == parsed("logs --rank=2 7") == ("logs", {"job": 7, "rank": 2})
    assert parsed("logs 7") == ("logs", {"job": 7, "rank": 0})
    assert parsed("attach 12") == ("attach", {"job": 12})


@pytest.mark.parametrize(
    ("line", "verb", "found"),
    [
        ("data", "data", {}),
        ("data push DIR --name x", "data push", {"folder": "DIR", "name": "x", "shared": False}),
        (
            "data push --name=x --shared 'my dir'",
            "data push",
            {"folder": "my dir", "name": "x", "shared": True},
        ),
        ("data rm x", "data rm", {"name": "x"}),
        ("files 3", "files", {"job": 3, "path": None, "to": ""}),
        ("files 3 a/b", "files", {"job": 3, "path": "a/b", "to": ""}),
        ("files 12 'a folder/x' --to there", "files", {"job": 12, "path": "a folder/x", "to": "there"}),
        ("files --to there 12 x", "files", {"job": 12, "path": "x", "to": "there"}),
        ("connect --ca f", "connect", {"url": None, "ca": "f", "trust": ""}),
    ],
)
def test_what_a_command_takes(line, verb, found):
    assert parsed(line) == (verb, found)


def test_a_command_may_take_the_options_of_a_cell_and_the_rest_of_its_line(monkeypatch):
    script = Argument("script", "a file of Python", None, {"metavar": "SCRIPT"})
    rest = Argument("args", "what the script is given", None, {"metavar": "ARGS", "nargs": REMAINDER})

    def run():
        """Run a script."""

    monkeypatch.setitem(COMMANDS, "run", Command(run, (*cell_arguments(), script, rest)))
    _, found = parse_command_line("run --nodes 2 --env A=1 train.py --nodes 9 --lr=0.1 -x a --help")
    assert found.pop("script") == "train.py"
    assert found.pop("args") == ["--nodes", "9", "--lr=0.1", "-x", "a", "--help"]
    assert cell_options(**found) == CellOptions(nodes=CountRange(min=2, max=2), env={"A": "1"})
    with pytest.raises(OptionWrong, match="Did you mean --nodes"):
        parse_command_line("run --nodez 2 train.py --lr 1")
    with pytest.raises(OptionWrong, match="the following arguments are required: SCRIPT"):
        parse_command_line("run --nodes 2")


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_has_each_option_with_its_line(word):
    with pytest.raises(HelpRequested) as asked:
        parse_cell_line(f"--nodes 3 {word}")
    assert str(asked.value) == cell_parser().format_help()
    lines = str(asked.value).splitlines()
    for one in (one for one in cell_arguments() if one.help != SUPPRESS):
        (line,) = [line for line in lines if line.startswith(f"  {one.name} ")]
        assert line == line.rstrip() and line.endswith(one.help)


@pytest.mark.parametrize("line", ["--help", "-h", "help"])
def test_help_has_each_command_with_its_line(line):
    with pytest.raises(HelpRequested) as asked:
        parse_command_line(line)
    lines = str(asked.value).splitlines()
    for command in COMMANDS.values():
        assert any(f"%distribute {command.usage} " in line and line.endswith(command.help) for line in lines)


def test_a_command_explains_what_it_takes():
    with pytest.raises(HelpRequested) as asked:
        parse_command_line("files --help")
    assert "%distribute files ID [PATH] [--to FOLDER]" in str(asked.value)
    assert "--to FOLDER  download them into this folder" in str(asked.value)
    assert commands_help() != str(asked.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("data psh x", "Did you mean data push"),
        ("data push --name x", "data push: the following arguments are required: DIR"),
        ("data push a b --name x", "Unknown word 'b'"),
        ("data push a --name", "--name: expected one argument"),
        ("data push a --name --shared", "--name: expected one argument"),
        ("data push a --shared=yes", "--shared: ignored explicit argument 'yes'"),
        ("data push --nam x", "Unknown option '--nam'. Did you mean --name?"),
        ("files x", "ID: invalid int value: 'x'"),
    ],
)
def test_what_a_command_does_not_take(line, message):
    with pytest.raises(OptionWrong) as caught:
        parse_command_line(line)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("statsu", "Did you mean status?"),
        ("attach", "attach: the following arguments are required: ID"),
        ("stop last", "ID: 'last' is not the number of a job"),
        ("logs 3 --rank", "--rank: expected one argument"),
        ("logs 3 --rank last", "--rank: 'last' is not a number from 0 to 9999"),
        ("logs 3 --rnk 2", "Did you mean --rank?"),
        ("nodes 3", "Unknown word '3'"),
    ],
)
def test_wrong_commands(line, message):
    with pytest.raises(OptionWrong) as caught:
        parse_command_line(line)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("--nodes 3", "--nodes belongs to a cell, whose first line has two %", "%%distribute --nodes 3"),
        ("data list", "Unknown word 'data list'", "data push DIR --name NAME"),
        ("data pusj digits --name x", "Did you mean data push", "data rm NAME"),
        ("data push ~nobody-here/x --name x", "there is no such user here", "~/ is your own home"),
    ],
)
def test_slips_are_told_with_what_was_meant(line, message, hint):
    with pytest.raises(OptionWrong) as caught:
        _, found = parse_command_line(line)
        local_path(found["folder"])
    assert message in caught.value.message and hint in caught.value.hint


def test_only_a_mark_at_the_begin_of_a_word_begins_a_comment():
    options = parse_cell_line("--env TOKEN=a#b --name 'run # 3' # not \"this")
    assert (options.env, options.name) == ({"TOKEN": "a#b"}, "run # 3")


def test_data_sets_may_be_named_more_than_once():
    data = parse_cell_line("--data a,b --data bob/c --data a").data
    assert data == (DataUse(name="a"), DataUse(name="b"), DataUse(name="bob/c"))
    with pytest.raises(OptionWrong, match="at most 32 data sets"):
        parse_cell_line("--data " + ",".join(f"d{number}" for number in range(33)))


@pytest.mark.parametrize(
    ("line", "most"), [("--nodes 20000", 10000), ("--gpus-per-node 65", 64), ("--ranks-per-node 257", 256)]
)
def test_a_count_has_an_end(line, most):
    with pytest.raises(OptionWrong, match=f"is not a number from 1 to {most}"):
        parse_cell_line(line)


def test_a_cell_can_be_fault_tolerant():
    assert parse_cell_line("--nodes 2:3 --fault-tolerant").fault_tolerant
    assert not parse_cell_line("--nodes 2:3").fault_tolerant


def test_files_to_travel_may_be_named_more_than_once_and_with_spaces():
    options = parse_cell_line("--with data.json,conf/ --with 'my notes.txt' --with=*.yaml")
    assert options.files == ("data.json", "conf/", "my notes.txt", "*.yaml")
    with pytest.raises(OptionWrong, match="a file or folder beside the notebook"):
        parse_cell_line("--with ,")
    assert job_spec(options, "a" * 64, bundle_sha256="b" * 64).bundle_sha256 == "b" * 64
