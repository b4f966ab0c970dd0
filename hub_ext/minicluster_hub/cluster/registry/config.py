"""Settings of the cluster's registry and its cache: config.yml for the image registry:3 (2.8 takes it too).

Both have TLS and a password. The password file has no permissions: each user may read and write. So only the
relay has the reader's password, and it forwards only requests that read.
"""

from __future__ import annotations

import json

import bcrypt

CONFIG_FILE = "/run/secrets/registry_config"
CERT_FILE, KEY_FILE = "/run/secrets/registry_cert", "/run/secrets/registry_key"
HTPASSWD_FILE = "/run/secrets/registry_htpasswd"
DATA_DIR = "/var/lib/registry"
LISTEN_PORT = 5000
_KEEP_CACHED = "8760h"
_ROUNDS = 4
"""bcrypt's cost. The registry hashes at each request. Random passwords need no higher cost."""


def registry_config(upstream: str | None = None) -> str:
    """Return config.yml (JSON is YAML too) of the registry of published images or of an upstream's cache."""
    settings: dict[str, object] = {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {
            "filesystem": {"rootdirectory": DATA_DIR},
            "delete": {"enabled": True},
            "cache": {"blobdescriptor": "inmemory"},
        },
        "http": {
            "addr": f":{LISTEN_PORT}",
            # Relative locations lead an upload back through the port of its first request.
            "relativeurls": True,
            "headers": {"X-Content-Type-Options": ["nosniff"]},
            "tls": {"certificate": CERT_FILE, "key": KEY_FILE},
        },
        "auth": {"htpasswd": {"realm": "minicluster", "path": HTPASSWD_FILE}},
        "health": {"storagedriver": {"enabled": True, "interval": "10s", "threshold": 3}},
    }
    if upstream is not None:
        settings["proxy"] = {"remoteurl": upstream, "ttl": _KEEP_CACHED}
    return json.dumps(settings, indent=2) + "\n"


def htpasswd_line(user: str, password: str) -> str:
    """Return one line of the password file. Only for random passwords of at least 100 bits."""
    if ":" in user:
        raise ValueError(f"{user!r} cannot be a registry user: its name holds a colon")
    digest = bcrypt.hashpw(password.encode(), bcrypt.gensalt(_ROUNDS)).decode()
    return f"{user}:{digest}\n"
