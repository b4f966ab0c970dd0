"""A notebook outside of the hub, for tests of a laptop's connection."""

from __future__ import annotations

import os

import pytest

from minicluster.client.credentials import Credentials, SavedCluster
from minicluster.client.reach import HubNotFound

from .fronts import TlsFront

HEALTH = "/services/minicluster/health"
HUB = {"/hub/api/": (200, {"Content-Type": "application/json"}, '{"version": "6.1.1"}')}


@pytest.fixture
def laptop(notebook, tmp_path, monkeypatch):
    """A notebook outside of the hub, with ada's token in a file."""
    for name in [name for name in os.environ if name.startswith(("JUPYTERHUB_", "MINICLUSTER_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    token = tmp_path / "token"
    token.write_text("ada-token\n")
    monkeypatch.setenv("MINICLUSTER_TOKEN_FILE", str(token))
    return notebook


@pytest.fixture
def kept(laptop, cluster, monkeypatch):
    """A laptop that was connected before: its token is saved in the file."""
    monkeypatch.delenv("MINICLUSTER_TOKEN_FILE")
    Credentials().keep(SavedCluster(url=hub_of(cluster), token="ada-token"))
    return laptop


@pytest.fixture
def front(cluster, tmp_path):
    made = TlsFront(tmp_path, cluster.port)
    yield made
    made.close()


def hub_of(cluster):
    return f"http://127.0.0.1:{cluster.port}/"


def refused(laptop, url, kind=HubNotFound, more=""):
    error = laptop.fails(f"%distribute connect {url} {more}", kind)
    assert error.hint, "nothing says what to do"
    return str(error)


def magics(laptop):
    return laptop.shell.magics_manager.registry["Distribute"]
