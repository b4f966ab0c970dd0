"""`up` and `upgrade`: step by step to what is planned; each step can be repeated, and finds what is there."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from minicluster_hub.cluster import swarm
from minicluster_hub.cluster.commands import accounts, waiting
from minicluster_hub.cluster.commands.steps import Steps
from minicluster_hub.cluster.commands.welcome import welcome
from minicluster_hub.cluster.daemon import Daemon, own_container, socket_on_host
from minicluster_hub.cluster.errors import ClusterMissing, OptionUnusable, ServiceStuck
from minicluster_hub.cluster.plan import objects, plan, record, secrets, shared_folder
from minicluster_hub.cluster.plan.choices import NO_UPSTREAM, Choices
from minicluster_hub.cluster.plan.choosing import chosen, secret_groups
from minicluster_hub.cluster.plan.drafts import Facts
from minicluster_hub.cluster.plan.record import Images, Record
from minicluster_hub.cluster.policy_sandbox import container
from minicluster_hub.cluster.registry import image_references, publisher
from minicluster_hub.cluster.registry.config import registry_config
from minicluster_hub.cluster.registry.published import notebook_of_this_release
from minicluster_hub.cluster.registry.relay import HOST, PUBLISH_DOOR
from minicluster_hub.engines.swarm.view import SwarmNode
from minicluster_hub.launch.messages import say

PUBLISHING_DOOR = f"{HOST}:{PUBLISH_DOOR}"
_READY_LIMIT_S = 120.0


def up(daemon: Daemon, given: argparse.Namespace) -> int:
    """Make what is missing, change what differs, leave the rest alone."""
    return Up(daemon, given).run()


def upgrade(daemon: Daemon, given: argparse.Namespace) -> int:
    """Go over to the images given, or to the one that runs this command."""
    if record.load(daemon) is None:
        raise ClusterMissing("There is no cluster here to upgrade: make one with `up`.")
    return Up(daemon, given, upgrading=True).run()


class Up:
    """One run of the command. The record is saved as soon as something in it is known."""

    address = ""
    """Where browsers come in; this machine's, unless the proxy runs on another manager."""

    def __init__(self, daemon: Daemon, given: argparse.Namespace, *, upgrading: bool = False) -> None:
        self.daemon = daemon
        self.given = given
        self.upgrading = upgrading
        self.steps = Steps()
        self.own = own_container(daemon)

    def run(self) -> int:
        """Do all steps, and say how to go on."""
        self._begin()
        self._choose_images()
        self._seal()
        self._ensure_services()  # what images come through
        if not self.record.images.notebook:
            self._keep(images=self._with(notebook=self._publish_notebook()))
            self._ensure_services()
        gone = objects.remove_unplanned(self.daemon, {spec["name"] for spec in self._specs()})
        self.steps.count(len(gone))
        self._wait_ready()
        secrets.tidy(self.daemon, self.sealed)
        objects.tidy_configs(self.daemon, self.configs)
        self._say_welcome()
        return 0

    # --- what the place is --------------------------------------------------------------------

    def _begin(self) -> None:
        """Make the Swarm if there is none; find what was chosen before."""
        hub_image = self.given.hub_image or image_references.own_image(self.own)
        made = swarm.ensure(self.daemon, getattr(self.given, "advertise_addr", None), hub_image)
        self.node: SwarmNode = swarm.this_node(self.daemon)
        self.steps.done(
            "swarm", f"manager {self.node.name} ({self.node.address})", objects.MADE if made else ""
        )
        known = record.load(self.daemon)
        if known is not None:
            swarm.check_home(self.daemon, known.manager_id, known.choices.shared_data)
        before = known or Record(Choices(), self.node.id)
        self.record = before.with_(choices=chosen(before.choices, self.given))
        self._check_data_stays(known)
        shares = self.record.choices.shared_data
        self.managers = swarm.managers(self.daemon) if shares else [self.node]
        for sentence in swarm.too_old(swarm.nodes(self.daemon)):
            say(f"  WARNING: {sentence}")

    def _check_data_stays(self, known: Record | None) -> None:
        """Data is not moved by a command: who wants it elsewhere ends the cluster and copies it first."""
        before, now = known.choices.shared_data if known else "", self.record.choices.shared_data
        if known is not None and before != now and objects.platform(self.daemon):
            raise OptionUnusable(
                f"The cluster's data is in {before or 'volumes of this machine'}, and --shared-data names"
                f" {now}: end the cluster with `down`, copy the data, then `up` again."
            )

    def _keep(self, **changes: Any) -> None:
        self.record = self.record.with_(**changes)
        record.save(self.daemon, self.record)

    def _with(self, **changes: str) -> Images:
        now = self.record.images
        known = {"hub": now.hub, "registry": now.registry, "notebook": now.notebook}
        return Images(**known | changes)

    # --- images -------------------------------------------------------------------------------

    def _choose_images(self) -> None:
        """Resolve the names that were given now, or never before, to what services use."""
        now, choices, given = self.record.images, self.record.choices, self.given
        hub = given.hub_image or ((not now.hub or self.upgrading) and image_references.own_image(self.own))
        if not hub and not now.hub:
            raise OptionUnusable(
                "This command does not run in a container: name the hub's image by --hub-image."
            )
        notebook = given.notebook_image or (
            (not choices.notebook_image or self.upgrading) and notebook_of_this_release()
        )
        if not notebook and not choices.notebook_image:
            raise OptionUnusable(
                "This hub image names no notebook image of its release: give one by --notebook-image."
            )
        self.record = self.record.with_(choices=choices.with_given({"notebook_image": notebook or None}))
        registry = given.registry_image or ("" if now.registry else choices.registry_image)
        found = self._with(
            hub=self._resolve("hub image", hub) if hub else now.hub,
            registry=self._resolve("registry image", registry) if registry else now.registry,
            notebook=self._cached(notebook) if notebook else now.notebook,
        )
        former = self._former(now) if self.upgrading and now.hub and found != now else self.record.former
        self._keep(images=found, former=former)
        if choices.shared_data:
            self._share(found.hub)

    def _former(self, now: Images) -> Images:
        """Return the images before this upgrade: servers send jobs with theirs, if its ranks can report."""
        if image_references.ranks_can_report(self.daemon, now.hub):
            return now
        self.steps.done("notebook servers", "send jobs again once they were stopped and started")
        return replace(now, notebook="")

    def _share(self, hub_image: str) -> None:
        if not self.record.images.hub_is_published:
            raise OptionUnusable(
                "--shared-data needs a hub image that all managers can pull: publish it (images/publish),"
                " then name it by --hub-image."
            )
        shared_folder.prepare(self.daemon, hub_image, self.record.choices.shared_data)
        names = ", ".join(node.name for node in self.managers)
        self.steps.done("shared data", f"{self.record.choices.shared_data} of {names}")

    def _resolve(self, what: str, name: str) -> str:
        with self.steps.step(what) as step:
            reference = image_references.for_the_platform(self.daemon, name, step.tell)
            step.end(reference if "@" in reference else f"{name}, only on this machine")
        return reference

    def _cached(self, name: str) -> str:
        """Return how nodes pull the notebook image through the cache; "" if it has to be published first."""
        found = image_references.through_cache(self.daemon, name, self._upstream())
        if not found:
            # Missing, it had better be told before anything is made.
            with self.steps.step("notebook image") as step:
                image_references.ensure_local(self.daemon, name, step.tell)
                step.end(f"{name}, on this machine")
        return found or ""

    def _publish_notebook(self) -> str:
        """Bring the notebook image into the cluster's own registry."""
        name = self.record.choices.notebook_image
        with self.steps.step("notebook image") as step:
            login = publisher.login(self.daemon, self.record, self.node.id)
            reference = image_references.publish(self.daemon, name, "notebook", login, step.tell)
            step.end(reference, objects.MADE)
        return reference

    def _upstream(self) -> str | None:
        told = self.record.choices.upstream
        if told == NO_UPSTREAM:
            return None
        return told or image_references.upstream_of(self.record.choices.notebook_image)

    # --- secrets and services -----------------------------------------------------------------

    def _seal(self) -> None:
        choices, given = self.record.choices, self.given
        self.sealed, made = secrets.keep(self.daemon, secret_groups(choices, given, self.managers))
        self.steps.done("secrets", f"{len(self.sealed)}", objects.MADE if made else "")
        texts = {"registry_config": registry_config(None)}
        upstream = self._upstream()
        if upstream:
            texts["cache_config"] = registry_config(upstream)
        if choices.config:
            texts["hub_config"] = choices.config
        for name, text in choices.policies.items():
            texts[container.config_name(name)] = text
        self.configs = objects.ensure_configs(self.daemon, texts)
        for network in plan.networks(own_policies=self._own_policies()):
            self.steps.done("network", network["name"], objects.ensure_network(self.daemon, network))

    def _specs(self) -> list[dict[str, Any]]:
        socket_path, socket_gid = socket_on_host(self.own)
        facts = Facts(
            manager_id=self.node.id,
            manager_address=self.node.address,
            socket_path=socket_path,
            socket_gid=socket_gid,
            images=self.record.images,
            former_notebook=self._former_notebook(),
            upstream=self._upstream(),
            sealed=self.sealed,
            configs=self.configs,
            managers={node.id: node.address for node in self.managers},
            shared_data=self.record.choices.shared_data,
            own_policies=self._own_policies(),
        )
        return plan.services(self.record.choices, facts)

    def _own_policies(self) -> bool:
        return bool(self.record.choices.policies) or container.are_installed()

    def _former_notebook(self) -> str:
        former = self.record.former
        return former.notebook if former and former.notebook != self.record.images.notebook else ""

    def _ensure_services(self) -> None:
        """Make or change one service after the other, and wait for each that something leans on."""
        for spec in self._specs():
            role = spec["name"].partition("_")[2]
            with self.steps.step(role) as step:
                how = objects.ensure_service(self.daemon, spec)
                if role in plan.LATE:
                    step.end("nodes fetch the notebook image", how)
                    continue
                now = waiting.wait_for(self.daemon, spec, self.node.id, lambda now: step.tell(_progress(now)))
                if role == "proxy":
                    self.address = next(node.address for node in self.managers if node.id in now.reached)
                step.end(f"runs on {now.done} of {now.total} nodes" if now.total > 1 else "runs", how)

    def _wait_ready(self) -> None:
        """Wait until hub, proxy and job service answer."""
        deadline = time.monotonic() + _READY_LIMIT_S
        url = self.record.choices.url(self.address)
        with self.steps.step("ready") as step:
            while silent := _silent(self.daemon):
                if time.monotonic() > deadline:
                    raise ServiceStuck(_not_ready(self.daemon, silent))
                step.tell(f"waiting for {', '.join(silent)}")
            step.end(url)

    def _say_welcome(self) -> None:
        choices = self.record.choices
        password = accounts.ask(self.daemon, ["first"])
        join, changes = swarm.join_command(self.daemon), self.steps.changes
        say(welcome(choices, self.record, self.address, join, password, changes))
        if password:
            accounts.ask(self.daemon, ["told"])


def _progress(now: waiting.Standing) -> str:
    if now.trouble:
        return now.trouble
    return "its image is being fetched" if now.pulling else "starting"


def _silent(daemon: Daemon) -> Mapping[str, str]:
    """Return what does not answer yet, with the reason."""
    code, said = accounts.in_hub(daemon, ["ready"])
    return {"hub": said or "does not run"} if code else json.loads(said)


def _not_ready(daemon: Daemon, silent: Mapping[str, str]) -> str:
    lines = [f"After {_READY_LIMIT_S:.0f} s there is no answer from: {', '.join(silent)}."]
    for name, why in silent.items():
        lines += [f"{name}: {why}. Its last lines:", waiting.last_lines(daemon, plan.service_name(name))]
    return "\n".join([*lines, "The command doctor looks further. `up` goes on where it stopped."])
