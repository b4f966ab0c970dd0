"""The file with the clusters to which this user connected, and their tokens; only its owner can read it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from minicluster.errors import MiniclusterError
from minicluster.wire import Message


class CredentialsUnusable(MiniclusterError):
    """The file with the tokens cannot be read or written."""


class SavedCluster(Message):
    """A cluster. url: its hub's address. pem: the certificates to trust; empty: the usual authorities."""

    url: str
    token: str
    pem: str = ""


class _Clusters(Message):
    """All clusters, the most recently connected first."""

    clusters: tuple[SavedCluster, ...] = ()


class Credentials:
    """The file with tokens. Each call reads it again, since other kernels write to it."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        home = environ.get("XDG_CONFIG_HOME") or "~/.config"
        self.path = Path(home).expanduser() / "minicluster" / "clusters.json"

    def __str__(self) -> str:
        """Return the file's path for messages."""
        home = Path.home()
        return f"~/{self.path.relative_to(home)}" if self.path.is_relative_to(home) else str(self.path)

    def last(self) -> SavedCluster | None:
        """Return the cluster of the last connection. Raises CredentialsUnusable."""
        return next(iter(self._read()), None)

    def of(self, url: str) -> SavedCluster | None:
        """Return the saved cluster of a hub. Raises CredentialsUnusable."""
        return next((kept for kept in self._read() if kept.url == url), None)

    def keep(self, cluster: SavedCluster) -> None:
        """Save a cluster as the last connected one. Raises CredentialsUnusable."""
        others = (kept for kept in self._read() if kept.url != cluster.url)
        self._write(_Clusters(clusters=(cluster, *others)))

    def forget(self, url: str) -> None:
        """Delete a cluster and its token. Raises CredentialsUnusable."""
        self._write(_Clusters(clusters=tuple(kept for kept in self._read() if kept.url != url)))

    def _read(self) -> tuple[SavedCluster, ...]:
        try:
            with self.path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                text = file.read()
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise CredentialsUnusable(f"{self.path} cannot be read: {error.strerror}.") from None
        if os.name == "posix" and mode & 0o077:
            raise CredentialsUnusable(
                f"{self.path} holds your tokens, and others on this machine may read it.",
                f"If nobody did: chmod 600 {self.path}. Else delete it and revoke the tokens on the hub.",
            )
        try:
            return _Clusters.model_validate_json(text).clusters
        except ValidationError:
            raise CredentialsUnusable(
                f"{self.path} is damaged.", "Delete it, and connect again with a new token."
            ) from None

    def _write(self, clusters: _Clusters) -> None:
        fresh = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            opened = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(opened, "wb") as file:
                file.write(clusters.model_dump_json(indent=1).encode())
            fresh.replace(self.path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise CredentialsUnusable(
                f"The token could not be saved in {self.path.parent}: {error.strerror}.",
                "Free disk space, choose another folder with XDG_CONFIG_HOME, or set MINICLUSTER_TOKEN_FILE.",
            ) from None
