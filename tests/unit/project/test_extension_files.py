"""The wheel's files for Jupyter: both halves of the extension, with all files that they load."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

LAB = "share/jupyter/labextensions/minicluster/"
SERVER = "etc/jupyter/jupyter_server_config.d/minicluster.json"


def installed(tree: Path) -> dict[str, Path]:
    """Return the wheel's data files, by their path in an environment."""
    settings = tomllib.loads((tree / "pyproject.toml").read_text())
    shared = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    found = {}
    for source, target in shared.items():
        path = tree / source
        files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
        found |= {f"{target}/{one.relative_to(path)}" if path.is_dir() else target: one for one in files}
    return found


def test_jupyterlab_finds_the_extension_and_each_file_that_it_loads(tree: Path) -> None:
    files = installed(tree)
    build = json.loads(files[f"{LAB}package.json"].read_text())["jupyterlab"]["_build"]
    assert LAB + build["load"] in files
    assert f"{LAB}panel.css" in files
    scripts = {name: path.read_text() for name, path in files.items() if name.endswith(".js")}
    wanted = {LAB + name for text in scripts.values() for name in re.findall(r'from "\./([\w.]+)"', text)}
    assert wanted and wanted <= set(scripts)


def test_the_jupyter_server_finds_its_half(tree: Path) -> None:
    data = json.loads(installed(tree)[SERVER].read_text())
    assert data["ServerApp"]["jpserver_extensions"] == {"minicluster.server_extension": True}
