"""How browsers log in to the job service where it has a name of its own, below the hub's."""

from __future__ import annotations

from minicluster_hub.cluster.choices import SERVICE_PREFIX, TLS_NONE, Choices


def login_environment(choices: Choices) -> dict[str, str]:
    """Return where the job service sends browsers for a login, and by what name they come back to it."""
    if not choices.domain:
        return {}
    return {
        "JUPYTERHUB_HOST": choices.url(""),
        "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{choices.service_url}{SERVICE_PREFIX}oauth_callback",
        "JUPYTERHUB_COOKIE_HOST_PREFIX_ENABLED": str(int(choices.tls != TLS_NONE)),
    }
