"""`up` and `upgrade`: turn the options into a plan, and the plan into services, in repeatable steps.

Each step reuses existing objects. The record of the options is saved as soon as it is complete: after an
interruption, give the same command again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from minicluster_hub.cluster import containers, swarm
from minicluster_hub.cluster.commands import accounts, service_progress
from minicluster_hub.cluster.commands.steps import Steps
from minicluster_hub.cluster.daemon import Daemon, own_container, socket_on_host
from minicluster_hub.cluster.errors import ClusterMissing, OptionUnusable, ServiceStuck
from minicluster_hub.cluster.plan import objects, plan, policy_container, record, secrets
from minicluster_hub.cluster.plan.choices import NO_UPSTREAM, TLS_NONE, TLS_SELF_MADE, Choices
from minicluster_hub.cluster.plan.choosing import chosen, secret_groups
from minicluster_hub.cluster.plan.drafts import Facts, SwarmObject, service_name
from minicluster_hub.cluster.plan.record import ClusterRecord, PlatformImages
from minicluster_hub.cluster.registry import image_references, publisher
from minicluster_hub.cluster.registry.config import registry_config
from minicluster_hub.engines.swarm.view import SwarmNode
from minicluster_hub.launch.messages import echo
from minicluster_hub.login.accounts_file import FIRST_USER

_READY_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Site:
    """Where the command runs. container: the command's; None outside of a container. node: this machine."""

    daemon: Daemon
    steps: Steps
    container: Mapping[str, Any] | None
    node: SwarmNode

    def managers(self, choices: Choices) -> list[SwarmNode]:
        """Return the nodes on which the platform may run."""
        return swarm.managers(self.daemon) if choices.shared_data else [self.node]


def up(daemon: Daemon, arguments: argparse.Namespace) -> int:
    """Make missing objects, change different ones, leave the others alone."""
    return _bring_up(daemon, arguments, upgrading=False)


def upgrade(daemon: Daemon, arguments: argparse.Namespace) -> int:
    """Change to the given images, or to the image that runs this command."""
    if record.load(daemon) is None:
        raise ClusterMissing("There is no cluster here to upgrade: make one with `up`.")
    return _bring_up(daemon, arguments, upgrading=True)


def _bring_up(daemon: Daemon, arguments: argparse.Namespace, *, upgrading: bool) -> int:
    site = _enter_swarm(daemon, arguments)
    now = _chosen_record(site, arguments)
    now = _with_images(site, now, arguments, upgrading=upgrading)
    record.save(daemon, now)
    if now.choices.shared_data:
        _share_folder(site, now)
    stored = _store(site, now.choices, arguments)
    specs = _plan(site, now, stored)
    address = _start(site, specs)
    if not now.images.notebook:  # It must first be published, in the registry that was just started.
        now = now.with_(images=replace(now.images, notebook=_publish_notebook(site, now)))
        record.save(daemon, now)
        specs = _plan(site, now, stored)
        address = _start(site, specs)
    site.steps.changes += len(objects.remove_unplanned(daemon, {spec["name"] for spec in specs}))
    _wait_ready(site, now.choices.url(address))
    objects.remove_unused(daemon, "secret", stored.secrets)
    objects.remove_unused(daemon, "config", stored.configs)
    password = accounts.request(daemon, "first")
    echo(welcome(now, address, swarm.join_command(daemon), password, site.steps.changes))
    if password:
        accounts.request(daemon, "told")
    return 0


# --- the record of the options --------------------------------------------------------------------


def _enter_swarm(daemon: Daemon, arguments: argparse.Namespace) -> Site:
    """Make the Swarm if there is none, and return where the command runs."""
    steps, container = Steps(), own_container(daemon)
    image = arguments.hub_image or containers.own_image(container)
    made = swarm.ensure(daemon, getattr(arguments, "advertise_addr", None), image)
    node = swarm.this_node(daemon)
    steps.done("swarm", f"manager {node.name} ({node.address})", objects.MADE if made else "")
    return Site(daemon, steps, container, node)


def _chosen_record(site: Site, arguments: argparse.Namespace) -> ClusterRecord:
    """Return the cluster's record, updated with the given options. Raises SwarmUnusable, OptionUnusable."""
    known = record.load(site.daemon)
    if known is not None:
        swarm.check_home(site.daemon, known.manager_id, known.choices.shared_data)
    before = known or ClusterRecord(Choices(), site.node.id)
    now = before.with_(choices=chosen(before.choices, arguments))
    former, wanted = before.choices.shared_data, now.choices.shared_data
    if known is not None and former != wanted and objects.platform(site.daemon):
        # No command moves data.
        raise OptionUnusable(
            f"The cluster's data is in {former or 'volumes of this machine'}, and --shared-data names"
            f" {wanted}: end the cluster with `down`, copy the data, then `up` again."
        )
    for sentence in swarm.too_old(swarm.nodes(site.daemon)):
        echo(f"  WARNING: {sentence}")
    return now


# --- images ---------------------------------------------------------------------------------------


def _with_images(
    site: Site, before: ClusterRecord, arguments: argparse.Namespace, *, upgrading: bool
) -> ClusterRecord:
    """Resolve image names, if they are given or were never resolved, to references that services use."""
    known, choices = before.images, before.choices
    hub = arguments.hub_image or ((not known.hub or upgrading) and containers.own_image(site.container))
    if not hub and not known.hub:
        raise OptionUnusable("This command does not run in a container: give the hub's image by --hub-image.")
    notebook = arguments.notebook_image or (
        (not choices.notebook_image or upgrading) and image_references.notebook_of_this_release()
    )
    if not notebook and not choices.notebook_image:
        raise OptionUnusable(
            "This hub image names no notebook image of its release: give one by --notebook-image."
        )
    choices = choices.with_given({"notebook_image": notebook or None})
    registry = arguments.registry_image or ("" if known.registry else choices.registry_image)
    found = PlatformImages(
        hub=_resolved(site, "hub image", hub) if hub else known.hub,
        registry=_resolved(site, "registry image", registry) if registry else known.registry,
        notebook=_through_cache(site, choices) if notebook else known.notebook,
    )
    former = before.former
    if upgrading and known.hub and found != known:
        former = _former(site, known)
    return before.with_(choices=choices, images=found, former=former)


def _former(site: Site, known: PlatformImages) -> PlatformImages:
    """Return the images before this upgrade. Servers on them may submit jobs if their ranks can report."""
    if image_references.ranks_can_report(site.daemon, known.hub):
        return known
    site.steps.done("notebook servers", "must be stopped and started before they submit jobs again")
    return replace(known, notebook="")


def _resolved(site: Site, what: str, name: str) -> str:
    with site.steps.step(what) as step:
        reference = image_references.for_the_platform(site.daemon, name, step.waits_for)
        step.end(reference if "@" in reference else f"{name}, only on this machine")
    return reference


def _through_cache(site: Site, choices: Choices) -> str:
    """Return the reference for pulling the notebook image through the cache; "" if it must be published
    first."""
    name = choices.notebook_image
    if found := image_references.through_cache(site.daemon, name, _upstream(choices)):
        return found
    with site.steps.step("notebook image") as step:  # If it is missing, fail before making anything.
        image_references.ensure_local(site.daemon, name, step.waits_for)
        step.end(f"{name}, on this machine")
    return ""


def _publish_notebook(site: Site, now: ClusterRecord) -> str:
    """Push the notebook image to the cluster's own registry."""
    with site.steps.step("notebook image") as step:
        login = publisher.login(site.daemon, now, site.node.id)
        reference = image_references.publish(
            site.daemon, now.choices.notebook_image, "notebook", login, step.waits_for
        )
        step.end(reference, objects.MADE)
    return reference


def _upstream(choices: Choices) -> str | None:
    if choices.upstream == NO_UPSTREAM:
        return None
    return choices.upstream or image_references.upstream_of(choices.notebook_image)


# --- secrets, configs and networks ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredObjects:
    """The secrets and configs in the Swarm, by the names that services use."""

    secrets: Mapping[str, SwarmObject]
    configs: Mapping[str, SwarmObject]


def _share_folder(site: Site, now: ClusterRecord) -> None:
    if not now.images.hub_is_published:
        raise OptionUnusable(
            "--shared-data needs a hub image that all managers can pull: publish it (images/publish),"
            " then name it by --hub-image."
        )
    path = now.choices.shared_data
    containers.make_shared_folders(site.daemon, now.images.hub, path)
    names = ", ".join(node.name for node in site.managers(now.choices))
    site.steps.done("shared data", f"{path} of {names}")


def _store(site: Site, choices: Choices, arguments: argparse.Namespace) -> StoredObjects:
    """Make secrets, configs and networks."""
    groups = secret_groups(choices, arguments, site.managers(choices))
    kept, made = secrets.ensure(site.daemon, groups)
    site.steps.done("secrets", f"{len(kept)}", objects.MADE if made else "")
    upstream = _upstream(choices)
    texts = {
        "registry_config": registry_config(None),
        **({"cache_config": registry_config(upstream)} if upstream else {}),
        **({"hub_config": choices.config} if choices.config else {}),
        **{policy_container.config_name(name): text for name, text in choices.policies.items()},
    }
    configs = objects.ensure_configs(site.daemon, texts)
    for network in plan.networks(own_policies=_own_policies(choices)):
        site.steps.done("network", network["name"], objects.ensure_network(site.daemon, network))
    return StoredObjects(kept, configs)


def _own_policies(choices: Choices) -> bool:
    return bool(choices.policies) or policy_container.are_installed()


# --- services -------------------------------------------------------------------------------------


def _plan(site: Site, now: ClusterRecord, stored: StoredObjects) -> list[dict[str, Any]]:
    socket_path, socket_gid = socket_on_host(site.container)
    former = now.former.notebook if now.former else ""
    facts = Facts(
        manager_id=site.node.id,
        manager_address=site.node.address,
        socket_path=socket_path,
        socket_gid=socket_gid,
        images=now.images,
        former_notebook="" if former == now.images.notebook else former,
        upstream=_upstream(now.choices),
        secrets=stored.secrets,
        configs=stored.configs,
        managers={node.id: node.address for node in site.managers(now.choices)},
        shared_data=now.choices.shared_data,
        own_policies=_own_policies(now.choices),
    )
    return plan.services(now.choices, facts)


def _start(site: Site, specs: Sequence[Mapping[str, Any]]) -> str:
    """Make or change one service after the other, and wait for each. Return the proxy's address; "" if there
    is none yet."""
    address = ""
    for spec in specs:
        role = spec["name"].partition("_")[2]
        with site.steps.step(role) as step:
            change = objects.ensure_service(site.daemon, spec)
            if role in plan.LATE:
                step.end("nodes fetch the notebook image", change)
                continue
            now = service_progress.wait_for(site.daemon, spec, site.node.id, step.waits_for)
            if role == "proxy":
                address = next(node.address for node in swarm.nodes(site.daemon) if node.id in now.reached)
            step.end(f"runs on {now.done} of {now.total} nodes" if now.total > 1 else "runs", change)
    return address


def _wait_ready(site: Site, url: str) -> None:
    """Wait until hub, proxy and job service answer. Raises ServiceStuck."""
    deadline = time.monotonic() + _READY_LIMIT_S
    with site.steps.step("ready") as step:
        while silent := _silent(site.daemon):
            if time.monotonic() > deadline:
                raise ServiceStuck(_not_ready(site.daemon, silent))
            step.waits_for(f"waiting for {', '.join(silent)}")
        step.end(url)


def _silent(daemon: Daemon) -> Mapping[str, str]:
    """Return which services do not answer yet, and why."""
    code, output = containers.run_in_hub(daemon, ["ready"])
    return {"hub": output or "does not run"} if code else json.loads(output)


def _not_ready(daemon: Daemon, silent: Mapping[str, str]) -> str:
    lines = [f"No answer after {_READY_LIMIT_S:.0f} s from: {', '.join(silent)}."]
    for role, why in silent.items():
        log = service_progress.last_lines(daemon, service_name(role))
        lines += [f"{role}: {why}. Its last lines:", log]
    return "\n".join([*lines, service_progress.NEXT_STEP])


# --- the last lines of `up` -----------------------------------------------------------------------


def welcome(now: ClusterRecord, address: str, join: str, password: str, changes: int) -> str:
    """Return a text with the URL, the login and the join command. password: "" if a person has seen it."""
    unchanged = f"as before; a new one: passwd {FIRST_USER}"
    lines = [
        "",
        f"Minicluster is ready: {now.choices.url(address)}" + ("" if changes else "   (nothing was changed)"),
        "",
        f"  user      {FIRST_USER}",
        f"  password  {password + '   (shown only now)' if password else unchanged}",
        "",
        "  Another machine becomes a node by this command, run there:",
        f"    {join}",
        "",
        *_warnings(now),
        "  Add a user: adduser NAME.  See what runs: status.  Find problems: doctor.",
    ]
    return "\n".join(lines)


def _warnings(now: ClusterRecord) -> list[str]:
    lines = []
    if now.choices.tls == TLS_NONE:
        lines.append("  WARNING: plain HTTP: others on the network can read passwords. See --self-made.")
    if now.choices.tls == TLS_SELF_MADE:
        lines.append("  The certificate is self-signed: browsers ask once whether to trust it.")
    if not now.images.hub_is_published:
        lines.append(
            "  The hub image is only on this machine, so other nodes cannot fetch what they need: before they"
            " join, publish it (images/publish) and run upgrade --hub-image NAME."
        )
    return [*lines, ""] if lines else []
