"""A real registry, set up as the cluster's by `up`: TLS by its own authority, and a password."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minicluster_hub.cluster.plan.certificates import make_ca_and_cert
from minicluster_hub.cluster.registry.config import htpasswd_line, registry_config
from minicluster_hub.images.registry import Registry

if TYPE_CHECKING:
    from ...conftest import Needs

PROGRAM = shutil.which("docker-registry")
LOGIN = ("publisher", "a-test's-password-of-some-length")


@dataclass
class RealRegistry:
    """docker-registry on loopback, its files below `folder`."""

    folder: Path
    port: int = 0

    def start(self) -> None:
        self.folder.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        made = make_ca_and_cert(["127.0.0.1"], 30)
        for name, text in (("ca", made.ca_pem), ("cert", made.cert_pem), ("key", made.key_pem)):
            (self.folder / name).write_text(text)
        (self.folder / "htpasswd").write_text(htpasswd_line(*LOGIN))
        (self.folder / "login").write_text(":".join(LOGIN) + "\n")
        (self.folder / "config.json").write_text(json.dumps(self._settings()))
        command = [str(PROGRAM), "serve", str(self.folder / "config.json")]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + 20
        while not self._listens():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "the registry does not listen"
            time.sleep(0.02)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> str:
        return str(self.folder / "ca")

    def client(self, login: tuple[str, str] | None = LOGIN) -> Registry:
        return Registry(f"https://{self.name}", login, self.ca_file)

    def _settings(self) -> dict[str, object]:
        settings = json.loads(registry_config())
        settings["storage"]["filesystem"]["rootdirectory"] = str(self.folder / "data")
        tls = {"certificate": str(self.folder / "cert"), "key": str(self.folder / "key")}
        settings["http"] |= {"addr": self.name, "tls": tls}
        settings["auth"]["htpasswd"]["path"] = str(self.folder / "htpasswd")
        return settings

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def running(folder: Path, needs: Needs) -> Iterator[RealRegistry]:
    """Run a registry; skip the test if docker-registry is not installed."""
    needs(PROGRAM, "docker-registry is not installed")
    made = RealRegistry(folder)
    made.start()
    try:
        yield made
    finally:
        made.stop()
