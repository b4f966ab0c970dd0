"""Where notebook servers find the job service, and where their users' browsers do.

With per-user subdomains (JupyterHub.subdomain_host) the service has a domain of its own; the proxy knows it
by no other. A server then speaks to the service itself, and is told the domain for the links that it shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit


def use_subdomains(c: Any, hub_url: str, direct_url: str) -> None:
    """Give users' servers and services names below the hub's: then they share no origin.

    hub_url: as browsers type it, without a path. direct_url: of the job service, as the proxy reaches it.
    Notebooks outside of the hub know the hub's name alone: the service is there, too, for who shows a token.
    """
    c.JupyterHub.subdomain_host = hub_url
    # A page below a name can set cookies for that name, and so put its own login in another's place. Browsers
    # refuse that for names that begin with `__Host-`, which TLS alone may have.
    c.JupyterHub.cookie_host_prefix_enabled = hub_url.startswith("https:")
    c.Proxy.extra_routes = {f"{urlsplit(hub_url).hostname}/services/minicluster/": direct_url}


def environment(service: str, proxy_url: str, direct_url: str) -> dict[str, Callable[[Any], str]]:
    """Return variables as Spawner.environment takes them: functions of a spawner, called at each start.

    proxy_url, direct_url: of the public port and of the service, as this machine reaches them.
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
