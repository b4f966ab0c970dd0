"""`docker run -p 8888:8888 -e MINICLUSTER_URL=... IMAGE` on a user's machine: docs/laptop.md."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import nbformat

from minicluster_hub.launch.demo import SERVICE_PATH

from ... import messages
from ...hub.laptop import token_of
from ..cluster import LabCluster, Person
from ..machines.images import NOTEBOOK_IMAGE
from ..people import People
from ..remains import check_nothing_left
from .outside import CERTIFICATE, FINGERPRINT, Typist, jupyter, only_the_proxy, typing

HOME = ("-v", "minicluster-home:/home/mini")


async def test_a_container_trains_on_three_nodes_through_the_hubs_proxy_alone(
    cluster: LabCluster, people: People, tree: Path, tmp_path: Path
) -> None:
    guest = cluster.lab.switch_on_guest()
    url = ("-e", f"MINICLUSTER_URL={cluster.url}")
    async with people.logged_in("lina") as lina:
        await lina.visitor.http.get(SERVICE_PATH)
        with only_the_proxy(guest, cluster):
            token = (await token_of(lina.visitor))["token"]
            async with jupyter(guest, *url, *HOME, NOTEBOOK_IMAGE) as room, typing(room, token) as kernel:
                await trusts_the_fingerprint(kernel, cluster)
                await runs_the_quickstart(kernel, tree, lina)
                service = f"__import__('socket').socket().connect_ex(('{cluster.first.address}', 8083))"
                assert await kernel.evaluate(service) == str(errno.ECONNREFUSED), (
                    "the proxy is all it reaches"
                )
            async with jupyter(guest, *url, *HOME, NOTEBOOK_IMAGE) as room, typing(room) as kernel:
                shown = await kernel.shown("%distribute status")
                assert "succeeded" in shown, "the volume keeps the token"
            options = told_by_files(cluster, tmp_path, (await token_of(lina.visitor))["token"])
            async with jupyter(guest, *url, *options, NOTEBOOK_IMAGE) as room, typing(room) as kernel:
                assert "from afar" in await kernel.shown("%%distribute --nodes 3\nprint('from', 'afar')")
                assert "False" in await kernel.shown("__import__('os').path.exists('/home/mini/.config')")
    check_nothing_left(cluster)


async def trusts_the_fingerprint(kernel: Typist, cluster: LabCluster) -> None:
    """Connect: it is refused with a hint; compare the fingerprint, and follow the hint."""
    shown = await kernel.shown("%distribute connect")
    assert messages.CANNOT_PROVE in shown
    assert f"{messages.NOTHING_SENT} to it" in shown
    fingerprint = cluster.first.run(["sh", "-c", FINGERPRINT]).stdout.strip().partition("=")[2]
    assert fingerprint and fingerprint in shown
    wrong = fingerprint.replace(":", "").translate(str.maketrans("0123456789", "1234567890"))
    shown_to_wrong = await kernel.shown(f"%distribute connect --trust {wrong}")
    assert "has another fingerprint than --trust says" in shown_to_wrong
    line = re.search(r"%distribute connect \S+ --trust \S+", shown)
    assert line, shown
    shown = await kernel.shown(line.group())
    assert messages.CONNECTED.format(hub=f"{cluster.url}/", user="lina") in shown
    assert messages.MAY_DO_MORE not in shown


async def runs_the_quickstart(kernel: Typist, tree: Path, lina: Person) -> None:
    notebook = nbformat.read(tree / "notebooks" / "quickstart.ipynb", as_version=4)
    shown = [
        await kernel.shown(cell.source) for cell in notebook.cells if cell.cell_type == "code" and cell.source
    ]
    assert not [text for text in shown if "Traceback" in text]
    found = re.search(r"trained on 3 ranks, accuracy (\d\.\d+)", "\n".join(shown))
    assert found and float(found.group(1)) >= 0.97
    assert await kernel.evaluate("type(model).__name__, ranks, len(history)") == "('DigitNet', 3, 20)"
    (job,) = (await lina.ask("api/jobs"))["jobs"]
    assert sorted(job["nodes"]) == ["node1", "node2", "node3"]


def told_by_files(cluster: LabCluster, folder: Path, token: str) -> list[str]:
    """Pass a container the token and the hub's certificate by files, as in docs/laptop.md."""
    files = folder / "certs"
    files.mkdir()
    (files / "lab.pem").write_text(cluster.first.run(["sh", "-c", CERTIFICATE]).stdout)
    kept = files / "token"
    kept.write_text(f"{token}\n")
    os.chown(kept, 1000, 1000)
    kept.chmod(0o600)
    variables = ("MINICLUSTER_CA=/certs/lab.pem", "MINICLUSTER_TOKEN_FILE=/certs/token")
    return ["-v", f"{files}:/certs:ro", *(word for variable in variables for word in ("-e", variable))]
