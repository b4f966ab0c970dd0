"""Small pure parts of the command: image names, groups of secrets, choices, accounts, engines."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

from minicluster_hub.cluster.commands import accounts
from minicluster_hub.cluster.commands.options import parse
from minicluster_hub.cluster.daemon import LEAST_VERSION, version_numbers
from minicluster_hub.cluster.errors import OptionUnusable
from minicluster_hub.cluster.plan import secrets
from minicluster_hub.cluster.plan.certificates import check_pair, make_ca_and_cert
from minicluster_hub.cluster.plan.choices import TLS_NONE, TLS_OWN, TLS_SELF_MADE, Choices
from minicluster_hub.cluster.plan.choosing import chosen, secret_groups
from minicluster_hub.cluster.registry import image_references
from minicluster_hub.configure import configure
from minicluster_hub.engines.swarm.docker import DockerMissing
from minicluster_hub.engines.swarm.shared_homes import volume_options
from minicluster_hub.hub.swarm_config import SwarmSettings
from minicluster_hub.login.accounts_file import PasswordFile

DIGEST = "sha256:" + "a" * 64


class FakeRegistry:
    """A fake daemon with images and registries' content."""

    def __init__(self, local: dict[str, dict[str, Any]], outside: dict[str, str]) -> None:
        self.local, self.outside = local, outside

    def call(self, method: str, name: str) -> Any:
        assert method == "inspect_image"
        if name not in self.local:
            raise DockerMissing(name)
        return self.local[name]

    def once(self, method: str, name: str) -> Any:
        assert method == "inspect_distribution"
        if name not in self.outside:
            raise DockerMissing(name)
        return {"Descriptor": {"digest": self.outside[name]}}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("hub", ("hub", "", "")),
        ("ghcr.io/lab/hub:1.0", ("ghcr.io/lab/hub", "1.0", "")),
        ("host:5000/hub", ("host:5000/hub", "", "")),
        (f"host:5000/hub:1@{DIGEST}", ("host:5000/hub", "1", DIGEST)),
    ],
)
def test_names_of_images_come_apart(name: str, parts: tuple[str, str, str]) -> None:
    assert image_references.split(name) == parts


@pytest.mark.parametrize(
    ("repository", "found"),
    [
        ("registry", ("docker.io", "library/registry")),
        ("lab/hub", ("docker.io", "lab/hub")),
        ("docker.io/registry", ("docker.io", "library/registry")),
        ("localhost/hub", ("localhost", "hub")),
        ("host:5000/a/b", ("host:5000", "a/b")),
    ],
)
def test_a_repository_has_a_registry_and_a_path(repository: str, found: tuple[str, str]) -> None:
    assert image_references.host_and_path(repository) == found


def test_an_image_of_the_upstream_comes_through_the_cache_by_digest() -> None:
    daemon: Any = FakeRegistry({}, {"lab/notebook:1": DIGEST})
    upstream = image_references.upstream_of("lab/notebook:1")
    assert upstream == "https://registry-1.docker.io"
    through = image_references.through_cache(daemon, "lab/notebook:1", upstream)
    assert through == f"127.0.0.1:5101/lab/notebook@{DIGEST}"


@pytest.mark.parametrize("upstream", [None, "https://ghcr.io"])
def test_an_image_from_elsewhere_is_published_instead(upstream: str | None) -> None:
    daemon: Any = FakeRegistry({}, {"lab/notebook:1": DIGEST})
    assert image_references.through_cache(daemon, "lab/notebook:1", upstream) is None


def test_a_digest_that_no_registry_has_is_not_believed() -> None:
    image = {"Id": "sha256:id", "RepoDigests": [f"lab/hub@{DIGEST}"]}
    here: Any = FakeRegistry({"lab/hub:dev": image}, {})
    assert image_references.for_the_platform(here, "lab/hub:dev", print) == "sha256:id"
    there: Any = FakeRegistry({"lab/hub:dev": image}, {f"lab/hub@{DIGEST}": DIGEST})
    assert image_references.for_the_platform(there, "lab/hub:dev", print) == f"lab/hub@{DIGEST}"


# --- secrets ----------------------------------------------------------------------------------


def secret(item: str, run: str, group: secrets.SecretGroup, made: str, until: str = "inf") -> dict[str, Any]:
    prefix = "org.minicluster."
    marks = {"item": item, "group": group.name, "run": run, "for": group.mark, "until": until}
    spec = {
        "Name": f"minicluster_{item}_{run}",
        "Labels": {prefix + key: value for key, value in marks.items()},
    }
    return {"ID": f"{item}-{run}", "CreatedAt": made, "Spec": spec}


PAIR = secrets.SecretGroup("pair", ("left", "right"), dict, made_for="a")


def test_a_group_that_was_cut_off_is_not_used() -> None:
    assert secrets.whole(PAIR, [secret("left", "r1", PAIR, "1")], 0.0) is None


def test_members_of_two_runs_are_not_mixed() -> None:
    there = [secret("left", "r1", PAIR, "1"), secret("right", "r2", PAIR, "2")]
    assert secrets.whole(PAIR, there, 0.0) is None


def test_the_newest_whole_run_counts() -> None:
    there = [secret(item, run, PAIR, run) for run in ("1", "2") for item in PAIR.items]
    found = secrets.whole(PAIR, there, 0.0)
    assert found and found["left"].id == "left-2"


def test_what_was_made_for_something_else_or_expires_soon_is_made_anew() -> None:
    other = secrets.SecretGroup("pair", ("left", "right"), dict, made_for="b")
    assert secrets.whole(PAIR, [secret(item, "1", other, "1") for item in PAIR.items], 0.0) is None
    old = [secret(item, "1", PAIR, "1", until="1000000") for item in PAIR.items]
    assert secrets.whole(PAIR, old, 999_999.0) is None
    assert secrets.whole(PAIR, old, -9_000_000.0) is not None


def test_the_registrys_password_file_fits_its_passwords() -> None:
    import bcrypt

    made = secrets.registry_passwords().make()
    for line in made["registry_htpasswd"].splitlines():
        name, _, digest = line.partition(":")
        user, _, password = made[f"registry_{name}"].partition(":")
        assert user == name
        assert bcrypt.checkpw(password.encode(), digest.encode())


def test_a_given_secret_that_is_gone_has_to_be_given_again() -> None:
    with pytest.raises(OptionUnusable, match="again"):
        secrets.provided("tls", {"tls_cert": "", "tls_key": ""}, "x").make()


# --- choices ----------------------------------------------------------------------------------


def test_a_plain_up_changes_nothing() -> None:
    before = Choices(port=8443, names=("a",), tls=TLS_NONE, server_gpus=2, service_options=("-x",))
    assert chosen(before, parse(["up"])) == before


def test_an_option_changes_just_that() -> None:
    before = Choices(port=8443, names=("a",))
    assert chosen(before, parse(["up", "--server-gpus", "1"])) == Choices(
        port=8443, names=("a",), server_gpus=1
    )
    assert chosen(before, parse(["up", "--share-gpus", "--server-gpus", "0.5"])) == Choices(
        port=8443, names=("a",), server_gpus=0.5, share_gpus=True
    )
    assert chosen(before, parse(["up", "--disk-reserve", "20g"])).disk_reserve_bytes == 20 * 10**9
    assert chosen(before, parse(["up", "--platform-memory", "8g"])).platform_memory_bytes == 8 * 10**9


def test_hub_and_job_service_are_given_what_they_start_with(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["up", "--platform-memory", "100m"])
    assert "hub and job service need 500m at least" in capsys.readouterr().err


def test_plain_http_goes_to_its_own_port_unless_told() -> None:
    assert (chosen(Choices(), parse(["up", "--http"]))).port == 80
    assert (chosen(Choices(), parse(["up", "--http", "--port", "8000"]))).port == 8000
    back = chosen(Choices(tls=TLS_NONE, port=80), parse(["up", "--self-made"]))
    assert (back.tls, back.port) == (TLS_SELF_MADE, 443)


def test_the_labs_certificate_has_to_fit_its_names(tmp_path: Path) -> None:
    made = make_ca_and_cert(["lab.example.org"])
    (tmp_path / "cert").write_text(made.cert_pem)
    (tmp_path / "key").write_text(made.key_pem)
    command = ["up", "--tls-cert", str(tmp_path / "cert"), "--tls-key", str(tmp_path / "key"), "--name"]
    assert chosen(Choices(), parse([*command, "lab.example.org"])).tls == TLS_OWN
    with pytest.raises(OptionUnusable, match=r"other\.example\.org"):
        chosen(Choices(), parse([*command, "other.example.org"]))


def test_a_certificate_has_to_hold_a_domain_and_all_names_below_it(tmp_path: Path) -> None:
    command = ["up", "--domain", "Hub.example.org"]

    def files(*names: str) -> list[str]:
        made = make_ca_and_cert(names)
        (tmp_path / "cert").write_text(made.cert_pem)
        (tmp_path / "key").write_text(made.key_pem)
        return ["--tls-cert", str(tmp_path / "cert"), "--tls-key", str(tmp_path / "key")]

    for names in (["hub.example.org"], ["*.hub.example.org"], ["hub.example.org", "*.example.org"]):
        with pytest.raises(OptionUnusable, match=r"not for .*hub\.example\.org"):
            chosen(Choices(), parse([*command, *files(*names)]))
    now = chosen(Choices(), parse([*command, *files("hub.example.org", "*.hub.example.org")]))
    assert (now.domain, now.tls) == ("hub.example.org", TLS_OWN)
    assert chosen(now, parse(["up"])) == chosen(now, parse(command)) == now
    with pytest.raises(OptionUnusable, match="certificate again"):
        chosen(now, parse(["up", "--domain", "other.example.org"]))
    assert chosen(now, parse(["up", "--domain", "none"])).domain == ""


def test_the_certificate_of_our_own_making_holds_a_domain_and_all_names_below_it() -> None:
    choices = Choices(domain="hub.example.org", names=("lab",))
    (group,) = [group for group in secret_groups(choices, parse(["up"]), []) if group.name == "tls"]
    made = group.make()
    check_pair(made["tls_cert"], made["tls_key"], ["hub.example.org", "ada.hub.example.org", "lab"])


@pytest.mark.parametrize(
    "words",
    [
        ["up", "--domain", "10.0.0.1"],
        ["up", "--domain", "*.example.org"],
        ["up", "--domain", "https://hub.example.org"],
        ["up", "--port", "0"],
        ["up", "--tls-cert", "/etc/hostname"],
        ["up", "--config", "/no/file"],
        ["sideways"],
    ],
)
def test_a_wrong_option_ends_with_a_word_about_it(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(words)
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("version", "old"),
    [("20.10.24+dfsg1", True), ("23.0.1", True), ("23.0.2", False), ("29.0.0-rc.1", False)],
)
def test_engines_that_are_too_old(version: str, old: bool) -> None:
    assert (version_numbers(version) < LEAST_VERSION) is old


def test_the_release_names_its_notebook_image(tmp_path: Path) -> None:
    assert image_references.notebook_of_this_release(tmp_path) == ""
    (tmp_path / "share" / "minicluster").mkdir(parents=True)
    (tmp_path / "share" / "minicluster" / "published.json").write_text(
        '{"notebook": "lab/notebook@sha256:1"}'
    )
    assert image_references.notebook_of_this_release(tmp_path) == "lab/notebook@sha256:1"


# --- accounts ---------------------------------------------------------------------------------


def test_the_first_password_is_made_until_it_was_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*words: str) -> str:
        assert accounts.change(tmp_path, words) == 0
        return capsys.readouterr().out

    users = PasswordFile(tmp_path / "passwords.json")
    lost, seen = printed("first"), printed("first")
    assert users.verify("admin", lost) is None
    assert users.verify("admin", seen)
    printed("told")
    assert printed("first") == ""
    assert users.verify("admin", seen)


def test_an_unknown_user_is_named_with_the_known_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accounts.change(tmp_path, ["add", "ada"])
    assert accounts.change(tmp_path, ["reset", "eve"]) == 1
    assert "ada" in capsys.readouterr().out


# --- the hub's configuration ------------------------------------------------------------------


def test_a_hub_on_a_swarm_finds_its_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("proxy_token", "service_token", "spawner_token"):
        (tmp_path / name).write_text(f"{name}-0123456789abcdef0123456789abcdef\n")
    monkeypatch.setattr("minicluster_hub.hub.swarm_config._SECRETS", tmp_path)
    environment = {
        "MINICLUSTER_ENGINE": "swarm",
        "MINICLUSTER_IMAGE": "n@sha256:1",
        "MINICLUSTER_SERVER_GPUS": "1",
    }
    place = SwarmSettings.read(environment, tmp_path)
    assert place is not None
    monkeypatch.setattr(SwarmSettings, "read", classmethod(lambda cls: place))
    c = Config()
    configure(c, data_dir=tmp_path / "data")
    assert c.JupyterHub.hub_connect_url == "http://hub:8081"
    assert c.ConfigurableHTTPProxy.should_start is False
    assert c.MiniclusterSpawner.image == "n@sha256:1"
    assert not {*c.Spawner.server_token_scopes} & {"custom:minicluster:admin", "custom:minicluster:policy"}
    service, spawner = c.JupyterHub.services
    assert service["url"] == "http://service:8082"
    assert service["api_token"].startswith("service_token-")
    assert spawner["api_token"].startswith("spawner_token-")


def test_a_hub_on_a_swarm_takes_the_domain_that_up_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("proxy_token", "service_token", "spawner_token"):
        (tmp_path / name).write_text("0123456789abcdef0123456789abcdef")
    monkeypatch.setattr(SwarmSettings.read.__func__, "__defaults__", (os.environ, tmp_path))
    env = {
        "ENGINE": "swarm",
        "IMAGE": "n@sha256:1",
        "DOMAIN": "lab.org",
        "PUBLIC_URL": "https://lab.org:8443",
    }
    for name, value in env.items():
        monkeypatch.setenv(f"MINICLUSTER_{name}", value)
    c = Config()
    configure(c, data_dir=tmp_path / "data")
    assert c.JupyterHub.subdomain_host == "https://lab.org:8443"
    assert c.JupyterHub.cookie_host_prefix_enabled
    assert c.Proxy.extra_routes == {"lab.org/services/minicluster/": "http://service:8082"}


def test_shared_homes_become_options_of_dockers_volume_driver() -> None:
    assert volume_options("10.0.0.5:/export/homes") == {
        "device": ":/export/homes/%s",
        "o": "addr=10.0.0.5,rw",
    }
    assert volume_options("nas:/h,nfsvers=4,rw")["o"] == "addr=nas,nfsvers=4,rw"
    with pytest.raises(ValueError, match="SERVER:/PATH"):
        volume_options("/local/path")


@pytest.mark.parametrize(
    ("release", "can"), [("0.1.0", False), ("0.2.0", True), ("0.10", True), ("1.0", True), ("", True)]
)
def test_ranks_of_a_release_before_tls_cannot_report(release: str, can: bool) -> None:
    labels = {"org.opencontainers.image.version": release} if release else None
    daemon: Any = FakeRegistry({"hub@x": {"Config": {"Labels": labels}}}, {})
    assert image_references.ranks_can_report(daemon, "hub@x") is can
    assert image_references.ranks_can_report(daemon, "gone@x")
