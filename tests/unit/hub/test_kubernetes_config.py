"""`configure(c, engine="kubernetes")` in a pod: it adds to what JupyterHub's chart set."""

from __future__ import annotations

from typing import Any

import pytest
from traitlets.config import Config

from minicluster_hub.configure import configure
from minicluster_hub.hub.kubernetes_config import HubNotReady, KubernetesSettings


@pytest.fixture(autouse=True)
def in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")


def charts(*services: str) -> Any:
    """A configuration as the chart left it, with these of its services."""
    c = Config()
    c.JupyterHub.services = [{"name": name, "api_token": f"token of {name}"} for name in services]
    c.JupyterHub.load_roles = [{"name": "theirs", "scopes": ["list:users"]}]
    c.JupyterHub.db_url = "sqlite:///theirs.sqlite"
    c.JupyterHub.authenticator_class = "dummy"
    c.KubeSpawner.environment = {"THEIRS": "1"}
    return c


def test_the_job_service_logs_users_in_with_the_charts_token() -> None:
    c = charts("minicluster", "minicluster-spawner", "another")
    configure(c, engine="kubernetes")
    service = next(one for one in c.JupyterHub.services if one["name"] == "minicluster")
    assert service["api_token"] == "token of minicluster"
    assert service["url"] == "http://minicluster:8082"
    assert "custom:minicluster:submit!user" in service["oauth_client_allowed_scopes"]


def test_a_proxy_with_a_certificate_of_its_own_is_reached_without_it() -> None:
    plain = KubernetesSettings.read({})
    certified = KubernetesSettings.read({"PROXY_HTTP_SERVICE_HOST": "10.96.0.9"})
    assert plain.proxy_url == "http://proxy-public" and certified.proxy_url == "http://proxy-http:8000"


def test_the_job_service_is_below_the_hubs_own_path() -> None:
    c = charts("minicluster", "minicluster-spawner")
    c.JupyterHub.base_url = "/lab/"
    configure(c, engine="kubernetes")
    assert c.MiniclusterKubeSpawner.service_url == "http://minicluster:8082/lab/services/minicluster/"


def test_the_page_token_offers_the_permissions_beside_a_labs_own_pages() -> None:
    c = charts("minicluster", "minicluster-spawner")
    c.JupyterHub.template_paths = ["theirs"]
    configure(c, engine="kubernetes")
    assert c.JupyterHub.template_paths[0] == "theirs" and len(c.JupyterHub.template_paths) == 2


def test_what_the_chart_set_stays() -> None:
    c = charts("minicluster", "minicluster-spawner")
    configure(c, engine="kubernetes")
    assert c.JupyterHub.db_url == "sqlite:///theirs.sqlite"
    assert c.JupyterHub.authenticator_class == "dummy"
    assert {role["name"] for role in c.JupyterHub.load_roles} == {
        "theirs",
        "minicluster-admin",
        "minicluster-spawner",
    }
    assert c.KubeSpawner.environment == {"THEIRS": "1"}


def test_servers_take_gpus_from_the_ledger_with_a_token_that_the_hub_has() -> None:
    c = charts("minicluster", "minicluster-spawner")
    configure(c, engine="kubernetes")
    assert c.JupyterHub.spawner_class == "minicluster_spawner.kubernetes.spawner.MiniclusterKubeSpawner"
    spawner = c.MiniclusterKubeSpawner
    assert spawner.service_url == "http://minicluster:8082/services/minicluster/"
    assert spawner.ledger_token_file.endswith("/hub.services.minicluster-spawner.apiToken")


@pytest.mark.parametrize("services", [(), ("minicluster",)])
def test_a_value_that_is_missing_is_named(services: tuple[str, ...]) -> None:
    missing = "minicluster-spawner" if services else "minicluster"
    with pytest.raises(HubNotReady, match=rf"hub\.services\.{missing}"):
        configure(charts(*services), engine="kubernetes")
