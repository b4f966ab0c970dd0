"""HAProxy's configuration: what it checks, and that HAProxy takes it."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from minicluster_hub.serving.front.config import MAPS, FrontFiles, config
from minicluster_hub.serving.front.figures import Figures


def test_haproxy_takes_its_configuration_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("haproxy") is None:
        pytest.skip("HAProxy is not installed")
    files = FrontFiles(tmp_path)
    for name in MAPS:
        files.map(name).touch()
    with socket.create_server(("127.0.0.1", 0)) as port:
        files.config.write_text(
            config(files, [port.fileno()], "/services/minicluster/", connections=1000, slots=2, servers=3)
        )
        found = subprocess.run(
            ["haproxy", "-c", "-f", str(files.config)],
            pass_fds=[port.fileno()],
            capture_output=True,
            text=True,
            check=False,
        )
    assert found.returncode == 0, found.stderr + found.stdout
    assert "[WARNING]" not in found.stderr, found.stderr


def test_an_askers_secrets_do_not_reach_the_owners_code(tmp_path: Path) -> None:
    text = config(FrontFiles(tmp_path), [3], "/services/minicluster/", connections=100, slots=1)
    for header in ("authorization", "cookie", "x-xsrftoken", "x-forwarded -m beg"):
        assert f"http-request del-header {header}\n" in text
    assert "bind fd@3" in text


def test_the_figures_are_of_the_newest_requests() -> None:
    now = [1000.0]
    figures = Figures(lambda: now[0])
    for number in range(100):
        figures.count("ada/digits", 200, number / 1000)
    figures.count("ada/digits", 500, 1.0, weight=10)
    found = figures.of("ada/digits")
    assert (found.requests, found.errors) == (110, 10)
    assert found.p50_s == pytest.approx(0.05)
    assert found.p99_s == pytest.approx(0.099)
    assert found.per_s == pytest.approx(110 / 60)
    now[0] += 120
    assert figures.of("ada/digits").per_s == 0
    assert figures.of("ada/other").p50_s is None
