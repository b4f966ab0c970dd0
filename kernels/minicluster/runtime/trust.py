"""How agents know the job service: by the cluster's own authority, which the engine tells them."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from minicluster.runtime.settings import SettingsIncomplete

CA_ENV = "MINICLUSTER_SERVICE_CA"
"""A variable with the authority's certificate as PEM text: it is no secret."""


def trust(environ: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return what verifies the job service; None where no authority is told. Raises SettingsIncomplete."""
    ca_pem = environ.get(CA_ENV, "")
    if not ca_pem:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The authority signed one certificate and its key is gone, so a name proves nothing more. And the service
    # may move to a machine that was added after this task had started.
    context.check_hostname = False
    try:
        context.load_verify_locations(cadata=ca_pem)
    except ssl.SSLError as error:
        raise SettingsIncomplete(f"{CA_ENV} holds no certificate: {error}.") from error
    return context
