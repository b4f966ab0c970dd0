"""A cluster's plan is data: equal options give equal services; each option changes its own part."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jupyterhub.utils import subdomain_hook_idna

from minicluster_hub.cluster.entry import service_urls
from minicluster_hub.cluster.plan import plan, policy_container
from minicluster_hub.cluster.plan.choices import TLS_NONE, Choices
from minicluster_hub.cluster.plan.drafts import Facts, SwarmObject
from minicluster_hub.cluster.plan.record import ClusterRecord, PlatformImages
from minicluster_hub.policy.policy_files import ENTRY_POINTS

DIGEST = "sha256:" + "1" * 64
IMAGES = PlatformImages(
    hub=f"hub.example/hub@{DIGEST}", registry=f"r@{DIGEST}", notebook=f"127.0.0.1:5101/n@{DIGEST}"
)
TOKENS = ("proxy_token", "service_token", "spawner_token", "keeper_token")
OF_REGISTRY = ("reader", "publisher", "htpasswd", "ca", "cert", "key")
WITH_POLICIES = Choices(policies={"ours": "def plan(snapshot): ..."})
OF_SERVICE = ("service_ca", "service_cert", "service_key")
SECRETS = (
    *TOKENS,
    *OF_SERVICE,
    *(f"registry_{name}" for name in OF_REGISTRY),
    "tls_cert",
    "tls_key",
    "db_url",
)


def facts(
    images: PlatformImages = IMAGES,
    upstream: str | None = "https://registry-1.docker.io",
    *,
    own_policies: bool = False,
) -> Facts:
    return Facts(
        manager_id="node-a",
        manager_address="10.0.0.1",
        socket_path="/var/run/docker.sock",
        socket_gid=990,
        images=images,
        upstream=upstream,
        own_policies=own_policies,
        secrets={name: SwarmObject(f"id-{name}", f"minicluster_{name}_1a2b") for name in SECRETS},
        configs={
            name: SwarmObject(f"id-{name}", name)
            for name in ("registry_config", "cache_config", "hub_config", "policy_ours")
        },
    )


def by_role(choices: Choices | None = None, **more: Any) -> dict[str, dict[str, Any]]:
    choices = choices or Choices()
    found = plan.services(choices, facts(**{"own_policies": bool(choices.policies), **more}))
    return {spec["name"].removeprefix("minicluster_"): spec for spec in found}


def container(spec: dict[str, Any]) -> dict[str, Any]:
    return spec["task_template"]["ContainerSpec"]


def test_the_platform_in_the_order_of_its_start() -> None:
    assert tuple(by_role(WITH_POLICIES)) == plan.PLATFORM


def test_without_an_upstream_there_is_no_cache() -> None:
    assert "cache" not in by_role(upstream=None)


def test_before_the_notebook_image_is_known_only_what_images_come_through() -> None:
    assert list(by_role(images=PlatformImages(IMAGES.hub, IMAGES.registry))) == ["registry", "cache", "relay"]


@pytest.mark.parametrize("role", plan.PLATFORM)
def test_every_service_is_held_tight(role: str) -> None:
    spec = by_role(WITH_POLICIES)[role]
    inside = container(spec)
    assert inside["CapabilityDrop"] == ["ALL"]
    assert inside["Privileges"]["NoNewPrivileges"]
    users = {"registry": "0:0", "cache": "0:0", "firewall": "0:0", "eviction": "0:0", "policy": "1001:1001"}
    assert inside["User"] == users.get(role, "1000:1000")
    assert inside["CapabilityAdd"] == (["CAP_NET_ADMIN"] if role == "firewall" else [])
    assert "NVIDIA_VISIBLE_DEVICES=void" in inside["Env"]
    assert spec["endpoint_spec"]["Mode"] == "dnsrr"
    assert all(port["PublishMode"] == "host" for port in spec["endpoint_spec"]["Ports"])
    assert inside["Labels"] == spec["labels"]
    assert spec["labels"]["org.minicluster.role"] == role


@pytest.mark.parametrize("role", sorted(set(plan.PLATFORM) - {"images"}))
def test_every_service_that_serves_takes_so_much_of_its_machine_and_no_more(role: str) -> None:
    limits = by_role(WITH_POLICIES)[role]["task_template"]["Resources"]["Limits"]
    assert 200 * 10**6 < limits["MemoryBytes"] < 3 * 10**9 and 50 < limits["Pids"] < 4096


def test_hub_and_job_service_take_what_was_chosen() -> None:
    for role in ("hub", "service"):
        spec = by_role(Choices(platform_memory_bytes=8 * 10**9))[role]
        assert spec["task_template"]["Resources"]["Limits"]["MemoryBytes"] == 8 * 10**9


def test_secrets_are_files_for_one_user_and_nowhere_else() -> None:
    for spec in by_role(Choices(has_db_url=True)).values():
        files = [one["File"] for one in container(spec)["Secrets"]]
        assert all(
            one["Mode"] == 0o400 and one["UID"] == container(spec)["User"].split(":")[0] for one in files
        )
        text = json.dumps([container(spec)["Env"], spec["labels"]])
        assert "token" not in text and "password" not in text


def holders(found: dict[str, dict[str, Any]]) -> set[str]:
    """Return the services that can use the engine's socket: by a mount, or by its group."""
    return {
        role
        for role, spec in found.items()
        if "Groups" in container(spec)
        or any(mount.get("Source", "-") in "/var/run/docker.sock" for mount in container(spec)["Mounts"])
    }


def test_only_the_docker_proxy_and_what_guards_the_disks_hold_the_engines_socket() -> None:
    assert holders(by_role()) == holders(shared()) == {"docker-proxy", "eviction"}
    inside = container(by_role()["docker-proxy"])
    assert inside["Groups"] == ["990"] and inside["ReadOnly"]
    assert by_role()["docker-proxy"]["task_template"]["Networks"] == [{"Target": "minicluster_docker-proxy"}]
    swept = plan.sweep("hub@sha256:1", "node-a", "/var/run/docker.sock", volumes=True)
    assert holders({"sweep": swept}) == {"sweep"}


@pytest.mark.parametrize("role", ["hub", "service"])
def test_hub_and_job_service_each_have_their_own_socket_of_the_docker_proxy(role: str) -> None:
    for found in (by_role(), shared()):
        mounts = container(found[role])["Mounts"]
        theirs = [mount for mount in mounts if "docker" in mount["Source"]]
        assert [mount["Source"] for mount in theirs] == [f"minicluster_docker-{role}"]
        environment = dict(pair.split("=", 1) for pair in container(found[role])["Env"])
        assert environment["DOCKER_HOST"] == f"unix://{theirs[0]['Target']}/docker.sock"
        assert theirs[0] in container(found["docker-proxy"])["Mounts"]


def test_what_guards_each_nodes_disk_is_reached_by_nobody_and_writes_nothing() -> None:
    spec = by_role()["eviction"]
    inside = container(spec)
    assert (spec["mode"], spec["endpoint_spec"]["Ports"], inside["Secrets"]) == ({"Global": {}}, [], [])
    assert inside["ReadOnly"] and inside["CapabilityAdd"] == []
    limits = spec["task_template"]["Resources"]["Limits"]
    assert limits["Pids"] <= 64 and limits["MemoryBytes"] <= 256 << 20
    assert "MINICLUSTER_LOCAL_HOMES=1" in inside["Env"]
    on_nfs = container(by_role(Choices(shared_homes="nfs:/homes"))["eviction"])
    assert "MINICLUSTER_LOCAL_HOMES=0" in on_nfs["Env"]


def test_the_container_of_a_labs_own_policies_has_their_files_and_nothing_else() -> None:
    specs = by_role(WITH_POLICIES)
    spec, inside = specs["policy"], container(specs["policy"])
    (mount,) = inside["Mounts"]
    assert (mount["Target"], mount["VolumeOptions"]["DriverConfig"]["Options"]["type"]) == (
        "/run/minicluster-policy",
        "tmpfs",
    )
    assert (inside["Secrets"], inside["ReadOnly"], spec["endpoint_spec"]["Ports"]) == ([], True, [])
    assert [one["File"]["Name"] for one in inside["Configs"]] == ["/etc/minicluster/policies/ours.py"]
    assert spec["task_template"]["Networks"] == [{"Target": "minicluster_policy"}]
    (network,) = [one for one in plan.networks(own_policies=True) if one["name"] == "minicluster_policy"]
    assert network["internal"] and not network.get("attachable")
    limits = spec["task_template"]["Resources"]["Limits"]
    assert limits["Pids"] <= 64 and limits["MemoryBytes"] <= 3 << 30
    assert "MINICLUSTER" not in json.dumps(inside["Env"])


def test_the_job_service_reaches_policies_by_their_socket_alone_and_runs_none_itself() -> None:
    inside = container(by_role(WITH_POLICIES)["service"])
    (mount,) = [one for one in inside["Mounts"] if one["Target"] == "/run/minicluster-policy"]
    assert mount["ReadOnly"]
    assert "--MiniclusterHub.policy_sandbox=/run/minicluster-policy/socket" in inside["Args"]
    assert "--MiniclusterHub.policy_sandbox=none" in container(by_role()["service"])["Args"]
    assert [one["name"] for one in plan.networks(own_policies=False)] == [
        "minicluster",
        "minicluster-serves",
        "minicluster_docker-proxy",
    ]


def test_policies_of_the_hub_images_packages_have_their_container_without_any_file() -> None:
    specs = by_role(own_policies=True)
    assert container(specs["policy"])["Configs"] == []
    argument = "--MiniclusterHub.policy_sandbox=/run/minicluster-policy/socket"
    assert argument in container(specs["service"])["Args"]


def test_up_looks_for_packages_where_the_job_service_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not policy_container.are_installed()
    about = tmp_path / "our_policies-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: our-policies\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nlatest = our_policies:Latest\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert policy_container.are_installed()


def test_the_job_service_publishes_with_the_registrys_password_as_a_file() -> None:
    spec = container(by_role()["service"])
    files = {f"/run/secrets/{one['File']['Name']}" for one in spec["Secrets"]}
    settings = dict(word.split("=", 1) for word in spec["Args"] if word.startswith("--RegistrySettings."))
    assert settings["--RegistrySettings.url"] == "https://registry:5000"
    assert {settings["--RegistrySettings.ca_file"], settings["--RegistrySettings.login_file"]} <= files
    assert settings["--RegistrySettings.cache_url"] == "https://cache:5000"
    assert not any("cache_url" in word for word in container(by_role(upstream=None)["service"])["Args"])


def test_data_and_platform_stay_on_the_manager_and_the_relay_goes_everywhere() -> None:
    specs = by_role()
    pinned = {"Constraints": ["node.id==node-a"]}
    for role in ("registry", "cache", "service", "hub", "proxy"):
        assert specs[role]["task_template"]["Placement"] == pinned
    for role in ("relay", "images"):
        assert specs[role]["mode"] == {"Global": {}}
        assert specs[role]["task_template"]["Placement"] == {}
        assert specs[role]["task_template"]["Networks"] == [{"Target": "host"}]


def test_a_hub_image_that_is_nowhere_else_stays_on_the_manager() -> None:
    specs = by_role(images=PlatformImages(DIGEST, IMAGES.registry, IMAGES.notebook))
    assert specs["relay"]["task_template"]["Placement"] == {"Constraints": ["node.id==node-a"]}
    assert specs["images"]["task_template"]["Placement"] == {}


def test_a_node_that_lacks_the_image_tries_again_and_is_done_once() -> None:
    assert by_role()["images"]["task_template"]["RestartPolicy"]["Condition"] == "on-failure"
    assert by_role()["hub"]["task_template"]["RestartPolicy"]["Condition"] == "any"


def changed(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> set[str]:
    return {
        role
        for role in before.keys() | after.keys()
        if before.get(role, {}).get("labels") != after.get(role, {}).get("labels")
    }


@pytest.mark.parametrize(
    ("choices", "roles"),
    [
        (Choices(), set()),
        (WITH_POLICIES, {"policy", "service"}),
        (Choices(port=8443), {"proxy", "hub", "firewall"}),
        (Choices(tenants_deny=("10.0.0.0/8",)), {"firewall"}),
        (Choices(tenants_dns=("10.0.0.53",)), {"firewall"}),
        (Choices(tenants_reach=("10.0.0.5:5432",)), {"firewall"}),
        (Choices(tls=TLS_NONE), {"proxy", "hub"}),
        (Choices(names=("lab.example.org",)), {"hub"}),
        (Choices(domain="lab.example.org"), {"hub", "proxy", "service"}),
        (Choices(server_gpus=1), {"service", "hub"}),
        (Choices(share_gpus=True), {"service", "hub"}),
        (Choices(config="c.x = 1"), {"hub"}),
        (Choices(has_db_url=True), {"service"}),
        (Choices(service_options=("--MiniclusterHub.keep_warm_s=1",)), {"service"}),
        (Choices(shared_homes="nfs:/homes"), {"hub", "docker-proxy", "eviction"}),
        (Choices(disk_reserve_bytes=10**9), {"eviction"}),
        (Choices(platform_memory_bytes=10**9), {"service", "hub"}),
        (Choices(server_mounts=("/srv/data:ro",)), {"docker-proxy"}),
        (Choices(data_cache_bytes=10**9), {"service"}),
    ],
)
def test_a_choice_changes_its_own_services_alone(choices: Choices, roles: set[str]) -> None:
    assert changed(by_role(), by_role(choices)) == roles


def test_a_new_hub_image_leaves_the_registry_running() -> None:
    newer = PlatformImages(IMAGES.hub.replace("1", "2"), IMAGES.registry, IMAGES.notebook)
    after = changed(by_role(), by_role(images=newer))
    assert after == {"relay", "firewall", "eviction", "docker-proxy", "service", "hub", "proxy"}


def test_a_new_secret_changes_who_holds_it() -> None:
    renewed = facts()
    renewed = Facts(
        **{
            **{name: getattr(renewed, name) for name in renewed.__slots__},
            "secrets": {**renewed.secrets, "tls_cert": SwarmObject("new", "new")},
        }
    )
    after = {spec["name"].removeprefix("minicluster_"): spec for spec in plan.services(Choices(), renewed)}
    assert changed(by_role(), after) == {"proxy"}


@pytest.mark.parametrize(
    ("choices", "url"),
    [
        (Choices(), "https://10.0.0.1"),
        (Choices(port=8443), "https://10.0.0.1:8443"),
        (Choices(port=80, tls=TLS_NONE), "http://10.0.0.1"),
        (Choices(names=("lab.org", "lab")), "https://lab.org"),
        (Choices(names=("other.org",), domain="lab.org", port=8443), "https://lab.org:8443"),
    ],
)
def test_the_url_is_what_a_browser_types(choices: Choices, url: str) -> None:
    assert choices.url("10.0.0.1") == url


def test_below_a_domain_a_login_comes_back_to_the_job_services_own_name() -> None:
    found = by_role(Choices(domain="lab.org", port=8443))
    environment = dict(pair.split("=", 1) for pair in container(found["service"])["Env"])
    own = f"https://{subdomain_hook_idna('minicluster', 'lab.org', 'service')}:8443"
    assert environment["JUPYTERHUB_HOST"] == "https://lab.org:8443"
    assert environment["JUPYTERHUB_OAUTH_CALLBACK_URL"] == f"{own}/services/minicluster/oauth_callback"
    assert environment["JUPYTERHUB_COOKIE_HOST_PREFIX_ENABLED"] == "1"
    assert "--host-routing" in container(found["proxy"])["Args"]
    assert "--host-routing" not in container(by_role()["proxy"])["Args"]


def test_a_record_comes_back_as_it_was_written() -> None:
    kept = ClusterRecord(Choices(port=1234, names=("a", "b")), "node-a", IMAGES, former=PlatformImages("old"))
    assert ClusterRecord.of(kept.text()) == kept


def test_choices_of_a_newer_version_are_read_as_far_as_they_are_known() -> None:
    assert Choices.of({"port": 81, "colour": "blue"}) == Choices(port=81)


MANAGERS = {"node-a": "10.0.0.1", "node-b": "10.0.0.2", "node-c": "10.0.0.3"}


def shared() -> dict[str, dict[str, Any]]:
    chosen = Choices(has_db_url=True, shared_data="/mnt/lab")
    found = plan.services(chosen, replace(facts(), managers=MANAGERS, shared_data="/mnt/lab"))
    return {spec["name"].removeprefix("minicluster_"): spec for spec in found}


@pytest.mark.parametrize("role", ["registry", "cache", "service", "hub", "proxy"])
def test_with_shared_data_the_platform_runs_on_any_manager(role: str) -> None:
    spec = shared()[role]
    assert spec["task_template"]["Placement"] == {"Constraints": ["node.role==manager"]}
    sources = [mount["Source"] for mount in container(spec)["Mounts"] if "Target" in mount]
    assert sources[:1] == ([f"/mnt/lab/{role}"] if role != "proxy" else [])
    mode = {"Global": {}} if role == "service" else {"Replicated": {"Replicas": 1}}
    assert spec["mode"] == mode


def test_with_shared_data_the_hub_goes_by_the_address_that_the_browser_used() -> None:
    def public_url(choices: Choices) -> str:
        found = plan.services(choices, replace(facts(), managers=MANAGERS, shared_data=choices.shared_data))
        (hub,) = [container(spec)["Env"] for spec in found if spec["name"] == "minicluster_hub"]
        return dict(pair.split("=", 1) for pair in hub)["MINICLUSTER_PUBLIC_URL"]

    shares = Choices(has_db_url=True, shared_data="/mnt/lab")
    assert public_url(shares) == ""
    assert public_url(replace(shares, names=("lab.org",))) == "https://lab.org"
    assert public_url(Choices()) == "https://10.0.0.1"


def test_the_publishers_secret_is_brought_to_this_machine_only() -> None:
    spec = plan.publisher("hub@sha256:1", "node-b", SwarmObject("id", "name"))
    assert spec["task_template"]["Placement"] == {"Constraints": ["node.id==node-b"]}
    assert [one["File"]["Name"] for one in container(spec)["Secrets"]] == ["registry_publisher"]
    assert "Ports" not in spec["endpoint_spec"] or not spec["endpoint_spec"]["Ports"]
    assert not container(spec)["Mounts"]


def test_with_shared_data_each_job_service_is_told_all_and_which_one_it_is() -> None:
    spec = container(shared()["service"])
    environment = dict(pair.split("=", 1) for pair in spec["Env"])
    assert environment["MINICLUSTER_NODE_ID"] == "{{.Node.ID}}"
    urls = [f"https://10.0.0.{number}:8083/services/minicluster/" for number in (1, 2, 3)]
    assert service_urls({**environment, "MINICLUSTER_NODE_ID": "node-b"}) == [
        f"--MiniclusterHub.task_url={urls[1]}",
        *(f"--MiniclusterHub.task_urls={url}" for url in urls),
    ]
    assert not any("task_url" in word for word in spec["Args"])


def test_with_shared_data_relays_look_for_the_registry_on_every_manager() -> None:
    environment = dict(pair.split("=", 1) for pair in container(shared()["relay"])["Env"])
    assert environment["MINICLUSTER_RELAY_REGISTRY"] == "10.0.0.1:5443,10.0.0.2:5443,10.0.0.3:5443"
    assert environment["MINICLUSTER_RELAY_PUBLISH_NODE"] == "node-a,node-b,node-c"


def test_a_job_service_that_is_alone_is_told_of_no_other() -> None:
    environment = dict(pair.split("=", 1) for pair in container(by_role()["service"])["Env"])
    assert service_urls(environment) == []
