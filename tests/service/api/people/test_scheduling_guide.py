"""The commands of docs/scheduling.md, run as written."""

import asyncio
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from ....patience import eventually
from ..client import PREFIX

GUIDE = (Path(__file__).resolve().parents[4] / "docs" / "scheduling.md").read_text()
COMMANDS = [block for block in re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL) if "curl" in block]
FEWEST = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[0]
pytestmark = pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")


async def run(api, block, folder, token="root-token"):
    """Run a block of the guide in a shell; return its exit code and output."""
    known = {**os.environ, "HUB": api.url.removesuffix(PREFIX), "TOKEN": token}
    pipe = asyncio.subprocess.PIPE
    shell = await asyncio.create_subprocess_exec(
        "bash", "-eo", "pipefail", "-c", block, env=known, cwd=folder, stdout=pipe, stderr=pipe
    )
    printed, errors = await shell.communicate()
    return shell.returncode, printed.decode() + errors.decode()


def by_word(word):
    (block,) = (block for block in COMMANDS if word in block)
    return block


def test_the_guide_has_four_blocks_of_commands():
    assert len(COMMANDS) == 4


async def test_an_admin_changes_the_policy_and_a_user_does_not(api, tmp_path):
    change = by_word("time_slice")
    code, printed = await run(api, change, tmp_path)
    assert code == 0, printed
    choice = api.context.policy_manager.active.choice
    assert (choice.policy, choice.placement, choice.options) == (
        "time_slice",
        "locality",
        {"quantum_s": 1800},
    )
    code, printed = await run(api, change, tmp_path, token="ada-token")
    assert code != 0 and "scope_missing" in printed


async def test_an_admin_activates_the_guides_own_policy(api, tmp_path):
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "fewest.py").write_text(FEWEST)
    code, printed = await run(api, by_word("fewest"), tmp_path)
    assert code == 0, printed
    active = json.loads(printed)["in_force"]
    assert (active["choice"]["policy"], active["by"]) == ("fewest", "root")
    await api.submit()
    await eventually(lambda: api.engine.launches)


async def test_hours_are_told_as_json_and_as_a_table(api, tmp_path):
    code, printed = await run(api, by_word("usage.csv"), tmp_path)
    assert code == 0, printed
    assert printed.startswith('{"') and printed.endswith(
        "period,group,gpu_hours,slot_hours,server_gpu_hours,jobs,shared_gpu_hours\r\n"
    )


async def test_an_admin_reserves_announces_maintenance_and_drains(api, tmp_path):
    code, printed = await run(api, by_word("drain"), tmp_path)
    assert code == 0, printed
    claims = (await api.ask("GET", "api/reservations")).json()["claims"]
    assert [claim["kind"] for claim in claims] == ["drain", "reservation", "maintenance"]
