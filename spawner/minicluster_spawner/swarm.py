"""JupyterHub's spawner for a Swarm: a notebook server is a service, its home a volume of its node."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyterhub.utils import url_path_join
from traitlets import default

from minicluster.wire import PlaceServer
from minicluster_hub.engines.swarm.docker import Docker, DockerError
from minicluster_hub.engines.swarm.gpus.share import SharedGpu
from minicluster_hub.engines.swarm.names import server_name
from minicluster_spawner import form, options, progress, server_spec
from minicluster_spawner.container import HOME_EXPECTED
from minicluster_spawner.failure import StartFailed
from minicluster_spawner.ledger import LedgerClient, LedgerError, LedgerUnavailable
from minicluster_spawner.options import Choice, OptionRefused
from minicluster_spawner.refusals import DOCTOR, StartRefused, filled_disk, is_over, spawn_exception
from minicluster_spawner.server_spec import ServerLaunch
from minicluster_spawner.shared import ServerKey, SharedSwarm, new_spawn_id
from minicluster_spawner.starting import ServerStart
from minicluster_spawner.swarm_config import SwarmConfig

_END_TIMEOUT_S = 15.0
_CERTIFICATE_FILES = {
    "keyfile": "internal-ssl.key",
    "certfile": "internal-ssl.crt",
    "cafile": "internal-ssl.ca",
}


class MiniclusterSpawner(SwarmConfig):
    """Notebook servers on the nodes of a Swarm; the job service places them."""

    def __init__(self, **kwargs: Any) -> None:
        self._progress = progress.StartProgress()
        self._choice: Choice | None = None
        self._certificates: dict[str, bytes] = {}
        self._starting = False
        self._tried = False
        self._home_made = self._home_lost = False
        self._filled_disk = ""
        self._spawn_id = new_spawn_id()
        super().__init__(**kwargs)

    # --- before a start --------------------------------------------------------------------------

    @default("options_form")
    def _options_form_default(self) -> Any:
        return type(self).form if self.show_form else ""

    @default("options_from_form")
    def _default_options_from_form(self) -> Any:
        return options.from_form

    @default("apply_user_options")
    def _apply_user_options_default(self) -> Any:
        return _check_options

    @default("ssl_alt_names")
    def _ssl_alt_names_default(self) -> Any:
        return lambda spawner: [f"DNS:{spawner.internal_hostname}"]

    @default("object_name")
    def _object_name_default(self) -> str:
        return server_name(self.user.name, self.name)

    def choose(self, user_options: Mapping[str, Any]) -> Choice:
        """Return the choice, parsed and checked. Raises StartFailed."""
        try:
            self._choice = options.parse(user_options, self.allowed())
        except OptionRefused as refused:
            raise StartFailed(str(refused), reason="bad_option") from refused
        return self._choice

    async def load_images(self) -> None:
        """Load the images of the catalogue. Raises DockerError, LedgerError."""
        self.offered = await (await self._open()).ledger.images()

    async def form(self) -> str:
        """Return the spawn page's form. Without a view of the Swarm it has no nodes."""
        nodes: list[str] = []
        try:
            nodes += [node.name for node in (await self._open()).view.nodes if node.usable]
            await self.load_images()
        except (DockerError, LedgerError) as error:
            self.log.warning("The spawn page cannot list all nodes and images: %s", error)
        previous = self.user_options or self.orm_spawner.user_options or {}
        trouble = {"home_lost": self._home_lost, "filled_disk": self._filled_disk}
        return form.render(self.allowed(), nodes, previous, **trouble)

    async def move_certs(self, paths: dict[str, str]) -> dict[str, str]:
        """Collect the internal certificates for secrets; return their paths in the server's container."""
        self._certificates = {_CERTIFICATE_FILES[kind]: _read(path) for kind, path in paths.items()}
        return {kind: f"/run/secrets/{_CERTIFICATE_FILES[kind]}" for kind in paths}

    def get_env(self) -> dict[str, str]:
        """Return the server's environment; all of it goes into a secret."""
        env = super().get_env()
        env.update(HOME=self.home_dir, SHELL="/bin/bash", MINICLUSTER_URL=self.service_url)
        if choice := self._choice:
            env |= {"MINICLUSTER_IMAGE": choice.image, "JUPYTER_IMAGE_SPEC": choice.image}
            if self._home_expected() and not choice.new_home:
                env[HOME_EXPECTED] = "1"
        return {name: str(value) for name, value in env.items() if value is not None}

    # --- start -----------------------------------------------------------------------------------

    async def start(self) -> tuple[str, int]:
        """Start the server; return its host and port for the hub. A failed start leaves nothing behind."""
        self._tried = self._starting = True
        if unused := self.unused_options():
            self.log.warning("These options have no effect with %s: %s", type(self).__name__, unused)
        try:
            choice = self.choose(self.user_options)
            shared = await self._open()
            await self._start(shared, choice)
        except (DockerError, LedgerError, StartRefused) as error:
            exception = spawn_exception(error)
            self._home_lost = exception.reason in ("home_lost", "home_node_down")
            raise exception from error
        finally:
            self._starting = False
        self._home_made, self._home_lost, self._filled_disk = True, False, ""
        # A new home is for this start only.
        self.orm_spawner.user_options = {k: v for k, v in self.user_options.items() if k != "new_home"}
        return self.internal_hostname, self.port

    async def _start(self, shared: SharedSwarm, choice: Choice) -> None:
        try:
            await shared.end_leftover(self._key)
            launch = await self._place(shared, choice)
            sizes: Mapping[str, int] = self.image_sizes
            start = ServerStart(shared, launch, self._progress, sizes.get(choice.image))
            settings = self.server_settings()
            limits = server_spec.limit_variables(launch, settings)
            environment, refused = server_spec.clean_environment(
                {**launch.environment, **self.get_env(), **limits}
            )
            if refused:
                self.log.warning("%s does not get these reserved variables: %s", self._log_name, refused)
            self.object_id = await start.create(environment, self._certificates, settings)
            await start.wait_running(self.pending_patience_s)
            await start.wait_listening(self.internal_hostname, self.port, self.listen_timeout_s)
        except BaseException:
            if not await shared.end(self._key, _END_TIMEOUT_S):
                self.log.warning("The rest of %s is removed in the background", self._log_name)
            self.object_id = ""
            raise

    async def _place(self, shared: SharedSwarm, choice: Choice) -> ServerLaunch:
        """Get a placement from the job service. Raises LedgerError, StartRefused."""
        ask = PlaceServer(
            image=choice.image,
            node=choice.node,
            gpus=choice.gpus,
            gpu_s=choice.gpu_s,
            shared_home=bool(self.shared_homes),
            new_home=choice.new_home,
        )
        place = await shared.ledger.place(self.user.name, self.name, ask)
        node = shared.view.node_named(place.node)
        if node is None:
            raise LedgerUnavailable(
                f"The Swarm does not know node {place.node} yet", "Try again in a moment."
            )
        self._progress.report(progress.placed(place.node, choice.gpus, place.until))
        return ServerLaunch(
            service=self._key.service,
            owner=self.user.name,
            server=self.name,
            spawn_id=self._spawn_id,
            choice=choice,
            node=node,
            until=place.until,
            environment=place.environment,
            gpus=place.gpus,
            shared=SharedGpu(place.gpus[0], place.slots[0]) if place.gpu_share and place.gpus else None,
        )

    async def progress(self) -> AsyncIterator[dict[str, object]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Yield events for the spawn-pending page; the hub ends it."""
        async for stage in self._progress:
            yield stage.event()

    # --- while it runs ---------------------------------------------------------------------------

    async def poll(self) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return None while the server runs or starts, or its state is unknown; else its exit code."""
        if self._starting:
            return None
        try:
            shared = await self._open()
            status = await self._status(shared)
        except (DockerError, LedgerError) as error:
            self.log.warning("The state of %s is unknown, so it counts as running: %s", self._log_name, error)
            return 0 if self._tried and not self.object_id else None
        if status is not None and (self.object_id or shared.task(self._key)):
            await shared.end(self._key, _END_TIMEOUT_S)
            self.object_id = ""
        return status

    async def _status(self, shared: SharedSwarm) -> int | None:
        """Return None while the server runs, else its exit code. Raises DockerError."""
        task = shared.task(self._key)
        if task is None:
            if self._tried and not self.object_id:
                return 0
            return None if await shared.service_there(self._key) else 0
        if is_over(task):
            filled = filled_disk(task)
            self._filled_disk = shared.node_name(task) if filled else ""
            why = "it filled its node's disk, which was nearly full" if filled else task.error
            self.log.info("%s has ended: %s %s", self._log_name, task.state, why)
            return task.exit_code or 0
        until = task.labels.get(server_spec.UNTIL_LABEL)
        if until and time.time() >= float(until) and not await shared.may_continue(self._key):
            self.log.info("%s is stopped: the time of its GPUs is over", self._log_name)
            return 0
        return None

    async def get_url(self) -> str:
        """Return the server's URL, even if an earlier hub ended during the start."""
        if self.server is None:
            raise RuntimeError(f"{self._log_name} has no server")
        try:
            task = (await self._open()).task(self._key)
        except (DockerError, LedgerError):
            task = None
        if task is None:
            return self.server.url
        self._spawn_id = task.labels[server_spec.SPAWN_LABEL]
        proto = "https" if self.internal_ssl else "http"
        return url_path_join(f"{proto}://{self.internal_hostname}:{self.port}", self.server.base_url)

    async def stop(self, now: bool = False) -> None:
        """Remove the server. Return when its task is gone, or its node is down."""
        await (await self._open()).end(self._key)
        self.object_id = ""

    # --- stored state ----------------------------------------------------------------------------

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self._home_made, self._home_lost = bool(state.get("home_made")), bool(state.get("home_lost"))
        self._filled_disk = str(state.get("filled_disk", ""))

    def get_state(self) -> dict[str, Any]:
        """Return ids, and that the user has a home: so a lost home is never replaced silently."""
        homes = {"home_made": self._home_made, "home_lost": self._home_lost, "filled_disk": self._filled_disk}
        return super().get_state() | {name: value for name, value in homes.items() if value}

    def clear_state(self) -> None:
        """Forget the server. The hub calls this after each server, and before a start makes certificates."""
        super().clear_state()
        self.object_id = ""
        self._spawn_id = new_spawn_id()
        self._progress.clear()

    def _home_expected(self) -> bool:
        """Return whether this user had a home before, with any server."""
        states = [server.state or {} for server in self.user.orm_user.orm_spawners.values()]
        return self._home_made or any(state.get("home_made") for state in states)

    @property
    def internal_hostname(self) -> str:
        """The server's name on the network, also in its certificate."""
        return server_spec.host_name(self._spawn_id)

    # --- shared ----------------------------------------------------------------------------------

    @property
    def _key(self) -> ServerKey:
        return ServerKey(self.user.name, self.name)

    async def _open(self) -> SharedSwarm:
        shared = SharedSwarm.of(self.user.settings, self._make_shared)
        await shared.open()
        return shared

    def _make_shared(self) -> SharedSwarm:
        try:
            token = _read(self.ledger_token_file).decode().strip()
        except OSError as error:
            raise LedgerUnavailable(
                f"The hub has no token for the job service: {error}", DOCTOR, "no_token"
            ) from error
        ledger = LedgerClient(self.service_url, token, self.log)
        return SharedSwarm(Docker.connect(self.docker_url or None), ledger, self.log)


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


async def _check_options(spawner: MiniclusterSpawner, user_options: dict[str, Any]) -> None:
    with suppress(DockerError, LedgerError):  # then use the images of the last load
        await spawner.load_images()
    spawner.choose(user_options)
