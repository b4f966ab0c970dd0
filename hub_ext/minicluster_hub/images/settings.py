"""The options of the cluster's registry (`--RegistrySettings.url=...` and others), and pip's variables."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from traitlets import Unicode
from traitlets.config import LoggingConfigurable

from minicluster_hub.images.registry import Registries, Registry


class RegistryBroken(ValueError):
    """The settings are unusable; the message is one sentence for the admin."""


class RegistrySettings(LoggingConfigurable):
    """The registry for published images, and the cache of images from outside."""

    url = Unicode(
        help="URL of the registry for published images, as the service reaches it; empty: no publishing."
    ).tag(config=True)
    name = Unicode("127.0.0.1:5100", help="The same registry's address on the nodes.").tag(config=True)
    cache_url = Unicode(help="URL of the cache of images from outside, as the service reaches it.").tag(
        config=True
    )
    cache_name = Unicode("127.0.0.1:5101", help="The same cache's address on the nodes.").tag(config=True)
    ca_file = Unicode(help="File with the CA of their certificates; empty: the system's CAs.").tag(
        config=True
    )
    login_file = Unicode(help="File with NAME:PASSWORD of the registries; empty: no login.").tag(config=True)

    def registries(self) -> Registries:
        """Return the clients of these registries. Raises RegistryBroken."""
        urls = {self.name: self.url, self.cache_name: self.cache_url}
        login = self._login()
        try:
            found = {name: Registry(url, login, self.ca_file) for name, url in urls.items() if url}
        except OSError as error:
            raise RegistryBroken(
                f"RegistrySettings.ca_file: {self.ca_file} cannot be used ({error.strerror or error})"
            ) from error
        return Registries(found, self.name if self.url else "")

    def _login(self) -> tuple[str, str] | None:
        if not self.login_file:
            return None
        try:
            name, _, password = Path(self.login_file).read_text().strip().partition(":")
        except OSError as error:
            raise RegistryBroken(
                f"RegistrySettings.login_file: {self.login_file} cannot be read ({error.strerror})"
            ) from error
        return name, password


def pip_environment(index_url: str) -> dict[str, str]:
    """Return the variables that make pip use a mirror, and trust its host if that has no TLS."""
    if not index_url:
        return {}
    url = urlsplit(index_url)
    trust = {"PIP_TRUSTED_HOST": url.netloc.rpartition("@")[2]} if url.scheme == "http" else {}
    return {"PIP_INDEX_URL": index_url, **trust}
