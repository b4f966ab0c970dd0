"""A task reports when its node's disk is full."""

from __future__ import annotations

import shutil
from pathlib import Path

from minicluster.runtime.agent.task_limits import disk_trouble


def test_a_disk_with_less_than_wanted_is_told_also_for_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert disk_trouble(tmp_path / "not" / "yet", least_bytes=free // 2) == ""
    assert disk_trouble(tmp_path / "not" / "yet", least_bytes=free * 2).startswith("its disk is full (")
