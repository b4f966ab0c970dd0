"""What `configure` sets; a site's own settings take precedence."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyterhub.utils import subdomain_hook_idna as by_name
from traitlets.config import Config

from minicluster_hub.configure import configure
from minicluster_hub.settings import Ports, Settings

TOKEN = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings as passed by `./run` in the environment."""
    where = {"host": "0.0.0.0", "port": 8123, "nodes": 5, "ports": Ports(1001, 1002, 1003)}
    options = Settings(tmp_path / "data", **where, policies_dir=tmp_path / "policies")
    for name, value in options.environment().items():
        monkeypatch.setenv(name, value)
    return options


def test_settings_come_through_the_environment_unchanged(settings: Settings) -> None:
    assert Settings.from_environment() == settings
    assert settings.url == "http://127.0.0.1:8123"
    assert settings.bind_url == "http://0.0.0.0:8123"


@pytest.mark.parametrize(
    ("host", "url"),
    [("::1", "http://[::1]:8000"), ("::", "http://[::1]:8000"), ("lab.org", "http://lab.org:8000")],
)
def test_the_url_reaches_the_hub_from_its_own_machine(host: str, url: str) -> None:
    assert Settings(Path("data"), host=host).url == url


def test_the_hub_starts_the_service_with_what_run_said(settings: Settings) -> None:
    c = Config()
    assert configure(c) == settings
    (service,) = c.JupyterHub.services
    assert service["url"] == "http://127.0.0.1:1003"
    assert f"--data-dir={settings.data_dir}" in service["command"]
    assert "--LocalEngine.node_count=5" in service["command"]
    assert f"--MiniclusterHub.policies_dir={settings.policies_dir}" in service["command"]
    assert service["environment"]["MINICLUSTER_DATA"] == str(settings.data_dir)


@pytest.mark.parametrize(
    ("hub", "url", "pages"),
    [
        ({"base_url": "/"}, "http://127.0.0.1:8123/services/minicluster/", ""),
        ({"base_url": "/lab/"}, "http://127.0.0.1:8123/lab/services/minicluster/", ""),
        (
            {
                "base_url": "/",
                "subdomain_host": "https://lab.org:8443",
                "subdomain_hook": by_name,
            },
            "http://127.0.0.1:1003/services/minicluster/",
            "https://minicluster--service.lab.org:8443/services/minicluster/",
        ),
    ],
)
def test_servers_and_browsers_find_the_service(
    settings: Settings, hub: dict[str, Any], url: str, pages: str
) -> None:
    c = Config()
    configure(c)
    spawner = SimpleNamespace(user=SimpleNamespace(settings=hub))
    environment = {name: value(spawner) for name, value in c.Spawner.environment.items()}
    assert environment == {"MINICLUSTER_URL": url, "MINICLUSTER_PAGES": pages}


def test_a_domain_is_the_hubs_and_leads_to_the_service_as_well(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINICLUSTER_DOMAIN", "lab.org")
    c = Config()
    assert configure(c).browsers_url == c.JupyterHub.subdomain_host == "http://lab.org:8123"
    assert not c.JupyterHub.cookie_host_prefix_enabled
    assert c.Proxy.extra_routes == {"lab.org/services/minicluster/": "http://127.0.0.1:1003"}


def test_arguments_win_over_the_environment(settings: Settings, tmp_path: Path) -> None:
    c = Config()
    used = configure(c, data_dir=tmp_path / "other", nodes=2, service_args=("--policy=fifo",))
    assert (used.data_dir, used.nodes, used.port) == (tmp_path / "other", 2, 8123)
    assert c.JupyterHub.services[0]["command"][-1] == "--policy=fifo"
    assert str(tmp_path / "other") in c.JupyterHub.db_url


def test_a_service_of_its_own_is_not_started_by_the_hub(settings: Settings) -> None:
    c = Config()
    configure(c, service_url="http://127.0.0.1:9000", service_token=TOKEN)
    (service,) = c.JupyterHub.services
    assert "command" not in service
    assert (service["url"], service["api_token"]) == ("http://127.0.0.1:9000", TOKEN)


@pytest.mark.parametrize("half", [{"service_url": "http://127.0.0.1:9000"}, {"service_token": TOKEN}])
def test_half_of_an_external_service_is_refused(settings: Settings, half: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="service_url and service_token"):
        configure(Config(), **half)  # pyright: ignore[reportArgumentType]


def test_scopes_are_those_that_the_service_asks_for(settings: Settings) -> None:
    c = Config()
    configure(c)
    own = {
        "access:services!service=minicluster",
        "custom:minicluster:submit!user",
        "custom:minicluster:read!user",
    }
    assert c.JupyterHub.extra_user_scopes == own
    # The hub gives a token no scope that its owner lacks, so only admins' notebooks may choose a policy.
    of_server = {"users:activity!user", "access:servers!server", "custom:minicluster:policy"}
    assert set(c.Spawner.server_token_scopes) == own | of_server
    (service,) = c.JupyterHub.services
    assert set(service["oauth_client_allowed_scopes"]) == own | {"custom:minicluster:admin"}
    assert set(c.JupyterHub.custom_scopes) == {
        f"custom:minicluster:{what}" for what in ("read", "submit", "admin", "policy", "place", "models")
    }
    assert "admin" not in service


def test_only_the_spawners_service_may_place_servers(settings: Settings) -> None:
    c = Config()
    configure(c, spawner_token=TOKEN)
    spawner = c.JupyterHub.services[1]
    assert (spawner["name"], spawner["api_token"]) == ("minicluster-spawner", TOKEN)
    holders = [role for role in c.JupyterHub.load_roles if "custom:minicluster:place" in role["scopes"]]
    assert [(role.get("services"), role.get("users"), role.get("groups")) for role in holders] == [
        (["minicluster-spawner"], None, None)
    ]
    without = Config()
    configure(without)
    assert len(without.JupyterHub.services) == len(without.JupyterHub.load_roles) == 1


def test_nobody_gets_in_unless_the_login_says_so(settings: Settings) -> None:
    c = Config()
    configure(c)
    assert c.JupyterHub.authenticator_class == "minicluster_hub.login.authenticator.PasswordAuthenticator"
    assert "allow_all" not in c.Authenticator
