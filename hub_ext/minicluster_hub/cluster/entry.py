"""What runs inside the cluster's services: reads their secrets, and becomes hub, proxy or job service."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from minicluster_hub.cluster.policy_sandbox import container

SECRETS = Path("/run/secrets")
_HUB_CONFIG = Path("/etc/minicluster/jupyterhub_config.py")
_BUILT_IN_CONFIG = Path(__file__).with_name("hub_config.py")


def run(words: Sequence[str]) -> int:
    """Become what the first word names."""
    kinds = {
        "hub": _hub,
        "proxy": _proxy,
        "service": _service,
        "policy": _policy,
        "relay": _relay,
        "docker-proxy": _docker_proxy,
        "account": _account,
        "ready": _ready,
        "firewall": _firewall,
        "eviction": _eviction,
        "sweep": _sweep,
        "address": _address,
    }
    if not words or words[0] not in kinds:
        sys.stderr.write(f"minicluster: run needs one of {', '.join(kinds)}\n")
        return 2
    return kinds[words[0]](list(words[1:]))


def secret(name: str) -> str:
    """Return a secret of this service."""
    return (SECRETS / name).read_text().strip()


def _hub(words: list[str]) -> int:
    config = _HUB_CONFIG if _HUB_CONFIG.exists() else _BUILT_IN_CONFIG
    folder = Path(os.environ["MINICLUSTER_DATA"], "hub")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chdir(folder)
    os.umask(0o077)
    _become([sys.executable, "-P", "-m", "minicluster_hub.launch.hub", "-f", str(config), *words])
    return 0


def _proxy(words: list[str]) -> int:
    os.environ["CONFIGPROXY_AUTH_TOKEN"] = secret("proxy_token")
    certificate, key = SECRETS / "tls_cert", SECRETS / "tls_key"
    tls = [f"--ssl-cert={certificate}", f"--ssl-key={key}"] if certificate.exists() else []
    _become(
        [
            "configurable-http-proxy",
            "--ip=0.0.0.0",
            "--port=8000",
            "--api-ip=0.0.0.0",
            "--api-port=8001",
            "--default-target=http://hub:8081",
            "--error-target=http://hub:8081/hub/error",
            "--log-level=warn",
            *tls,
            *words,
        ]
    )
    return 0


def _service(words: list[str]) -> int:
    os.environ["JUPYTERHUB_API_TOKEN"] = secret("service_token")
    database = SECRETS / "db_url"
    more = [f"--db-url-file={database}"] if database.exists() else []
    more += service_urls(os.environ)
    # Only there: on the machine's own networks this door would be open to whoever is on the machine.
    address = socket.gethostbyname(socket.gethostname())
    more.append(f"--MiniclusterHub.bind_url=http://{address}:8082")
    more.append(f"--MiniclusterHub.data_agent_token_file={SECRETS / 'keeper_token'}")
    _become([sys.executable, "-P", "-m", "minicluster_hub", *words, *more])
    return 0


def _policy(words: list[str]) -> int:
    where = [container.SOCKET, container.FOLDER]
    _become([sys.executable, "-P", "-m", "minicluster_hub.policy.sandbox_server", *where])
    return 0


def service_urls(environ: Mapping[str, str]) -> list[str]:
    """Return the options that name this job service's URL and those of the others; none where it is alone."""
    told = environ.get("MINICLUSTER_SERVICES", "")
    if not told:
        return []
    urls = dict(pair.split("=", 1) for pair in told.split(","))
    own = urls.get(environ.get("MINICLUSTER_NODE_ID", ""), "")
    # A manager that was made one after the last `up` is reached by no task yet: it only stands in.
    alone = [f"--MiniclusterHub.task_url={own}"] if own else []
    return [*alone, *(f"--MiniclusterHub.task_urls={url}" for url in urls.values())]


def _relay(words: list[str]) -> int:
    from minicluster_hub.cluster.registry.relay import main

    return main()


def _firewall(words: list[str]) -> int:
    from minicluster_hub.cluster.firewall.program import main

    return main()


def _eviction(words: list[str]) -> int:
    from minicluster_hub.cluster.eviction.program import main

    return main()


def _docker_proxy(words: list[str]) -> int:
    from minicluster_hub.cluster.docker_proxy.__main__ import main

    return main()


def _account(words: list[str]) -> int:
    from minicluster_hub.cluster.commands.accounts import change

    return change(Path(os.environ["MINICLUSTER_DATA"]), words)


def _ready(words: list[str]) -> int:
    from minicluster_hub.cluster.ready import main

    return main()


def _sweep(words: list[str]) -> int:
    from minicluster_hub.cluster.firewall.sweep import main

    return main(words)


def _address(words: list[str]) -> int:
    """Print the address that this machine uses to reach the outside. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return 1
        print(probe.getsockname()[0])  # noqa: T201
    return 0


def _become(command: list[str]) -> None:
    sys.stdout.flush()
    os.execvp(command[0], command)  # noqa: S606 - a list, no shell
