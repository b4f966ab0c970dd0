"""The line of %serve."""

from __future__ import annotations

import pytest

from minicluster.options import OptionWrong
from minicluster.parsing.parser import HelpRequested
from minicluster.serving.commands import VERBS, parse
from minicluster.serving.options import ServeOptions
from minicluster.wire.serving.models import AutoServe
from minicluster.wire.serving.replicas import VERBS as WORDS


def options(line: str) -> ServeOptions:
    found = parse(line)
    assert isinstance(found, ServeOptions)
    return found


def test_a_model_with_its_options() -> None:
    found = options(
        "my_net --example x --replicas 2 --batch 16 --batch-wait 2ms --timeout 10s "
        "--auto val_acc:max --value 0.9"
    )
    assert (found.name, found.variable, found.replicas) == ("my-net", "my_net", 2)
    assert (found.replica.batch, found.replica.batch_wait_s, found.replica.timeout_s) == (16, 0.002, 10.0)
    assert found.auto == AutoServe(metric="val_acc", maximize=True)
    assert found.cell.nodes is not None and found.cell.nodes.max == 1
    assert (found.cell.ranks_per_node, found.cell.slots_per_node) == (1, 1)
    assert options("net --example x --auto loss").auto == AutoServe(metric="loss")
    assert options("net.head --name head --example x").variable == ""


def test_the_commands_are_those_that_no_model_is_called_like() -> None:
    assert set(VERBS) == set(WORDS)
    verb, values = parse("scale digits 3")  # type: ignore[misc]
    assert (verb.word, values) == ("scale", {"name": "digits", "replicas": 3})
    assert parse("")[0].word == "list"  # type: ignore[index]
    assert parse("back digits")[1] == {"name": "digits", "version": None}  # type: ignore[index]
    best = AutoServe(metric="val_acc", maximize=True)
    assert parse("auto digits val_acc:max")[1] == {"name": "digits", "metric": best}  # type: ignore[index]
    assert parse("auto digits off")[1] == {"name": "digits", "metric": None}  # type: ignore[index]


def test_a_model_called_like_a_command_is_told() -> None:
    with pytest.raises(OptionWrong, match="stop is a command of %serve; a model needs another name"):
        parse("net --name stop --example x")
    with pytest.raises(OptionWrong, match="list is a command of %serve"):
        parse("list --example x --name digits")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("net", "--example"),
        ("net --example x --name Digits", "small letters"),
        ("net --example x --value 1", "--value is the metric"),
        ("net --example x --auto acc:max --value nan", "not a number"),
        ("net --example x --timeout 2h", "--timeout"),
        ("net --example x --request-size 2000m", "--request-size"),
        ("net --example x --batch-wait 1s --timeout 0.5s", "--batch-wait"),
        ("net --example x --nodes 3", "--nodes"),
        ("net --exmple x", "--example"),
    ],
)
def test_a_wrong_line_is_told(line: str, told: str) -> None:
    with pytest.raises(OptionWrong) as wrong:
        parse(line)
    assert told in f"{wrong.value.message} {wrong.value.hint}"


def test_help_lists_options_and_commands() -> None:
    with pytest.raises(HelpRequested) as asked:
        parse("--help")
    for word in ("--example", "--auto", "%serve back", "%serve logs"):
        assert word in str(asked.value)
