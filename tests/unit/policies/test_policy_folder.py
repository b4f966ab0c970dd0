"""The folder of custom policies, as used by `up` and `./run`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from minicluster_hub.cluster.commands.options import parse
from minicluster_hub.cluster.plan.choices import Choices
from minicluster_hub.cluster.plan.choosing import chosen
from minicluster_hub.launch.options import parse as parse_run

TEXT = "def plan(snapshot): ...\n"


def test_up_reads_the_files_and_keeps_them_until_it_is_given_others(tmp_path: Path) -> None:
    (tmp_path / "ours.py").write_text(TEXT)
    (tmp_path / "notes.txt").write_text("no policy")
    now = chosen(Choices(), parse(["up", "--policies", str(tmp_path)]))
    assert now.policies == {"ours": TEXT}
    assert chosen(Choices.of(asdict(now)), parse(["up"])).policies == {"ours": TEXT}
    (tmp_path / "ours.py").unlink()
    assert chosen(now, parse(["up", "--policies", str(tmp_path)])).policies == {}


def test_a_cluster_of_an_earlier_version_has_no_policies_of_its_own() -> None:
    before = {name: value for name, value in asdict(Choices()).items() if name != "policies"}
    assert Choices.of(before).policies == {}


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("what is this.py", TEXT.encode(), "a policy's name has letters, digits, - and _ only"),
        ("ours.py", b"\xff", "has a file that is not in UTF-8"),
        ("ours.py", b"#" * 400_001, "its policies have 400001 bytes; 400000 is the most"),
        (None, b"", "-v $PWD/policies:/policies:ro"),
    ],
)
def test_up_says_what_is_wrong_with_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str | None, content: bytes, told: str
) -> None:
    if name:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit):
        parse(["up", "--policies", str(tmp_path if name else tmp_path / "gone")])
    assert told in capsys.readouterr().err


def test_run_takes_a_folder_and_says_if_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse_run([]).policies is None
    assert parse_run(["--policies", str(tmp_path)]).policies == tmp_path
    with pytest.raises(SystemExit):
        parse_run(["--policies", str(tmp_path / "gone")])
    assert "there is no such folder" in capsys.readouterr().err
