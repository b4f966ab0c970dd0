"""What hub and job service are told of the names by which browsers know them."""

from __future__ import annotations

from minicluster_hub.cluster.plan.choices import SERVICE_PREFIX, TLS_NONE, Choices


def public_url(choices: Choices, manager_address: str, *, anywhere: bool) -> str:
    """Return what the hub calls itself; "": as the browser does, where the proxy runs on any manager."""
    return "" if anywhere and not choices.served_names else choices.url(manager_address)


def login_environment(choices: Choices) -> dict[str, str]:
    """Return where the job service sends browsers for a login, and by what name they come back to it.

    Nothing where it shares the hub's name.
    """
    if not choices.domain:
        return {}
    return {
        "JUPYTERHUB_HOST": choices.url(""),
        "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{choices.service_url}{SERVICE_PREFIX}oauth_callback",
        "JUPYTERHUB_COOKIE_HOST_PREFIX_ENABLED": str(int(choices.tls != TLS_NONE)),
    }
