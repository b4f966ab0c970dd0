"""TensorBoard at a click on a run: a program of this Jupyter server's own, with the files that the run left.

It sees the runs that were opened since it started, each in a folder of its own name, so that they can be
compared. It listens on the loopback address alone: browsers reach it through this server, behind its login.
It ends when nobody has looked at it for a while.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.utils import url_path_join
from tornado.httpclient import AsyncHTTPClient, HTTPResponse
from tornado.web import HTTPError, authenticated

from minicluster.client.client import JobServiceClient
from minicluster.errors import MiniclusterError
from minicluster.results.downloads import download
from minicluster.server_extension.clusters import Clusters
from minicluster.wire import Artifact

IDLE_S = 1800.0
_START_S = 60.0
_RELOAD_S = "1"
"""How often it looks for new files. It tells nobody when it has read them."""
_READ_WITHIN_S = 20.0
_LOOK_S = 0.2
_ADDRESS = re.compile(rb"http://[^ /]*:(\d+)/")
_MARK = "tfevents"
"""A part of the name of each file that a SummaryWriter makes."""
_TO_BOARD = ("Accept", "Accept-Encoding", "Content-Type")
_TO_BROWSER = ("Cache-Control", "Content-Encoding", "Content-Security-Policy", "Content-Type")


class NoTensorBoard(MiniclusterError):
    """There is no TensorBoard, or nothing for it to show."""


class TensorBoard:
    """The program, started at the first run that is opened. base_path: the path at which browsers see it."""

    def __init__(self, base_path: str, idle_s: float = IDLE_S) -> None:
        self.base_path = base_path
        self._idle_s = idle_s
        self._starting = asyncio.Lock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._program: asyncio.subprocess.Process | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._reading: asyncio.Task[None] | None = None
        self.port: int | None = None

    async def add(self, service: JobServiceClient, run: int) -> None:
        """Have it show a run. Raises MiniclusterError, OSError."""
        async with self._starting:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="minicluster-tensorboard-")
            name = await asyncio.to_thread(fetch, service, run, Path(self._folder.name))
            if self.port is None:
                await self._start(self._folder.name)
            await self._has_read(name)
        self.used()

    def used(self) -> None:
        """Put off the end: somebody looks at it."""
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.get_running_loop().call_later(self._idle_s, self.end)

    def end(self) -> None:
        """End the program and remove its files."""
        if self._program is not None and self._program.returncode is None:
            self._program.terminate()
        self._program = self.port = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    async def _start(self, folder: str) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            text = "TensorBoard is not installed in this notebook server's environment."
            raise NoTensorBoard(text, "Install it there, in a terminal: pip install tensorboard")
        options = ["--logdir", folder, "--path_prefix", self.base_path, "--reload_interval", _RELOAD_S]
        self._program = program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "tensorboard.main", "--host", "127.0.0.1", "--port", "0", *options),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self.port, output = await _port(program)
        if self.port is None:
            self.end()
            raise NoTensorBoard(f"TensorBoard did not start. Its last words: {output or 'none'}")
        self._reading = asyncio.create_task(self._read_on(program))

    async def _has_read(self, name: str) -> None:
        """Wait until it lists a run: its page does not take in by itself what comes later."""
        runs = f"http://127.0.0.1:{self.port}{self.base_path}/data/runs"
        with suppress(TimeoutError):
            async with asyncio.timeout(_READ_WITHIN_S):
                while True:
                    answer = await AsyncHTTPClient().fetch(runs, raise_error=False)
                    if answer.code == 200 and any(one.startswith(name) for one in json.loads(answer.body)):
                        return
                    await asyncio.sleep(_LOOK_S)

    async def _read_on(self, program: asyncio.subprocess.Process) -> None:
        """Read what the program writes until it ends: a full pipe would hold it."""
        while program.stdout and await program.stdout.read(1 << 16):
            pass
        if program is self._program:
            self.end()


async def _port(program: asyncio.subprocess.Process) -> tuple[int | None, str]:
    """Return the port on which the program listens, None if it does not start; and what it has written."""
    output = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_S):
            while program.stdout and (line := await program.stdout.readline()):
                output += line
                if found := _ADDRESS.search(line):
                    return int(found[1]), ""
    return None, output.decode("utf-8", "replace").strip()[-500:]


def fetch(service: JobServiceClient, run: int, folder: Path) -> str:
    """Download a run's files for TensorBoard; return their folder's name.

    Raises NoTensorBoard and what `download` raises.
    """
    job, found = service.job(run), event_files(service, run)
    if not found:
        until = "" if job.state.terminal else " They come with the run's other files, when it has ended."
        raise NoTensorBoard(
            f"Run {run} has no files of TensorBoard.{until}",
            "Have the cell write them into its output folder: SummaryWriter(mc.output() / 'tensorboard')",
        )
    name = f"{run}-{re.sub(r'[^a-zA-Z0-9_.-]+', '_', job.name)[:60]}"
    download(service, run, found, folder / name)
    return name


def event_files(service: JobServiceClient, run: int) -> list[Artifact]:
    """Return which of a run's files are TensorBoard's."""
    return [one for one in service.artifacts(run).artifacts if _MARK in one.path.rpartition("/")[2]]


class OpenHandler(JupyterHandler):
    """GET minicluster/tensorboard?run=67: shows a run of this server's user."""

    auth_resource = "kernels"

    def initialize(self, clusters: Clusters, board: TensorBoard) -> None:
        super().initialize()
        self._clusters, self._board = clusters, board

    @authenticated
    @authorized(action="read")
    async def get(self) -> None:
        run = self.get_query_argument("run", "")
        if not (run.isdecimal() and len(run) <= 15):
            raise HTTPError(400, "which run? minicluster/tensorboard?run=67")
        addresses = self._clusters.addresses()
        if not addresses:
            raise HTTPError(404, "this Jupyter server is connected to no cluster")
        try:
            await self._board.add(self._clusters.service(addresses[0]), int(run))
        except (MiniclusterError, OSError) as error:
            raise HTTPError(404, str(error), reason="No TensorBoard") from error
        self.redirect(url_path_join(self._board.base_path, "/"))


class ViewHandler(JupyterHandler):
    """Passes requests on to TensorBoard."""

    auth_resource = "kernels"

    def initialize(self, board: TensorBoard) -> None:
        super().initialize()
        self._board = board

    def check_xsrf_cookie(self) -> None:
        """Refuse other sites: TensorBoard's own scripts post what they want to read, without our token."""
        if self.request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            raise HTTPError(403, "TensorBoard takes requests of its own page only")

    @authenticated
    @authorized(action="read")
    async def get(self, _path: str = "") -> None:
        await self._pass_on()

    @authenticated
    @authorized(action="read")
    async def post(self, _path: str = "") -> None:
        await self._pass_on()

    async def _pass_on(self) -> None:
        if self._board.port is None:
            text = "TensorBoard has ended, since nobody looked at it. Open it again on the run's page."
            raise HTTPError(404, text, reason="TensorBoard has ended")
        self._board.used()
        request = self.request
        answer: HTTPResponse = await AsyncHTTPClient().fetch(
            f"http://127.0.0.1:{self._board.port}{request.uri}",
            method=request.method or "GET",
            headers=_chosen(request.headers, _TO_BOARD),
            body=request.body if request.method == "POST" else None,
            follow_redirects=False,
            decompress_response=False,
            raise_error=False,
        )
        if answer.error is not None and not answer.headers:
            raise HTTPError(502, "TensorBoard does not answer; open it again on the run's page")
        self.clear_header("Content-Security-Policy")
        self.set_status(answer.code)
        for name, value in _chosen(answer.headers, _TO_BROWSER).items():
            self.set_header(name, value)
        self.finish(answer.body or b"")


def _chosen(headers: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


def routes(base_url: str, clusters: Clusters) -> list[tuple[str, type[JupyterHandler], dict[str, Any]]]:
    """Return the routes of TensorBoard."""
    at = url_path_join(base_url, "minicluster", "tensorboard")
    board = TensorBoard(url_path_join(at, "view"))
    return [
        (at, OpenHandler, {"clusters": clusters, "board": board}),
        (rf"{at}/view(/.*)?", ViewHandler, {"board": board}),
    ]
