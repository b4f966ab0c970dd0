"""The job service as a program: its options, its start and its end."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import Any

from traitlets import Enum, Float, Integer, Unicode, default, observe
from traitlets.config import Application

from minicluster.wire import OutputLimits
from minicluster_hub.engines.base import Engine
from minicluster_hub.engines.entry_points import EngineNotFound, engine_class
from minicluster_hub.hub.quick_import import import_quickly
from minicluster_hub.jobs.gang_state import LifecycleLimits
from minicluster_hub.listeners import ListenerOptions, ServiceBroken
from minicluster_hub.options import IdleOptions, NoticeOptions, PolicyOptions, UsageOptions
from minicluster_hub.serving.options import ServingOptions
from minicluster_hub.storage.options import StorageOptions
from minicluster_hub.support.rates import RequestOptions

LED_NO_MORE = 75
"""Exit status when another service took over the lead. Start this one again: it then stands by."""


class MiniclusterHub(
    ListenerOptions,
    PolicyOptions,
    UsageOptions,
    IdleOptions,
    NoticeOptions,
    RequestOptions,
    ServingOptions,
    StorageOptions,
    Application,
):
    """See `minicluster-hub --help-all`."""

    name = "minicluster-hub"
    description = (
        "The job service of Minicluster. The hub starts it, or you start it with the hub's variables:\n"
        "JUPYTERHUB_API_TOKEN, JUPYTERHUB_API_URL, JUPYTERHUB_BASE_URL, JUPYTERHUB_CLIENT_ID,\n"
        "JUPYTERHUB_SERVICE_NAME, JUPYTERHUB_SERVICE_PREFIX, JUPYTERHUB_SERVICE_URL."
    )
    aliases = {  # noqa: RUF012 - traitlets' own way
        "config": "MiniclusterHub.config_file",
        "data-dir": "MiniclusterHub.data_dir",
        "db-url": "MiniclusterHub.db_url",
        "db-url-file": "MiniclusterHub.db_url_file",
        "engine": "MiniclusterHub.engine",
        "policy": "MiniclusterHub.policy",
        "placement": "MiniclusterHub.placement",
        "keep-warm-s": "MiniclusterHub.keep_warm_s",
        "prepared-s": "MiniclusterHub.prepared_s",
        "session-idle-s": "MiniclusterHub.session_idle_s",
        "log-level": "Application.log_level",
    }

    config_file = Unicode("", help="A traitlets configuration file (Python) to read first.").tag(config=True)
    data_dir = Unicode("data", help="Folder of all data.").tag(config=True)
    db_url = Unicode(
        help="Database, as an SQLAlchemy URL; SQLite in the data folder by default. If the URL has a "
        "password, put it into db_url_file."
    ).tag(config=True)
    db_url_file = Unicode(
        help="File with the database's URL; it overrides db_url. Use it for a URL with a password: everybody "
        "on a machine can read the arguments of its processes."
    ).tag(config=True)
    engine = Unicode(
        "local",
        help="What starts tasks: the name of an entry point of the group minicluster.engines (local, swarm), "
        "or the path of a class.",
    ).tag(config=True)
    session_idle_s = Float(
        1200.0, help="Seconds without a cell after which a session of %distribute up ends; 0: never."
    ).tag(config=True)
    keep_warm_s = Float(
        120.0,
        help="Seconds that a gang stays warm for its owner's next cell. More makes next cells faster, and "
        "holds idle memory longer.",
    ).tag(config=True)
    prepared_s = Float(
        600.0,
        min=0.0,
        help="Seconds that a gang waits which was started on free slots when its owner opened a notebook, so "
        "that the first cell starts at once; 0: none is started.",
    ).tag(config=True)
    heartbeat_timeout_s = Float(3.0, help="Seconds of silence after which a task counts as lost.").tag(
        config=True
    )
    stall_timeout_s = Float(
        120.0,
        min=0.0,
        help="Seconds without output, record or CPU time of a rank after which the page says why the job is "
        "stuck; 0: never. Less reports sooner, and also reports ranks that only wait for a long download.",
    ).tag(config=True)
    quiet_after_s = Float(120.0, min=0.0, help="The former name of stall_timeout_s.").tag(config=True)
    min_run_s = Float(
        60.0,
        min=0.0,
        help="Seconds that a job keeps its slots after its start, whatever the policy says. Less lets others "
        "start sooner, and costs more restarts.",
    ).tag(config=True)
    start_timeout_s = Float(300.0, help="Seconds that a gang has to come up.").tag(config=True)
    max_ranks = Integer(256, min=1, help="Most ranks of one job.").tag(config=True)
    max_open_jobs = Integer(200, min=1, help="Most jobs of one user that wait or run.").tag(config=True)
    server_gpus = Float(
        0,
        min=0,
        help="Most GPUs of one notebook server; 0: none, so that jobs have all; 0.5: half of one.",
    ).tag(config=True)
    server_gpu_s = Float(
        4 * 3600.0,
        help="Seconds that a notebook server may hold GPUs. More leaves them idle longer.",
    ).tag(config=True)
    payload_limit_bytes = Integer(2 * 1024**3, help="Largest cell with its names, in bytes.").tag(config=True)
    result_limit_bytes = Integer(16 * 1024**3, help="Largest result of a cell, in bytes.").tag(config=True)
    log_limit_bytes = Integer(
        4 * 1024**3,
        min=1,
        help="Most bytes of one rank's output in one attempt that are stored; the rest is thrown away.",
    ).tag(config=True)
    artifacts_keep_days = Float(
        90.0,
        min=0.0,
        help="Days after a job's end until the files of its output folder are deleted; 0: never. More fills "
        "the disk of the job service.",
    ).tag(config=True)
    jobs_keep_days = Float(
        90.0,
        min=0.0,
        help="Days after a job's end until its cell, result, snapshots and output are deleted; 0: never. Its "
        "history stays. More fills the disk of the job service.",
    ).tag(config=True)
    artifacts_limit_files = Integer(
        10_000, min=0, help="Most files that come back from the output folder of one task of a job."
    ).tag(config=True)
    artifacts_limit_bytes = Integer(
        50 * 1024**3, min=0, help="Most bytes that come back from the output folder of one task of a job."
    ).tag(config=True)
    publishing = Enum(
        ("ask", "allow", "off"),
        "ask",
        help="Images that users make by %distribute publish. ask: an admin must allow each one. allow: "
        "everybody may run them at once. off: users cannot publish. An image runs code of its publisher.",
    ).tag(config=True)
    image_limit_bytes = Integer(
        32 * 1024**3, min=1, help="Most bytes, unpacked, that a published image may add to its base."
    ).tag(config=True)
    pip_index_url = Unicode(
        help="A mirror of PyPI, set as PIP_INDEX_URL in jobs and notebook servers; empty: pip's default."
    ).tag(config=True)
    data_agent_token_file = Unicode(
        help="File with the token of the nodes' data set agents; by default one made in the data folder."
    ).tag(config=True)
    data_grace_s = Float(
        86_400.0,
        min=0.0,
        help="Seconds that uploaded pieces of no data set stay, so that an interrupted push can resume.",
    ).tag(config=True)
    data_versions_s = Float(
        30 * 86_400.0,
        min=0.0,
        help="Seconds that an earlier version of a data set stays after a run last read it, so that the run "
        "can be repeated. Less if its owner's quota is full.",
    ).tag(config=True)
    auth_cache_s = Integer(
        45,
        help="Seconds that the hub's answer about a token is cached. More calls the hub less often, and lets "
        "a revoked token work longer.",
    ).tag(config=True)

    @default("log_level")
    def _default_log_level(self) -> int:
        return logging.INFO

    @observe("quiet_after_s")
    def _set_stall_timeout(self, change: dict[str, Any]) -> None:
        self.stall_timeout_s = change["new"]

    @default("db_url")
    def _default_db_url(self) -> str:
        return f"sqlite:///{self.service_dir / 'minicluster.sqlite'}"

    @property
    def service_dir(self) -> Path:
        return Path(self.data_dir).absolute() / "service"

    # --- start and end ------------------------------------------------------------------------

    def initialize(self, argv: list[str] | None = None) -> None:
        super().initialize(argv)
        if self.config_file:
            self._read_config_file(argv)
        for name in ("tornado.access", "tornado.application", "tornado.general"):
            logger = logging.getLogger(name)
            logger.parent = self.log  # pyright: ignore[reportAttributeAccessIssue]
            logger.setLevel(logging.WARNING)

    def _read_config_file(self, argv: list[str] | None) -> None:
        if not Path(self.config_file).is_file():
            self.log.critical("there is no configuration file %s", self.config_file)
            self.exit(1)
        self.load_config_file(self.config_file)
        self.parse_command_line(argv)  # again: the command line wins over the file

    def start(self) -> None:
        from minicluster_hub.store import NotLeading, StoreBroken

        try:
            self._check_arguments()
            asyncio.run(self.serve())
        except (ServiceBroken, StoreBroken, ValueError) as error:
            self.log.critical("%s", error)
            self.exit(1)
        except NotLeading as error:
            self.log.warning("%s; this one ends: start it again, and it stands by", error)
            self.exit(LED_NO_MORE)

    def database_url(self) -> str:
        """Return the database's URL. Raises ServiceBroken."""
        return _url_of(self.db_url_file) if self.db_url_file else self.db_url

    def _check_arguments(self) -> None:
        """Raise ServiceBroken if an argument contains a password."""
        from minicluster_hub.support.database_url import has_password

        given = self.cli_config.get(type(self).__name__, {}).get("db_url")
        if given is not None and has_password(str(given)):
            raise ServiceBroken(
                "the database's URL has a password, and everybody on this machine can read arguments: "
                "put the URL into a file and give --db-url-file=FILE"
            )

    async def serve(self) -> None:
        """Run until SIGTERM or SIGINT. Tasks keep running, and the next start finds them."""
        from minicluster_hub.wiring import Wiring

        stopped = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        sockets = self.bind()
        parts = Wiring.open(self, self.url_for_tasks(sockets))
        try:
            await parts.run(sockets, stopped)
        finally:
            await parts.close()

    # --- parts by their options ---------------------------------------------------------------

    @property
    def limits(self) -> LifecycleLimits:
        return LifecycleLimits(
            heartbeat_timeout_s=self.heartbeat_timeout_s,
            start_timeout_s=self.start_timeout_s,
            keep_warm_s=self.keep_warm_s,
            prepared_s=self.prepared_s,
            stall_timeout_s=self.stall_timeout_s,
            min_run_s=self.min_run_s,
            output=OutputLimits(files=self.artifacts_limit_files, size_bytes=self.artifacts_limit_bytes),
        )

    def make_engine(self) -> Engine:
        """Return the engine of that name. Raises ServiceBroken."""
        try:
            return engine_class(self.engine)(parent=self)
        except EngineNotFound as error:
            raise ServiceBroken(str(error)) from error

    def cookie_secret(self) -> bytes:
        """Return the secret that signs cookies. It is stored, so that logins survive a restart."""
        return self._stored_secret("cookie_secret")

    def serving_secret(self) -> bytes:
        """Return the secret from which those of the replicas of models follow, the same after a restart."""
        return self._stored_secret("serving_secret")

    def data_agent_token(self) -> str:
        """Return the token with which data set agents call the API. Raises ServiceBroken."""
        if not self.data_agent_token_file:
            return self._stored_secret("keeper_token").hex()
        try:
            return Path(self.data_agent_token_file).read_text().strip()
        except OSError as error:
            raise ServiceBroken(
                f"the data set agents' token cannot be read: {self.data_agent_token_file}: {error.strerror}"
            ) from error

    def _stored_secret(self, name: str) -> bytes:
        path = self.service_dir / name
        try:
            if not path.exists():
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                fresh = path.with_suffix(f".{os.getpid()}")
                fresh.touch(mode=0o600)
                fresh.write_bytes(secrets.token_bytes(32))
                fresh.replace(path)
            return path.read_bytes()
        except OSError as error:
            raise ServiceBroken(
                f"the data folder cannot be used: {path}: {error.strerror}; choose another with --data-dir"
            ) from error


def _url_of(path: str) -> str:
    """Return the URL in a file. Raises ServiceBroken."""
    try:
        url = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServiceBroken(f"the file with the database's URL, {path}, cannot be read: {error}") from error
    if not url:
        raise ServiceBroken(f"the file with the database's URL, {path}, is empty")
    return url


def main(argv: list[str] | None = None) -> None:
    import_quickly()
    MiniclusterHub.launch_instance(sys.argv[1:] if argv is None else argv)
