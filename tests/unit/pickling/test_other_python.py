"""Different minor versions of Python on laptop and ranks: real interpreters exchange pickles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

import minicluster
from minicluster.capture.versions import code_refusal, differences, target_limits
from minicluster.wire import Versions

from ... import messages

NOTEBOOK = """
import collections, datetime, enum, pathlib, re
def train(x):
    return [y * 2 for y in range(x) if y]
class Net:
    def __init__(self, weights): self.weights = weights
    def total(self): return sum(w for w in self.weights)
class Settings: size = 3
Point = collections.namedtuple("Point", "x y")
net = Net([1, 2, 3])
data = {"a": [1, 2.5, None, b"y", {1}, (1,)], "when": datetime.datetime(2020, 1, 1)}
data["path"] = pathlib.Path("a/b")
settings = Settings
"""
WRITE = """
import json, sys
from pathlib import Path
from minicluster.pickling.pickling import NotPicklable, TargetLimits, pack_names
folder, names = Path(sys.argv[1]), sys.argv[3:]
space = {"__name__": "__main__"}
exec(sys.stdin.read(), space)
against = TargetLimits(sys.argv[2])
refused = []
for name in names:
    try:
        (folder / name).write_bytes(pack_names({name: space[name]}, space, "Names", 10**6, against).data)
    except NotPicklable as error:
        refused.append(error.message)
print(json.dumps(refused))
"""
READ = """
import json, sys
from pathlib import Path
from minicluster.pickling.pickling import ForeignCode, loads
told = {}
for name in sys.argv[2:]:
    try:
        told[name] = repr(loads((Path(sys.argv[1]) / name).read_bytes(), {}, True)[name])
    except ForeignCode as error:
        told[name] = "ForeignCode"
print(json.dumps(told))
"""


def other_pythons() -> Iterator[str | Path | None]:
    """Return interpreters of other minor versions, on PATH or beside this one."""
    beside = Path(sys.base_prefix).parent
    for minor in range(11, 16):
        if minor == sys.version_info.minor:
            continue
        here = [shutil.which(f"python3.{minor}"), *beside.glob(f"3.{minor}.*/bin/python3")]
        yield from list(filter(works, here))[:1]


def works(python: str | Path | None) -> bool:
    return bool(python) and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


@pytest.fixture(scope="module", params=range(2))
def other(request, needs) -> str:
    found = list(map(str, other_pythons()))
    needs(found, "no Python of another minor version is on this machine")
    if request.param >= len(found):
        pytest.skip("only one other Python is on this machine")
    return found[request.param]


@pytest.fixture
def run(tmp_path):
    """Run a script by any Python, with our source and cloudpickle, which are pure Python."""
    site = tmp_path / "site"
    site.mkdir()
    for package in (minicluster, cloudpickle):
        (site / package.__name__).symlink_to(Path(package.__file__).parent)

    def run(python: str, script: str, *arguments: str):
        environ = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [python, "-c", script, str(tmp_path), *arguments],
            input=NOTEBOOK,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def both_ways(other: str) -> list[tuple[str, str]]:
    return [(other, sys.executable), (sys.executable, other)]


def test_data_travels_between_two_pythons(other, run):
    for sends, takes in both_ways(other):
        assert run(sends, WRITE, "", "data", "settings") == []
        result = run(takes, READ, "data", "settings")
        assert "datetime.datetime(2020, 1, 1, 0, 0)" in result["data"]
        assert "Path('a/b')" in result["data"]
        assert "Settings" in result["settings"]


def test_code_of_another_python_is_refused_before_it_can_crash(other, run):
    names = ["train", "net", "Point"]
    for sends, takes in both_ways(other):
        assert run(sends, WRITE, "", *names) == []
        assert run(takes, READ, *names) == dict.fromkeys(names, "ForeignCode")


def test_a_writer_who_knows_refuses_by_name(other, run):
    [train, net, data] = ["train", "net", "data"]
    refused = run(other, WRITE, "is code of another Python", train, net, data)
    assert len(refused) == 2
    assert "`train` (function" in refused[0]
    assert "`net` (Net" in refused[1]
    assert all("is code of another Python" in message for message in refused)


HERE = Versions(python="3.12.1", minicluster="0.1.0", cloudpickle="3.1.2", torch="2.13.0")


def there(**changed: str) -> Versions:
    return HERE.model_copy(update=changed)


def test_the_same_on_both_sides_says_nothing():
    assert differences(HERE, there(python="3.12.9", torch="2.13.1+cu128")) == []
    assert not code_refusal(HERE, there(python="3.12.9"))
    assert not target_limits(HERE, None).code_refusal


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"python": "3.11.7"}, ("Python 3.12 here, 3.11", "Works: cells", "Does not: functions")),
        ({"torch": "2.10.0+cpu"}, ("torch 2.13.0 here", "Works: tensors", "pip install torch==2.10.0")),
        ({"minicluster": "0.2.0"}, ("minicluster 0.1.0 here", "minicluster[notebook]==0.2.0")),
    ],
)
def test_each_difference_says_what_works_and_what_does_not(changed, words):
    [difference] = differences(HERE, there(**changed))
    assert all(word in difference for word in words)


def test_a_laptop_without_torch():
    laptop = HERE.model_copy(update={"torch": ""})
    [difference] = differences(laptop, HERE)
    assert messages.NO_TORCH_HERE in difference
    assert "torch" in target_limits(HERE, laptop).missing_modules
    assert not target_limits(laptop, HERE).missing_modules


def test_a_cluster_that_ran_nothing_yet_is_not_guessed():
    [difference] = differences(HERE, None)
    assert "not known" in difference
