"""A warm task after `pip install`: the next cell's ranks have the new packages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ..cluster import Cluster
from ..task_service import TaskService


def install(site: Path, wheels: Path, version: str) -> None:
    """Install a package of one module with the real pip, into the test's folder."""
    wheels.mkdir(exist_ok=True)
    about = f"growing-{version}.dist-info"
    file = wheels / f"growing-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("growing.py", f"version = {version!r}\n")
        made.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: growing\nVersion: {version}\n")
        made.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{about}/RECORD", "")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--upgrade",
        "--target",
        str(site),
    ]
    subprocess.run([*pip, str(file)], check=True)


@pytest.mark.full("half a minute of pip")
@pytest.mark.parametrize("nodes", [2])
async def test_the_next_cell_has_what_was_installed_since_the_task_began(tmp_path: Path, nodes: int) -> None:
    site = tmp_path / "site"
    install(site, tmp_path / "wheels", "1.0")
    # The zygote imports it at its start, like torch and numpy.
    (site / "sitecustomize.py").write_text("import growing\n")
    service = TaskService()
    await service.open()
    cluster = Cluster(service, tmp_path / "tasks", {"PYTHONPATH": str(site)})
    await cluster.start(nodes)
    try:
        source = "import growing, os\n(growing.version, os.getppid())"
        first = (await (await cluster.run(source, nodes=nodes)).result())["_"]
        again = (await (await cluster.run(source, nodes=nodes)).result())["_"]
        assert first == again and first[0] == "1.0", "the parent stays as long as nothing is installed"
        install(site, tmp_path / "wheels", "2.0")
        for _ in range(2):
            version, parent = (await (await cluster.run(source, nodes=nodes)).result())["_"]
            assert version == "2.0" and parent != first[1]
        for task in cluster.tasks:
            await service.order(task, None)
        await cluster.check_idle()
    finally:
        await cluster.close()
        await service.close()
