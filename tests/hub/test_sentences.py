"""If a cluster cannot start, one sentence says why, with an exit code."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from .clusters import free_port, run
from .conftest import Lab


def refused(told: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert told.returncode != 0
    assert "Traceback" not in told.stdout + told.stderr
    assert told.stderr.strip().count("\n") <= 1, told.stderr
    for part in parts:
        assert part in told.stderr


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused(
            run("--data", str(tmp_path / "data"), "--port", str(port)), f"Port {port}", "in use", "--port"
        )


def test_an_address_that_is_not_this_machines(tmp_path: Path) -> None:
    result = run("--data", str(tmp_path / "data"), "--host", "192.0.2.1", "--port", str(free_port()))
    refused(result, "192.0.2.1", "--host")


def test_a_data_folder_held_by_a_running_cluster(lab: Lab) -> None:
    result = run("--data", str(lab.cluster.data), "--port", str(free_port()))
    refused(result, f"process {lab.cluster.process.pid}", f":{lab.cluster.port}", "--data")


def test_a_data_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused(run("--data", str(tmp_path / "file" / "data")), str(tmp_path / "file" / "data"), "--data")


def test_a_data_folder_that_cannot_be_written() -> None:
    # Not even root makes folders there.
    refused(run("--data", "/proc/minicluster"), "/proc/minicluster", "cannot be written", "--data")


@pytest.mark.parametrize("database", ["hub/jupyterhub.sqlite", "service/minicluster.sqlite"])
def test_a_broken_database(tmp_path: Path, database: str) -> None:
    path = tmp_path / "data" / database
    path.parent.mkdir(parents=True)
    path.write_bytes(b"this is no database" * 100)
    refused(run("--data", str(tmp_path / "data"), "--port", str(free_port())), str(path), "broken")
    assert path.read_bytes().startswith(b"this is no database")


def test_a_broken_password_file(tmp_path: Path) -> None:
    path = tmp_path / "data" / "passwords.json"
    path.parent.mkdir()
    path.write_text("{")
    refused(run("--data", str(tmp_path / "data"), "--port", str(free_port())), str(path))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--prot", "1"], ["--prot"]),
        (["--port", "99999"], ["--port 99999"]),
        (["--port", "x"], ["--port", "'x'"]),
        (["--nodes", "0"], ["--nodes 0"]),
        (["--demo", "--add-user", "ada"], ["--add-user", "--demo"]),
        (["--add-user", "Ada Lovelace"], ["'Ada Lovelace'"]),
        (["--reset-password", "nobody"], ["'nobody'", "none yet"]),
    ],
)
def test_a_wrong_option(tmp_path: Path, arguments: list[str], parts: list[str]) -> None:
    result = run("--data", str(tmp_path / "data"), *arguments)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    for part in parts:
        assert part in result.stderr


@pytest.mark.full("tests/service/notebook/laptop/test_connect_tls has the other side")
def test_a_hub_that_cannot_be_reached_in_plain_text_unnoticed(tmp_path: Path) -> None:
    from .clusters import RunningCluster

    cluster = RunningCluster(tmp_path / "data", "--host", "0.0.0.0")
    try:
        assert "without TLS" in cluster.words
        assert cluster.words.strip().count("\n") < 15
    finally:
        cluster.end()
        cluster.kill()
