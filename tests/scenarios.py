"""What has to work on every engine, seen from a notebook: each engine has a test that plays each scenario.

A site is a cluster with a user at work. It differs between engines; the scenarios do not. Where a cluster
cannot do something with its engine (`api/about` tells), the scenario is that it refuses this with a sentence.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from minicluster.wire import LAYER_ROOT
from minicluster_hub.launch.demo import SERVICE_PATH
from minicluster_hub.launch.kernel import KernelConnection, open_kernel
from minicluster_hub.launch.visitor import Visitor

NOTEBOOK = "quickstart.ipynb"
IMAGES, DATA_SETS = "container images, also published ones", "data sets"
WITHIN_S = 240.0
_LEAST_ACCURACY = 0.97
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_TERMINAL = ("succeeded", "failed", "stopped")
_ENDLESS = "import time\nprint('here', flush=True)\nwhile True: time.sleep(0.1)\n"
_TRAINING = """
import time, torch, minicluster as mc
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = mc.prepare(model, optimizer)
step = mc.resume(model, optimizer)
print("resumed at", step, flush=True)
while True:
    step += 1
    mc.checkpoint(model, optimizer, step=step, every=5)
    print("step", step, flush=True)
    time.sleep(0.05)
"""
_WRITE = """%%distribute --nodes 3
import minicluster as mc
ranks = mc.world_size()
if mc.rank() == 0:
    (mc.output() / "ranks.txt").write_text(str(ranks))
"""
_RESUMED = re.compile(r"resumed at (\d+)")
PUSH = """
from pathlib import Path
Path("words").mkdir(exist_ok=True)
Path("words/one.txt").write_text("one of them")
%distribute data push words --name words
"""
READ = """%%distribute --nodes 3 --data words --plain
import minicluster as mc
read = (mc.data("words") / "one.txt").read_text()
"""


class Site(Protocol):
    """nodes: the names of three nodes, of which the first one is never lost: it may have the platform itself.
    visitor: a user with a running notebook server, who has opened Jobs.

    package: what pip installs there that no image has, and its module; used only where there are images.
    """

    nodes: Sequence[str]
    visitor: Visitor
    package: tuple[str, str]

    def lost(self, node: str) -> AbstractContextManager[None]:
        """Lose a node without notice; at the end of the block it is back. It may block."""
        ...

    async def allow(self, digest: str) -> None:
        """Allow a published image, as an administrator."""
        ...


# --- the scenarios ----------------------------------------------------------------------------


async def quickstart(site: Site) -> None:
    """Run the quickstart; its model is good, and its job ran on three nodes."""
    async with open_kernel(site.visitor, NOTEBOOK) as kernel:
        for source in await _cells(site.visitor):
            text(await kernel.run(source))
        assert float(await kernel.evaluate("accuracy")) >= _LEAST_ACCURACY
        assert await kernel.evaluate("ranks") == "3"
    job = await newest_job(site)
    assert job["state"] == "succeeded" and set(job["nodes"]) == set(site.nodes), job


async def stopped_job(site: Site) -> None:
    """Stop a job that waits, one that runs, and one just submitted; their slots are free then.

    The next job succeeds, and its file comes back.
    """
    async with open_kernel(site.visitor, NOTEBOOK) as kernel:
        job = await begun(site, kernel, "--nodes 3")
        await stop(site, await submitted(site, kernel, "--nodes 3", _ENDLESS))
        await stop(site, job)
        await stop(site, await submitted(site, kernel, "--nodes 3", _ENDLESS))
        text(await kernel.run(_WRITE))
        assert await kernel.evaluate("ranks") == "3"
        done = (await newest_job(site))["id"]
        assert "ranks.txt" in text(await kernel.run(f"%distribute files {done}"))


async def lost_node(site: Site) -> None:
    """Lose a node of a job that two are enough for; it goes on from its snapshot in another attempt."""
    async with open_kernel(site.visitor, NOTEBOOK) as kernel:
        job = await begun(site, kernel, "--nodes 2:3", _TRAINING, "step 20")
        ran_on = (await ask(site, "GET", f"api/jobs/{job}"))["nodes"]
        node = next(name for name in reversed(ran_on) if name != site.nodes[0])
        loss = site.lost(node)
        await asyncio.to_thread(loss.__enter__)
        try:
            again = await reached(site, job, attempt=2)
            assert again["state"] == "running", again
            await logged(site, job, "step")
        finally:
            await asyncio.to_thread(loss.__exit__, None, None, None)
        resumed = _RESUMED.search(await log(site, job))
        assert resumed is not None and int(resumed[1]) > 0, await history(site, job)
        assert "lost" in await history(site, job)
        await stop(site, job)
        await nodes_are_up(site)


async def data_set(site: Site) -> None:
    """Push a folder from a notebook; ranks on three nodes read it."""
    async with open_kernel(site.visitor, NOTEBOOK) as kernel:
        text(await kernel.run(PUSH))
        if await cannot(site, DATA_SETS):
            assert "data set" in error(await kernel.run(READ))
            return
        text(await kernel.run(READ))
        assert await kernel.evaluate("read") == "'one of them'"
        assert "words" in text(await kernel.run("%distribute data"))


async def published_image(site: Site) -> None:
    """Publish a package as an image; once it is allowed, ranks run in it. Without images, ranks have exactly
    the notebook's environment.
    """
    package, imported = site.package
    async with open_kernel(site.visitor, NOTEBOOK) as kernel:
        if await cannot(site, IMAGES):
            for tried in ("%distribute publish vision", "%%distribute --image vision\npass"):
                assert "in its own environment" in error(await kernel.run(tried))
            text(await kernel.run("%%distribute --nodes 3\nimport sys\nprefix = sys.prefix"))
            assert await kernel.evaluate("prefix == __import__('sys').prefix") == "True"
            return
        text(await kernel.run(f"%pip install {package}"))
        text(await kernel.run("made = %distribute publish vision\nmade"))
        await site.allow((await kernel.evaluate("made.image.digest")).strip("'"))
        used = f"%%distribute --nodes 3 --image vision\nimport {imported}\nplace = {imported}.__file__"
        text(await kernel.run(used))
        assert f"{LAYER_ROOT}/" in await kernel.evaluate("place")


# --- what they look at ------------------------------------------------------------------------


async def submitted(site: Site, kernel: KernelConnection, options: str, source: str) -> int:
    """Submit a job; return its id."""
    text(await kernel.run(f"%%distribute {options} --detach\n{source}"))
    return int((await newest_job(site))["id"])


async def stop(site: Site, job: int) -> None:
    """Stop a job, and wait until its slots are free."""
    await ask(site, "POST", f"api/jobs/{job}/stop")
    assert (await reached(site, job))["state"] == "stopped", await history(site, job)
    await slots_are_free(site, job)


async def begun(
    site: Site, kernel: KernelConnection, options: str, source: str = _ENDLESS, shown: str = "here"
) -> int:
    """Submit an endless job; return its id when rank 0 has printed a text."""
    job = await submitted(site, kernel, options, source)
    found = await reached(site, job, "running")
    assert found["state"] == "running", f"{found}\n{await history(site, job)}"
    await logged(site, job, shown)
    return job


async def logged(site: Site, job: int, shown: str) -> None:
    """Wait until rank 0 has printed a text in the newest attempt."""
    async with asyncio.timeout(WITHIN_S):
        while shown not in await log(site, job):
            await asyncio.sleep(0.2)


async def reached(site: Site, job: int, state: str = "", attempt: int = 1) -> dict[str, Any]:
    """Wait until a job is in a state, in that attempt or a later one, or has ended; return it."""
    wanted = state or ("running" if attempt > 1 else "")
    async with asyncio.timeout(WITHIN_S):
        while True:
            found = await ask(site, "GET", f"api/jobs/{job}")
            if found["state"] in _TERMINAL or (found["state"] == wanted and found["attempt"] >= attempt):
                return found
            await asyncio.sleep(0.2)


async def slots_are_free(site: Site, job: int) -> None:
    async with asyncio.timeout(WITHIN_S):
        while any(slot["job_id"] == job for node in await nodes(site) for slot in node["slots"]):
            await asyncio.sleep(0.2)


async def nodes_are_up(site: Site) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not all(node["up"] for node in await nodes(site)):
            await asyncio.sleep(0.5)


async def nodes(site: Site) -> list[dict[str, Any]]:
    return (await ask(site, "GET", "api/nodes"))["nodes"]


async def newest_job(site: Site) -> dict[str, Any]:
    return (await ask(site, "GET", "api/jobs"))["jobs"][0]


async def history(site: Site, job: int) -> str:
    lines = (await ask(site, "GET", f"api/jobs/{job}/history"))["lines"]
    return "\n".join(f"{line['kind']} {line['text']}" for line in lines)


async def log(site: Site, job: int) -> str:
    answer = await site.visitor.http.get(f"{SERVICE_PATH}api/jobs/{job}/log", params={"rank": 0})
    return answer.text


async def cannot(site: Site, name: str) -> bool:
    """Whether the cluster tells that it lacks an ability."""
    about = await ask(site, "GET", "api/about")
    return not next(one["can"] for one in about["abilities"] if one["name"] == name)


async def ask(site: Site, method: str, path: str) -> Any:
    return await site.visitor.call(method, f"{SERVICE_PATH}{path}", SERVICE_PATH)


async def _cells(visitor: Visitor) -> list[str]:
    """Return the code cells of the quickstart in the user's home."""
    here = visitor.server_path
    model = await visitor.call("GET", f"{here}api/contents/{NOTEBOOK}", here)
    cells = model["content"]["cells"]
    return [cell["source"] for cell in cells if cell["cell_type"] == "code"]


def text(outputs: list[Any]) -> str:
    """Return what a cell printed, which raised no error."""
    found = _shown(outputs)
    assert not any(output.output_type == "error" for output in outputs), found
    return found


def error(outputs: list[Any]) -> str:
    """Return what a cell printed, which raised an error."""
    found = _shown(outputs)
    assert any(output.output_type == "error" for output in outputs), found
    return found


def _shown(outputs: list[Any]) -> str:
    return _COLOUR.sub("", "\n".join(map(_text_of, outputs)))


def _text_of(output: Any) -> str:
    if output.output_type == "error":
        return "\n".join([*output.traceback, f"{output.ename}: {output.evalue}"])
    return str(output.get("text") or output.get("data", {}).get("text/plain", ""))


ALL = (quickstart, stopped_job, lost_node, data_set, published_image)
