"""`up`, `upgrade`, `status` and `down` as a whole, on a fake engine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from minicluster_hub.cluster.commands.down import down
from minicluster_hub.cluster.commands.options import parse
from minicluster_hub.cluster.commands.status import status
from minicluster_hub.cluster.commands.up import up, upgrade
from minicluster_hub.cluster.errors import ClusterMissing, OptionUnusable
from minicluster_hub.cluster.plan import record
from minicluster_hub.cluster.plan.plan import PLATFORM

from ... import messages
from .engine import DIGEST, FakeEngine

WITH = ["--notebook-image=lab/notebook:1"]


@pytest.fixture(autouse=True)
def docker_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        yield


class Passwords:
    """The hub's container: it shows the first password until a user has seen it."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, command: list[str]) -> tuple[int, str]:
        match command[-1]:
            case "ready":
                return 0, "{}"
            case "first":
                return 0, "" if self.seen else "first-password"
            case "told":
                self.seen = True
                return 0, ""
            case _:
                return 0, "publisher:word"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(("lab/", "docker.io/"), Passwords())


def test_up_makes_a_cluster_and_a_second_one_changes_nothing(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up(engine, parse(["up", *WITH])) == 0
    text = capsys.readouterr().out
    assert f"{messages.READY}https://10.0.0.1\n" in text and "first-password" in text
    assert "docker swarm join --token SWMTKN-1 10.0.0.1:2377" in text
    roles = [name.removeprefix("minicluster_") for name in engine.names("service")]
    assert roles == [role for role in PLATFORM if role != "policy"]
    before = {kind: list(found) for kind, found in engine.kept.items()}
    assert up(engine, parse(["up"])) == 0
    text = capsys.readouterr().out
    assert f"({messages.NOTHING_CHANGED})" in text and "first-password" not in text
    assert {kind: list(found) for kind, found in engine.kept.items()} == before
    assert "update_service" not in engine.calls


def test_an_image_that_no_registry_has_goes_into_the_clusters_own(engine: FakeEngine) -> None:
    engine.images = ("docker.io/",)
    assert up(engine, parse(["up", *WITH])) == 0
    known = record.load(engine)
    assert known and known.images.notebook == f"127.0.0.1:5100/minicluster/notebook@{DIGEST}"
    assert known.images.hub == "sha256:1d" and not known.images.hub_is_published
    assert engine.names("service")[-1] == "minicluster_proxy"


def test_an_option_changes_its_services_and_removes_what_is_no_more_planned(
    engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "ours.py").write_text("def plan(snapshot): ...")
    assert up(engine, parse(["up", *WITH, "--policies", str(tmp_path)])) == 0
    assert "minicluster_policy" in engine.names("service")
    (tmp_path / "ours.py").unlink()
    assert up(engine, parse(["up", "--policies", str(tmp_path), "--upstream", "none"])) == 0
    assert not {"minicluster_policy", "minicluster_cache"} & set(engine.names("service"))
    assert not [name for name in engine.names("config") if "policy" in name or "cache" in name]
    assert messages.NOTHING_CHANGED not in capsys.readouterr().out


def test_an_upgrade_remembers_the_images_before(engine: FakeEngine) -> None:
    with pytest.raises(ClusterMissing, match=f"{messages.NO_CLUSTER_HERE} to upgrade"):
        upgrade(engine, parse(["upgrade"]))
    assert up(engine, parse(["up", *WITH])) == 0
    assert upgrade(engine, parse(["upgrade", "--notebook-image=lab/other:2"])) == 0
    known = record.load(engine)
    assert known and known.former and known.former.notebook == f"127.0.0.1:5101/lab/notebook@{DIGEST}"
    assert known.images.notebook == f"127.0.0.1:5101/lab/other@{DIGEST}"
    assert known.choices.notebook_image == "lab/other:2"
    service = engine.inspect_service("minicluster_service")["Spec"]["TaskTemplate"]["ContainerSpec"]
    assert f"--SwarmEngine.images={known.former.notebook}" in service["Args"]


def test_a_hub_image_without_a_notebook_image_is_refused_before_anything_is_made(engine: FakeEngine) -> None:
    with pytest.raises(OptionUnusable, match="--notebook-image"):
        up(engine, parse(["up"]))
    assert not any(engine.kept.values())


def test_down_keeps_the_record_and_with_data_nothing(
    engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    up(engine, parse(["up", *WITH]))
    assert status(engine, parse(["status"])) == 0
    assert "hub          1 of 1" in capsys.readouterr().out
    assert down(engine, parse(["down"])) == 0
    assert [name[:18] for name in engine.names("config")] == ["minicluster_record"]
    assert not (engine.kept["service"] or engine.kept["secret"] or engine.kept["network"])
    assert status(engine, parse(["status"])) == 1
    assert "The cluster is down" in capsys.readouterr().out
    with pytest.raises(OptionUnusable, match="--yes"):
        down(engine, parse(["down", "--data"]))
    assert down(engine, parse(["down", "--data", "--yes", "--leave"])) == 0
    assert not any(engine.kept.values()) and not engine.in_swarm
