"""Homes on a file server, as `up --shared-homes` is told them."""

from __future__ import annotations


def volume_options(text: str) -> dict[str, str]:
    """Return SERVER:/PATH[,OPTION...] as options of Docker's volume driver; each user has a folder there."""
    where, _, options = text.partition(",")
    server, _, path = where.partition(":/")
    if not server or not path:
        raise ValueError(f"{text!r} is no NFS folder: it has to be SERVER:/PATH, with options after commas.")
    return {"device": f":/{path.rstrip('/')}/%s", "o": f"addr={server},{options or 'rw'}"}
