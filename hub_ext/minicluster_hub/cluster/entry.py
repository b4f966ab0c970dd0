"""The entry point of the cluster's services: reads their secrets, and execs hub, proxy or job service."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from minicluster_hub.cluster.plan.policy_container import FOLDER, SOCKET

SECRETS = Path("/run/secrets")
_HUB_CONFIG = Path("/etc/minicluster/jupyterhub_config.py")
_BUILT_IN_CONFIG = Path(__file__).with_name("hub_config.py")
_PYTHON = [sys.executable, "-P", "-m"]
_MODULES = {
    "relay": "registry.relay",
    "docker-proxy": "docker_proxy.__main__",
    "ready": "ready",
    "firewall": "firewall.program",
    "eviction": "eviction.program",
}
"""Programs with a main() of their own. A service imports only its program."""


def run(words: Sequence[str]) -> int:
    """Run the program that the first word names."""
    kinds: dict[str, Callable[[Sequence[str]], int]] = {
        "hub": _hub,
        "proxy": _proxy,
        "service": _service,
        "policy": lambda words: _become(*_PYTHON, "minicluster_hub.policy.sandbox_server", SOCKET, FOLDER),
        "account": _account,
        "sweep": lambda words: import_module("minicluster_hub.cluster.firewall.sweep").main(words),
        "address": _address,
    }
    kind, rest = (words[0], words[1:]) if words else ("", ())
    if kind in _MODULES:
        return import_module(f"minicluster_hub.cluster.{_MODULES[kind]}").main()
    if kind in kinds:
        return kinds[kind](rest)
    sys.stderr.write(f"minicluster: run needs one of {', '.join((*kinds, *_MODULES))}\n")
    return 2


def secret(name: str) -> str:
    """Return a secret of this service."""
    return (SECRETS / name).read_text().strip()


def _hub(words: Sequence[str]) -> int:
    config = _HUB_CONFIG if _HUB_CONFIG.exists() else _BUILT_IN_CONFIG
    folder = Path(os.environ["MINICLUSTER_DATA"], "hub")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chdir(folder)
    os.umask(0o077)
    return _become(*_PYTHON, "minicluster_hub.launch.hub", "-f", str(config), *words)


def _proxy(words: Sequence[str]) -> int:
    os.environ["CONFIGPROXY_AUTH_TOKEN"] = secret("proxy_token")
    certificate, key = SECRETS / "tls_cert", SECRETS / "tls_key"
    tls = [f"--ssl-cert={certificate}", f"--ssl-key={key}"] if certificate.exists() else []
    return _become(
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
    )


def _service(words: Sequence[str]) -> int:
    os.environ["JUPYTERHUB_API_TOKEN"] = secret("service_token")
    database = SECRETS / "db_url"
    # Listen on the platform's network only, so that programs on the machine cannot connect.
    address = socket.gethostbyname(socket.gethostname())
    return _become(
        *_PYTHON,
        "minicluster_hub",
        *words,
        *([f"--db-url-file={database}"] if database.exists() else []),
        *service_urls(os.environ),
        f"--MiniclusterHub.bind_url=http://{address}:8082",
        f"--MiniclusterHub.data_agent_token_file={SECRETS / 'keeper_token'}",
    )


def service_urls(environ: Mapping[str, str]) -> list[str]:
    """Return the options with the URLs of this and of all job services; [] if it is the only one."""
    services = environ.get("MINICLUSTER_SERVICES", "")
    if not services:
        return []
    urls = dict(pair.split("=", 1) for pair in services.split(","))
    own = urls.get(environ.get("MINICLUSTER_NODE_ID", ""), "")
    # A node promoted to manager after the last `up` has no URL: its job service follows, without agents.
    own_option = [f"--MiniclusterHub.task_url={own}"] if own else []
    return [*own_option, *(f"--MiniclusterHub.task_urls={url}" for url in urls.values())]


def _account(words: Sequence[str]) -> int:
    from minicluster_hub.cluster.commands.accounts import change

    return change(Path(os.environ["MINICLUSTER_DATA"]), words)


def _address(words: Sequence[str]) -> int:
    """Print the address of this machine's default route. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return 1
        print(probe.getsockname()[0])  # noqa: T201
    return 0


def _become(*command: str) -> int:
    """Replace this process by the command; never returns."""
    sys.stdout.flush()
    os.execvp(command[0], command)  # noqa: S606 - a list, no shell
