"""HAProxy's configuration: what it checks, and that HAProxy takes it."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from minicluster_hub.serving.front.config import MAPS, FrontFiles, config
from minicluster_hub.serving.front.figures import Figures

PREFIX = "/services/minicluster/"


def test_haproxy_takes_its_configuration_without_a_warning(tmp_path: Path) -> None:
    if shutil.which("haproxy") is None:
        pytest.skip("HAProxy is not installed")
    files = FrontFiles(tmp_path)
    for name in MAPS:
        files.map(name).touch()
    with socket.create_server(("127.0.0.1", 0)) as port:
        text = config(files, [port.fileno()], PREFIX, connections=1000, threads=2, slots=2, servers=3)
        files.config.write_text(text)
        found = subprocess.run(
            ["haproxy", "-c", "-f", str(files.config)],
            pass_fds=[port.fileno()],
            capture_output=True,
            text=True,
            check=False,
        )
    assert found.returncode == 0, found.stderr + found.stdout
    assert "[WARNING]" not in found.stderr, found.stderr


def test_the_owners_code_gets_no_header_that_is_not_listed() -> None:
    text = config(FrontFiles(Path("front")), [3], PREFIX, connections=100, threads=1, slots=1)
    (rule,) = [line for line in text.splitlines() if "http-request del-header" in line]
    for header in ("authorization", "cookie", "forwarded", "minicluster-replica"):
        assert header not in rule
    assert "content-type" in rule and "content-length" in rule and "host" in rule
    # What comes after the rule is not removed by it.
    assert text.index("set-header Minicluster-Replica") > text.index(rule)


def test_models_are_found_below_any_prefix() -> None:
    for prefix, field in ((PREFIX, 5), ("/jupyter/services/minicluster/", 6)):
        text = config(FrontFiles(Path("front")), [3], prefix, connections=100, threads=1, slots=1)
        assert f"path,field({field},/,2)" in text
        assert f"acl asks path,field({field + 2},/) " in text
        assert f"path_beg {prefix}answers/" in text


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
    figures.forget("ada/digits")
    assert figures.of("ada/digits").requests == 0
