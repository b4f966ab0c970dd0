"""The bash part of `./run` and `./test`: messages about missing tools, and when it does nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

SETUP = Path(__file__).resolve().parents[3] / "hub_ext" / "minicluster_hub" / "launch" / "setup.sh"
CONSTRAINTS = SETUP.parents[3] / "constraints.txt"
INPUTS = (
    "pyproject.toml",
    "constraints.txt",
    "images/requirements.py",
    "images/hub/package-lock.json",
    "hub_ext/minicluster_hub/pages/npm/package-lock.json",
    "images/ipython_kernel_config.py",
    "images/jupyterlab_overrides.json",
    "kernels/minicluster/lab/index.js",
    "kernels/minicluster/display/panel.js",
    "kernels/minicluster/display/panel.css",
    "hub_ext/minicluster_hub/pages/static/sparkline.js",
    "kernels/minicluster/server_extension/enabled.json",
)
PAGE_PACKAGES = "hub_ext/minicluster_hub/pages/npm/node_modules"


def bash(tree: Path, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script after sourcing the set-up for a tree."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'tree="$1"; . "$2"; {script}', "bash", str(tree), str(SETUP)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with the files of a completed set-up."""
    for name in (*INPUTS, "hub_ext/minicluster_hub/launch/setup.sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "configurable-http-proxy"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    (tmp_path / PAGE_PACKAGES).mkdir()
    (tmp_path / ".venv" / ".proxy-files").write_text(f"{programs / 'python'}\n")
    assert bash(tmp_path, 'fingerprint hub "" >"$venv/.ready-hub"').returncode == 0
    return tmp_path


def is_ready(tree: Path, torch_spec: str = "") -> bool:
    return bash(tree, f'is_ready hub "{torch_spec}"').returncode == 0


def fake_python(folder: Path, missing: str) -> Path:
    """A Python that lacks a module."""
    program = folder / "python3"
    program.write_text(f'#!/bin/bash\n[ "$2" = "import {missing}" ] && exit 1\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return program


def test_nothing_is_done_a_second_time(tree: Path) -> None:
    assert is_ready(tree)


@pytest.mark.parametrize("name", INPUTS)
def test_a_change_of_what_is_installed_is_seen(tree: Path, name: str) -> None:
    (tree / name).write_text("changed")
    assert not is_ready(tree)


def test_another_torch_is_seen(tree: Path) -> None:
    assert not is_ready(tree, "torch==2.12.0")


@pytest.mark.parametrize("name", ["bin/python", "bin/configurable-http-proxy"])
def test_a_lost_program_is_seen(tree: Path, name: str) -> None:
    (tree / ".venv" / name).unlink()
    assert not is_ready(tree)


def test_lost_packages_of_the_pages_are_seen(tree: Path) -> None:
    (tree / PAGE_PACKAGES).rmdir()
    assert not is_ready(tree)


def test_a_node_that_went_away_is_seen(tree: Path) -> None:
    (tree / ".venv" / ".proxy-files").write_text("/nowhere/node\n")
    assert not is_ready(tree)


@pytest.mark.parametrize(
    ("module", "package"),
    [("venv", "-venv"), ("ensurepip", "-venv"), ("sqlite3", "stdlib"), ("ssl", "stdlib")],
)
def test_a_missing_module_is_told_with_its_package(tmp_path: Path, module: str, package: str) -> None:
    result = bash(tmp_path, f'check_modules "{fake_python(tmp_path, module)}"')
    assert result.returncode == 1
    assert f"lacks the module {module}" in result.stderr
    assert package in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_python_that_has_all_is_taken(tmp_path: Path) -> None:
    assert bash(tmp_path, f'check_modules "{fake_python(tmp_path, "nothing")}"').returncode == 0
    found = bash(tmp_path, "find_python", PYTHON=sys.executable)
    assert found.stdout.strip() == sys.executable


def test_no_python_is_told(tmp_path: Path) -> None:
    result = bash(tmp_path, 'PATH="$tree" find_python')
    assert result.returncode == 1
    assert "Python 3.11 or newer is missing" in result.stderr


def test_a_failed_command_is_told_with_its_last_lines_and_its_log(tree: Path) -> None:
    result = bash(tree, "logged 'Installing x' bash -c 'echo the cause; exit 3'")
    assert result.returncode == 1
    assert "Installing x failed" in result.stderr
    assert "the cause" in result.stderr
    assert str(tree / ".venv" / "setup.log") in result.stderr


def test_the_proxy_command_passes_its_arguments_on(tree: Path) -> None:
    program = tree / "a program"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    result = bash(
        tree, f'write_proxy_command "{program}" "first arg"; "$venv/bin/configurable-http-proxy" "a b" c'
    )
    assert result.stdout == "first arg|a b|c|"


def of_the_wheel(source: Path) -> dict[Path, bytes]:
    """Return the wheel's files for Jupyter, by their path in the environment."""
    project = tomllib.loads((source / "pyproject.toml").read_text())
    found: dict[Path, bytes] = {}
    for here, there in project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"].items():
        path = source / here
        for file in path.iterdir() if path.is_dir() else [path]:
            found[Path(there, file.name) if path.is_dir() else Path(there)] = file.read_bytes()
    return found


def test_the_set_up_brings_the_same_extensions_as_a_wheel(tmp_path: Path) -> None:
    source = SETUP.parents[3]
    script = f'venv="{tmp_path}"; install_extensions'
    assert bash(source, script).returncode == 0
    files = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert files == of_the_wheel(source)


def test_what_the_extension_loads_is_installed() -> None:
    files = {path.name: data.decode() for path, data in of_the_wheel(SETUP.parents[3]).items()}
    loaded = {
        name for text in files.values() for name in re.findall(r"""["'](?:\./)?(\w+\.(?:js|css))["']""", text)
    }
    assert loaded >= {"remoteEntry.js", "index.js", "panel.js", "panel.css"}
    assert loaded <= set(files)


def test_a_swapped_package_is_refused(tmp_path: Path) -> None:
    """The index serves another file under a pinned name and version."""
    wheel(tmp_path, "tqdm", pinned("tqdm"))
    (tmp_path / "requirements.txt").write_text("tqdm\n")
    arguments = ["--no-index", "--find-links", tmp_path, "--target", tmp_path / "target", "--no-deps"]
    result = subprocess.run(
        [sys.executable, "-m", "pip", "install", *arguments, "-c", CONSTRAINTS, "-r", "requirements.txt"],
        env={name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in result.stderr


def test_all_that_is_installed_has_a_hash() -> None:
    lines = CONSTRAINTS.read_text().replace("\\\n", "").splitlines()
    entries = [line for line in lines if not line.startswith("#")]
    assert len(entries) > 150
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def pinned(package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    assert found
    return found[1]


def wheel(folder: Path, name: str, version: str) -> None:
    """Make another author's wheel with this name."""
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "raise SystemExit('not the package')\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as packed:
        for path, text in files.items():
            packed.writestr(path, text)
