"""A Jupyter outside of the hub: a token from the hub's page, then all requests through the hub's proxy."""

from __future__ import annotations

import asyncio
import stat
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from minicluster.client.address import understand
from minicluster.client.connection import PERMISSIONS
from minicluster.client.reach import HubNotFound, find_hub
from minicluster_hub.configure import USER_SCOPES
from minicluster_hub.launch.errors import VisitFailed
from minicluster_hub.launch.visitor import Visitor

from .. import messages
from ..patience import WITHIN_S
from .conftest import Lab
from .laptop import laptop_in, token_of

CELL = """%%distribute --nodes 2 --plain
import os, torch
print("rank", os.environ["RANK"], "was given", given)
total = torch.ones(3) * given
"""


def test_the_permissions_are_those_that_the_hub_gives() -> None:
    assert set(PERMISSIONS.split()) == set(USER_SCOPES)


async def test_the_token_page_offers_to_fill_them_in(ada: Visitor) -> None:
    page = (await ada.http.get("/hub/token")).text
    assert "%distribute connect" in page
    for scope in PERMISSIONS.split():
        assert scope in page, scope


async def test_a_job_by_url_and_token(lab: Lab, ada: Visitor, tmp_path: Path) -> None:
    token = (await token_of(ada))["token"]
    async with laptop_in(tmp_path) as laptop:
        shown = await laptop.run(f"%distribute connect {lab.cluster.url}/hub/home", token)
        assert messages.CONNECTED.format(hub=f"{lab.cluster.url}/", user="ada") in shown
        assert PERMISSIONS in shown, "nobody knows which permissions to give"
        assert messages.MAY_DO_MORE not in shown
        await laptop.run("given = 7")
        shown = await laptop.run(CELL)
        assert "rank 0 was given 7" in shown
        assert await laptop.run("total.tolist()") == "[7.0, 7.0, 7.0]"
    kept = tmp_path / ".config" / "minicluster" / "clusters.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert token in kept.read_text()


@pytest.mark.full("tests/service/notebook/laptop/test_connect has it without a hub")
async def test_the_next_kernel_is_connected_by_itself(lab: Lab, ada: Visitor, tmp_path: Path) -> None:
    token = (await token_of(ada))["token"]
    async with laptop_in(tmp_path) as laptop:
        await laptop.run(f"%distribute connect {lab.cluster.url}", token)
    async with laptop_in(tmp_path) as laptop:
        shown = await laptop.run("%%distribute --nodes 1 --plain\nprint('from', 'afar')")
        assert messages.CONNECTED.format(hub=f"{lab.cluster.url}/", user="ada") in shown
        assert "from afar" in shown


@pytest.mark.full("in the gate a job by URL and token")
async def test_a_container_is_told_url_and_token_by_its_environment(
    lab: Lab, ada: Visitor, tmp_path: Path
) -> None:
    environment = {"MINICLUSTER_URL": lab.cluster.url, "MINICLUSTER_TOKEN": (await token_of(ada))["token"]}
    async with laptop_in(tmp_path, **environment) as laptop:
        assert "from afar" in await laptop.run("%%distribute --nodes 1 --plain\nprint('from', 'afar')")
    assert not (tmp_path / ".config").exists()


async def short_lived(visitor: Visitor) -> str:
    """Return a token for seconds. A busy hub does not find one again that expired while it was made."""
    for seconds in (1, 5):
        with suppress(VisitFailed):
            return (await token_of(visitor, expires_in=seconds))["token"]
    return (await token_of(visitor, expires_in=20))["token"]


async def test_an_expired_token(lab: Lab, ada: Visitor, tmp_path: Path) -> None:
    token = await short_lived(ada)
    async with httpx.AsyncClient(
        trust_env=False, headers={"Authorization": f"token {token}"}, timeout=WITHIN_S
    ) as http:
        async with asyncio.timeout(WITHIN_S):
            while (await http.get(f"{lab.cluster.url}/hub/api/user")).is_success:
                await asyncio.sleep(0.2)
    async with laptop_in(tmp_path) as laptop:
        shown = await laptop.run(f"%distribute connect {lab.cluster.url}", token)
        assert "expired" in shown
        assert f"{lab.cluster.url}/hub/token" in shown
    assert not (tmp_path / ".config").exists()


async def test_a_kept_token_that_was_revoked_is_asked_for_anew(
    lab: Lab, ada: Visitor, tmp_path: Path
) -> None:
    gone, good = await token_of(ada), await token_of(ada)
    folder = tmp_path / ".config" / "minicluster"
    folder.mkdir(parents=True)
    kept = folder / "clusters.json"
    kept.touch(0o600)
    kept.write_text(f'{{"clusters": [{{"url": "{lab.cluster.url}/", "token": "{gone["token"]}"}}]}}')
    await ada.call("DELETE", f"/hub/api/users/ada/tokens/{gone['id']}", "/hub/")
    async with laptop_in(tmp_path) as laptop:
        assert "revoked" in await laptop.run("%distribute status")
        shown = await laptop.run("%distribute connect", good["token"])
        assert "expired or was revoked" in shown
        assert messages.CONNECTED_TO in shown
    assert gone["token"] not in kept.read_text()


@pytest.mark.parametrize(
    ("scopes", "words"),
    [
        (["access:services!service=minicluster"], messages.TOKEN_MAY_NOT),
        (["access:services!service=minicluster", "custom:minicluster:read!user"], messages.CONNECTED_TO),
        (["inherit"], f"{messages.MAY_DO_MORE} than run jobs"),
    ],
)
async def test_tokens_that_may_too_little_or_too_much(
    lab: Lab, ada: Visitor, tmp_path: Path, scopes: list[str], words: str
) -> None:
    token = (await token_of(ada, scopes=scopes))["token"]
    async with laptop_in(tmp_path) as laptop:
        assert words in await laptop.run(f"%distribute connect {lab.cluster.url}", token)
        if words == messages.CONNECTED_TO:
            shown = await laptop.run("%%distribute --nodes 1\n1")
            assert messages.TOKEN_MAY_NOT in shown
            assert "custom:minicluster:submit" in shown


async def test_the_panel_is_there_too(lab: Lab, ada: Visitor, tmp_path: Path) -> None:
    """Its code and its data come from the kernel; only its link leads to the hub, by its whole address."""
    token = (await token_of(ada))["token"]
    async with laptop_in(tmp_path) as laptop:
        await laptop.run(f"%distribute connect {lab.cluster.url}", token)
        await laptop.run(
            "seen = []\nfrom minicluster.display.panel import LiveWidget\nopened = LiveWidget._open\n"
            "def _open(self, view, now):\n"
            "    opened(self, view, now)\n    seen.append(self._widget.get_state())\n"
            "LiveWidget._open = _open"
        )
        await laptop.run("%%distribute --nodes 1\nprint('hello')")
        shown = await laptop.run("seen[0]['state']['head']['log']")
        assert shown.strip("'").startswith(f"{lab.service_url}jobs/")
        assert "export" in await laptop.run("seen[0]['_esm']")


async def test_addresses_at_the_hubs_own_proxy(lab: Lab, ada: Visitor) -> None:
    for path in (
        "",
        "/hub/login?next=%2Fhub%2F",
        "/user/ada/lab/tree/a.ipynb",
        "/services/minicluster/jobs/1",
    ):
        found = await asyncio.to_thread(find_hub, understand(lab.cluster.url + path), None)
        assert found.url == f"{lab.cluster.url}/"
    with pytest.raises(HubNotFound, match=messages.NO_HTTPS):
        await asyncio.to_thread(find_hub, understand(lab.cluster.url).by("https"), None)
