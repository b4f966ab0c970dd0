"""`configure`, which jupyterhub_config.py calls: a hub with our login, our spawner and the job service.

It sets traits of the given config object only, so a lab's own lines after the call win.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tornado.httpserver import HTTPServer

from minicluster_hub.hub import swarm_config
from minicluster_hub.login.accounts_file import ADMIN_GROUP
from minicluster_hub.settings import Settings
from minicluster_hub.support.processes import DATA_LABEL

SERVICE = "minicluster"
SPAWNER = "minicluster-spawner"
READ, SUBMIT, ADMIN, POLICY, PLACE, MODELS = (
    f"custom:{SERVICE}:{what}" for what in ("read", "submit", "admin", "policy", "place", "models")
)
USER_SCOPES = (f"access:services!service={SERVICE}", f"{SUBMIT}!user", f"{READ}!user")

MOST_BYTES = 1 << 18
"""Most bytes of a request's body to the hub. The longest usual one names 3000 users at once."""
_BODY_S = 60.0


def configure(
    c: Any,
    *,
    data_dir: str | Path | None = None,
    nodes: int | None = None,
    service_url: str | None = None,
    service_token: str | None = None,
    service_args: tuple[str, ...] = (),
    spawner_token: str | None = None,
) -> Settings:
    """Set up JupyterHub for Minicluster and return the settings used.

    data_dir: folder of all data; default: that of `./run --data`.
    nodes: virtual nodes of this machine (engine `local`); default: that of `./run --nodes`.
    service_url, service_token: of a job service that the hub does not start, so that it survives the hub's
        restarts. The token is its own, at least 32 random characters.
    service_args: further options of a job service that the hub starts.
    spawner_token: with it the spawner asks the job service for the placement of notebook servers (at least
        32 random characters). Without one, notebook servers take no slots.
    """
    defaults = Settings.from_environment()
    settings = dataclasses.replace(
        defaults,
        data_dir=Path(data_dir).absolute() if data_dir else defaults.data_dir,
        nodes=nodes or defaults.nodes,
    )
    if bool(service_url) != bool(service_token):
        raise ValueError("configure(): service_url and service_token belong together; give both or neither.")
    limit_requests()
    _hub(c, settings)
    _login(c, settings)
    swarm = swarm_config.SwarmSettings.read()
    _scopes(c, one_machine=swarm is None)
    if swarm is None:
        _servers(c, settings)
    else:
        swarm_config.set_up(c, swarm)
        if service_url is None:
            service_url, service_token = swarm.service_url, swarm.service_token
        spawner_token = spawner_token or swarm.spawner_token
    direct_url = service_url or f"http://127.0.0.1:{settings.ports.service}"
    if settings.domain:
        hub_url = swarm.public_url if swarm else settings.browsers_url
        use_subdomains(c, hub_url, direct_url)
    c.Spawner.environment = environment(SERVICE, settings.url, direct_url)
    external = {"url": service_url, "api_token": service_token}
    c.JupyterHub.services = [_service(external if service_url else _managed(settings, service_args))]
    if spawner_token:
        _let_place_servers(c, spawner_token)
    return settings


def _hub(c: Any, settings: Settings) -> None:
    folder = settings.data_dir / "hub"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    c.JupyterHub.bind_url = settings.bind_url
    c.JupyterHub.hub_bind_url = f"http://127.0.0.1:{settings.ports.hub}"
    c.JupyterHub.db_url = f"sqlite:///{folder / 'jupyterhub.sqlite'}"
    c.JupyterHub.upgrade_db = True
    c.JupyterHub.cookie_secret_file = str(folder / "cookie_secret")
    c.JupyterHub.cleanup_servers = False
    c.JupyterHub.concurrent_spawn_limit = 10
    c.JupyterHub.service_check_interval = 60
    # JupyterHub measures its event loop 20 times a second, which is most of an idle hub's load. Twice a
    # second is enough to log a loop that hung for more than a second.
    c.PeriodicMetricsCollector.event_loop_interval_resolution = 0.5
    c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{settings.ports.proxy}"
    c.ConfigurableHTTPProxy.pid_file = str(folder / "proxy.pid")
    c.ConfigurableHTTPProxy.log_level = "warn"


def _login(c: Any, settings: Settings) -> None:
    c.JupyterHub.authenticator_class = "minicluster_hub.login.authenticator.PasswordAuthenticator"
    c.PasswordAuthenticator.passwords_file = str(settings.data_dir / "passwords.json")


def _scopes(c: Any, *, one_machine: bool) -> None:
    """Declare the scopes, and who gets them. A server's token gets only scopes that its owner has, too."""
    c.JupyterHub.custom_scopes = {
        READ: {"description": "See one's own jobs, their logs and results, and the cluster's nodes"},
        MODELS: {"description": "Ask served models"},
        SUBMIT: {"description": "Submit and stop one's own jobs", "subscopes": [READ, MODELS]},
        ADMIN: {"description": "See and stop everybody's jobs", "subscopes": [SUBMIT, POLICY]},
        POLICY: {"description": "Choose the scheduling policy"},
        PLACE: {"description": "Give notebook servers their nodes and GPUs"},
    }
    c.JupyterHub.extra_user_scopes = set(USER_SCOPES)
    c.JupyterHub.template_paths = [str(Path(__file__).parent / "hub" / "templates")]
    c.JupyterHub.template_vars = {"minicluster_permissions": " ".join(USER_SCOPES)}
    c.JupyterHub.load_roles = [{"name": "minicluster-admin", "scopes": [ADMIN], "groups": [ADMIN_GROUP]}]
    # This list replaces the scopes of the role `server`, so it repeats that role's two scopes.
    own = ["users:activity!user", "access:servers!server", *USER_SCOPES]
    # An example notebook compares policies, and on one machine the first user is an admin. Not ADMIN: whoever
    # gets hold of such a token, from a saved output for instance, could read and stop the jobs of all users.
    c.Spawner.server_token_scopes = [*own, POLICY] if one_machine else own


def _let_place_servers(c: Any, token: str) -> None:
    """Allow the spawner, and no user, to place notebook servers on nodes and slots."""
    c.JupyterHub.services.append({"name": SPAWNER, "api_token": token, "display": False})
    c.JupyterHub.load_roles.append({"name": SPAWNER, "scopes": [PLACE], "services": [SPAWNER]})


def _servers(c: Any, settings: Settings) -> None:
    c.JupyterHub.spawner_class = "minicluster_spawner.process.ProcessSpawner"
    c.ProcessSpawner.data_dir = str(settings.data_dir)
    c.Spawner.default_url = "/lab"


def _service(how: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": SERVICE,
        "display": True,
        "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": [*USER_SCOPES, ADMIN],
        **how,
    }


def _managed(settings: Settings, service_args: tuple[str, ...]) -> dict[str, Any]:
    """Return a job service that the hub starts, and restarts when it ends."""
    return {
        "url": f"http://127.0.0.1:{settings.ports.service}",
        "command": [
            sys.executable,
            "-P",
            "-m",
            "minicluster_hub",
            f"--data-dir={settings.data_dir}",
            "--engine=local",
            f"--LocalEngine.node_count={settings.nodes}",
            *([f"--MiniclusterHub.policies_dir={settings.policies_dir}"] if settings.policies_dir else []),
            *service_args,
        ],
        "environment": {DATA_LABEL: str(settings.data_dir)},
    }


# URLs of the job service for notebook servers and for their users' browsers.
# With per-user subdomains (JupyterHub.subdomain_host) the service has its own domain, and the proxy routes no
# other to it. A notebook server then calls the service directly, and gets the domain for links that it shows.


def use_subdomains(c: Any, hub_url: str, direct_url: str) -> None:
    """Give users' servers and services subdomains of the hub's domain, so that none share an origin.

    hub_url: as people type it, without a path. direct_url: of the job service, as the proxy reaches it.
    Notebooks outside of the hub know only the hub's domain, so the proxy routes the service there, too.
    """
    c.JupyterHub.subdomain_host = hub_url
    # A page on a subdomain can set cookies for the parent domain, and so replace a user's login by its own.
    # Browsers refuse this for cookies named `__Host-...`, which need TLS.
    c.JupyterHub.cookie_host_prefix_enabled = hub_url.startswith("https:")
    c.Proxy.extra_routes = {f"{urlsplit(hub_url).hostname}/services/minicluster/": direct_url}


def environment(service: str, proxy_url: str, direct_url: str) -> dict[str, Callable[[Any], str]]:
    """Return variables for Spawner.environment: functions of a spawner, which it calls at each start.

    proxy_url, direct_url: the public port and the service, as this machine reaches them.
    """

    def path(settings: dict[str, Any]) -> str:
        return f"{settings['base_url']}services/{service}/"

    def url(spawner: Any) -> str:
        settings = spawner.user.settings
        return (direct_url if settings.get("subdomain_host") else proxy_url) + path(settings)

    def pages(spawner: Any) -> str:
        settings = spawner.user.settings
        if not settings.get("subdomain_host"):
            return ""
        hub = urlsplit(settings["subdomain_host"])
        domain = settings["subdomain_hook"](service, hub.hostname, kind="service")
        port = f":{hub.port}" if hub.port else ""
        return f"{hub.scheme}://{domain}{port}{path(settings)}"

    return {"MINICLUSTER_URL": url, "MINICLUSTER_PAGES": pages}


# Limits of a request to the hub.


def limit_requests() -> None:
    """Limit the bodies of requests to all tornado servers made from now on. JupyterHub has no option for it.

    Tornado's default is 100 MB, held in memory until the whole body has come. Some dozen endless login forms
    from strangers would fill the machine's memory.
    """
    HTTPServer.configure(None, max_body_size=MOST_BYTES, body_timeout=_BODY_S)
