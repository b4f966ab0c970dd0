"""The options of notebook servers on a Swarm."""

from __future__ import annotations

from typing import Any

from dockerspawner import SwarmSpawner
from jupyterhub.traitlets import ByteSpecification
from traitlets import Bool, Dict, Float, Integer, List, Unicode, default

from minicluster_hub.engines.swarm.names import CLUSTER
from minicluster_hub.engines.swarm.tenant_limits import PIDS, NodeReserve
from minicluster_spawner.options import Allowed
from minicluster_spawner.server import SERVER_ARGUMENTS
from minicluster_spawner.server_spec import COMMAND, NfsHomes, ServerSettings, further_mount

UNUSED = frozenset(
    {
        "allowed_images",
        "certs_volume_name",
        "client_kwargs",
        "escape",
        "extra_container_spec",
        "extra_create_kwargs",
        "extra_endpoint_spec",
        "extra_host_config",
        "extra_placement_spec",
        "extra_resources_spec",
        "extra_task_spec",
        "host_ip",
        "links",
        "move_certs_image",
        "name_template",
        "post_start_cmd",
        "prefix",
        "pull_policy",
        "remove",
        "tls_config",
        "use_internal_hostname",
        "use_internal_ip",
        "volume_driver",
        "volume_driver_options",
    }
)
"""Options of dockerspawner without effect here; if one is configured, the hub logs it."""


class SwarmConfig(SwarmSpawner):
    """Options. Those of dockerspawner that have an effect: image, cpu_limit, mem_limit, cpu_guarantee,
    mem_guarantee, cmd, args, environment, network_name, port, volumes, read_only_volumes, mounts.
    """

    images = Dict(
        help="Images by the names that users see; the first is the default. Empty: only `image`."
    ).tag(config=True)
    max_cpus = Float(
        None,
        allow_none=True,
        help="The most CPUs that a user may choose; None: no choice, all have cpu_limit.",
    ).tag(config=True)
    max_memory = ByteSpecification(
        None,
        allow_none=True,
        help="The most memory that a user may choose, like 8G; None: no choice, all have mem_limit.",
    ).tag(config=True)
    share_gpus = Bool(
        False, help="Let users choose half of a GPU. The job service's engine must share GPUs, too."
    ).tag(config=True)
    max_gpus = Float(
        0,
        help="Most GPUs of a notebook server; jobs cannot use these. The job service may allow less.",
    ).tag(config=True)
    max_gpu_hours = Float(
        4.0, help="Hours until a server with GPUs is stopped; the job service may allow less."
    ).tag(config=True)
    show_form = Bool(
        True, help="Show a form before each start. False: servers start at once with the defaults."
    ).tag(config=True)
    shared_homes = Dict(
        help="Homes on a file server instead of volumes on nodes: {'device': ':/export/homes/%s', "
        "'o': 'addr=10.0.0.5,nfsvers=4,rw'}; %s is the user's folder, which must exist and belong to uid "
        "1000. 'type' is 'nfs' by default."
    ).tag(config=True)
    service_url = Unicode(
        "http://service:8082/services/minicluster/", help="The job service's URL for the hub and notebooks."
    ).tag(config=True)
    ledger_token_file = Unicode(
        "/run/secrets/spawner_token", help="File with the spawner's token for the job service."
    ).tag(config=True)
    docker_url = Unicode(help="A manager's Docker API; the machine's socket by default.").tag(config=True)
    home_dir = Unicode("/home/mini", help="The home's path in the image.").tag(config=True)
    shm_size = ByteSpecification(
        2**30, help="Size of /dev/shm; used parts of it count as the server's memory."
    ).tag(config=True)
    pids_limit = Integer(PIDS, help="The most processes and threads of a server; 0: no limit.").tag(
        config=True
    )
    reserve_memory = ByteSpecification(
        NodeReserve().memory_bytes,
        help="Memory of each node for the platform; at most a quarter of the node. Without mem_limit a "
        "server may have half of the rest.",
    ).tag(config=True)
    reserve_cpus = Float(
        NodeReserve().cpus, help="CPU cores of each node for the platform; at most a quarter of the node."
    ).tag(config=True)
    stop_grace_s = Float(
        5.0, help="Seconds that a server gets to save and end its kernels; more makes Stop slower."
    ).tag(config=True)
    pending_patience_s = Float(
        3.0, help="Seconds that Swarm may find no room on the node before the start fails."
    ).tag(config=True)
    listen_timeout_s = Float(
        120.0, help="Seconds that a running server may take to answer before the start fails."
    ).tag(config=True)
    image_sizes = Dict(help="Compressed bytes of images by reference; shown while a node pulls one.").tag(
        config=True
    )
    mounts = List(  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]
        help="Further mounts, each with the keys of docker.types.Mount; {username} is replaced in them."
    ).tag(config=True)

    offered = Dict(help="The images of the cluster's catalogue; loaded, not configured.")

    @default("start_timeout")
    def _start_timeout_default(self) -> int:
        # A first start pulls the image.
        return 600

    @default("http_timeout")
    def _http_timeout_default(self) -> int:
        return 60

    @default("network_name")
    def _network_name_default(self) -> str:
        return CLUSTER

    @default("cmd")
    def _cmd_default(self) -> list[str]:
        return list(COMMAND)

    @default("args")
    def _args_default(self) -> list[str]:
        return list(SERVER_ARGUMENTS)

    def allowed(self) -> Allowed:
        """Return what this user may choose: the configured images, then those of the catalogue."""
        own = next((name for name, image in self.offered.items() if image == self.image), "default")
        images = {str(name): str(image) for name, image in self.images.items()} or {own: self.image}
        first = next(iter(images))
        more = {
            name: image
            for name, image in self.offered.items()
            if name not in images and image not in images.values()
        }
        return Allowed(
            images=images | more,
            image=first,
            cpus=self.cpu_limit or None,
            max_cpus=self.max_cpus,
            memory_bytes=_bytes(self.mem_limit),
            max_memory_bytes=self.max_memory,
            max_gpus=self.max_gpus,
            half_gpus=self.share_gpus,
            max_gpu_s=self.max_gpu_hours * 3600,
        )

    def server_settings(self) -> ServerSettings:
        """Return the settings of all servers."""
        return ServerSettings(
            network=self.network_name,
            command=[*self.cmd, *self.get_args()],
            home_dir=self.home_dir,
            shm_bytes=self.shm_size,
            stop_grace_s=self.stop_grace_s,
            cpu_guarantee=self.cpu_guarantee or 0.0,
            memory_guarantee_bytes=_bytes(self.mem_guarantee) or 0,
            mounts=self._further_mounts(),
            shared_homes=self._shared_homes(),
            pids=self.pids_limit,
            reserve=NodeReserve(self.reserve_memory, self.reserve_cpus),
        )

    def unused_options(self) -> list[str]:
        """Return configured options that have no effect."""
        sections = {cls.__name__ for cls in type(self).__mro__}
        configured = {name for section in sections & set(self.config) for name in self.config[section]}
        return sorted(configured & UNUSED)

    def _further_mounts(self) -> list[dict[str, Any]]:
        volumes = self._volumes_to_binds(self.volumes, {})
        volumes = self._volumes_to_binds(self.read_only_volumes, volumes, mode="ro")
        listed = [
            further_mount(source, how["bind"], read_only=how["mode"] == "ro")
            for source, how in volumes.items()
        ]
        return [*listed, *map(dict, self.mount_binds)]

    def _shared_homes(self) -> NfsHomes | None:
        if not self.shared_homes:
            return None
        homes = self.shared_homes
        return NfsHomes(options=homes["o"], device=homes["device"], kind=homes.get("type", "nfs"))


def _bytes(value: Any) -> int | None:
    """Return a size in bytes; an administrator's function may return "4G"."""
    return int(ByteSpecification().validate(None, value)) if value else None
