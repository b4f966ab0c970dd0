"""Data sets on three hosts: pushed from a notebook, read by ranks, hidden from other users."""

from __future__ import annotations

import ast
import asyncio
import re
from typing import Any

from minicluster_hub.launch.kernel import KernelConnection

from ... import messages
from ..behind import query
from ..cluster import LabCluster, Person
from ..machines.processes import wait_for
from ..people import People, text
from ..remains import check_nothing_left
from .data import data_set_agent, ready

__all__ = ["ready"]  # a fixture
LOOK = """
import hashlib, os
from pathlib import Path
def look(root):
    files = [path for path in sorted(root.rglob("*")) if path.is_file()]
    digests = {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
    return digests, [str(p.relative_to(root)) for p in files if p.stat().st_mode & 0o100]
"""
MAKE = """
pets = Path("~/pets").expanduser()
for number in range(300):
    (pets / "cats" / f"{number % 3}").mkdir(parents=True, exist_ok=True)
    (pets / "cats" / f"{number % 3}" / f"{number}.png").write_bytes(os.urandom(1000 + number))
(pets / "large.bin").write_bytes(os.urandom(40_000_000))
(pets / "tool").write_text("#!/bin/sh")
(pets / "tool").chmod(0o700)
(pets / "empty").touch()
here = look(pets)
"""
READ = """%%distribute --nodes 3 --data {name} --name reading --pull seen
import os
import torch.distributed as dist
from pathlib import Path
import minicluster as mc

def tried(act, *words):
    try:
        act(*words)
    except OSError as error:
        return error.strerror

root, other = mc.data("{name}"), Path("/data/{name}")
refused = [
    tried((root / "new").touch),
    tried((root / "tool").write_text, "changed"),
    tried((root / "tool").unlink),
    tried(os.chmod, root / "tool", 0o777),
    tried(os.chmod, "/cluster-data/sets", 0o755),
    tried(os.listdir, "/cluster-data/sets"),
]
dist.init_process_group()
seen = [None] * 3
dist.all_gather_object(seen, (look(root), os.path.samefile(root, other), refused))
"""
SPY = """%%distribute --nodes 3 --name spying --pull seen
import os
import torch.distributed as dist
def tried(act, *words):
    try:
        return act(*words)
    except OSError as error:
        return error.strerror
tries = [
    tried(os.listdir, "/cluster-data/sets"),
    tried(os.chmod, "/cluster-data/sets", 0o755),
    tried(os.listdir, "/data"),
]
dist.init_process_group()
seen = [None] * 3
dist.all_gather_object(seen, tries)
"""
READ_ONLY, DENIED = "Read-only file system", "Permission denied"
CUT_MBIT = 50
MAKE_LARGE = """
import os
from pathlib import Path
large = Path("~/large").expanduser()
large.mkdir()
for number in range(90):
    (large / f"{number:03}").write_bytes(os.urandom(1_000_000))
"""
PUSH_LARGE = "%distribute data push ~/large --name large"


async def error_of(kernel: KernelConnection, source: str) -> str:
    """Run a cell that fails; return its error."""
    (error,) = [one for one in await kernel.run(source) if one.output_type == "error"]
    return str(error.evalue) + "\n".join(error.traceback)


async def value(kernel: KernelConnection, name: str) -> Any:
    return ast.literal_eval(await kernel.evaluate(name))


async def test_a_folder_goes_from_a_notebook_to_three_nodes_and_nobody_else_sees_it(
    ready: LabCluster, people: People
) -> None:
    async with (
        people.at_work("dora") as dora,
        people.at_work("emil") as emil,
        dora.kernel() as hers,
        emil.kernel() as his,
    ):
        await hers.run(LOOK + MAKE)
        output = text(await hers.run("%distribute data push ~/pets --name pets"))
        assert "pets: 303 files, 40.3 MB in" in output and "were there already" not in output
        await ranks_read(hers, "pets", await value(hers, "here"))
        listed = text(await hers.run("%distribute data"))
        assert re.search(r"pets +40\.3 MB +303 +node1, node2, node3", listed), listed
        modes_are_right(ready)
        await sees_nothing(his)
        await is_shared(hers, his)
        text(await hers.run("%distribute data rm pets"))
        assert "There are no data sets" in text(await hers.run("%distribute data"))
        assert messages.NO_SUCH_DATA_SET.format(name="pets") in await error_of(
            hers, "%%distribute --data pets\npass"
        )
    check_nothing_left(ready)


async def ranks_read(kernel: KernelConnection, name: str, files: Any) -> None:
    """Check that each rank has the same files at /data/NAME, and can change none."""
    text(await kernel.run(READ.format(name=name)))
    seen = await value(kernel, "seen")
    assert [(files, True)] * 3 == [one[:2] for one in seen]
    for *_, refused in seen:
        assert None not in refused
        assert refused[-3:] == [READ_ONLY, READ_ONLY, DENIED]


def modes_are_right(cluster: LabCluster) -> None:
    """Check that the data set agent's user owns the volume on each node, and others cannot list it."""
    for node in cluster.lab.nodes:
        (data_agent,) = data_set_agent(cluster, node)
        asked = ("exec", data_agent, "stat", "-c", "%u:%g %a", "/cluster-data", "/cluster-data/sets")
        assert cluster.docker(*asked, node=node) == ["1000:1000 711", "1000:1000 311"]


async def sees_nothing(kernel: KernelConnection) -> None:
    """Check that another user can neither use a data set by name nor find its folder on the nodes."""
    assert "There are no data sets" in text(await kernel.run("%distribute data"))
    for name in ("pets", "dora/pets"):
        assert messages.NO_SUCH_DATA_SET.format(name=name) in await error_of(
            kernel, f"%%distribute --data {name}\npass"
        )
    text(await kernel.run(SPY))
    assert await value(kernel, "seen") == [[DENIED, READ_ONLY, []]] * 3


async def is_shared(hers: KernelConnection, his: KernelConnection) -> None:
    """Check that a shared data set can be read by its full name, and that a second push sends nothing."""
    output = text(await hers.run("%distribute data push ~/pets --name pets --shared"))
    assert "0 bytes sent in 0 pieces, 40.3 MB were there already" in output, output
    await his.run(LOOK)
    await ranks_read(his, "dora/pets", await value(hers, "here"))


async def test_a_push_that_was_cut_goes_on_where_it_was(ready: LabCluster, people: People) -> None:
    """The kernel dies during the push; the same line again sends only the missing pieces."""
    node = ready.lab.nodes[1]
    async with people.logged_in("nina") as nina:
        await nina.start_server(node=node.name)
        try:
            async with nina.kernel() as kernel:
                await kernel.run(MAKE_LARGE)
                node.limit_rate(CUT_MBIT)
                push = asyncio.create_task(kernel.run(PUSH_LARGE))
                await asyncio.to_thread(
                    wait_for, lambda: len(pieces_of(ready, "nina")) > 1, "pieces", 60, 0.1
                )
                await kill_kernel(nina)
                push.cancel()
                node.unlimit()
            async with nina.kernel() as kernel:
                there = pieces_of(ready, "nina")
                output = text(await kernel.run(PUSH_LARGE))
                everything = pieces_of(ready, "nina")
                text(await kernel.run("%distribute data rm large"))
        finally:
            node.unlimit()
            await nina.stop_server()
    *_, manifest = everything
    assert manifest < 100_000 and sum(everything) == 90_000_000 + manifest
    pieces, known = len(everything) - 1 - len(there), sum(there) / 1e6
    assert re.search(rf"sent in {pieces} pieces?, {known:.1f} MB were there already", output), output
    check_nothing_left(ready)


async def kill_kernel(person: Person) -> None:
    """Restart the notebook's kernel as an impatient user does: its process is killed."""
    here = person.visitor.server_path
    (kernel,) = await person.visitor.call("GET", f"{here}api/kernels", here)
    await person.visitor.call("POST", f"{here}api/kernels/{kernel['id']}/restart", here)


def pieces_of(cluster: LabCluster, owner: str) -> list[int]:
    """Return the sizes of a user's pieces, in order of arrival."""
    (rows,) = query(cluster, f"SELECT size_bytes FROM pieces WHERE owner = '{owner}' ORDER BY rowid")
    return [size for (size,) in rows]
