"""The options of policies: the policy of a new cluster, and the folder and sandbox of custom policies."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from traitlets import Unicode
from traitlets.config import Configurable

if TYPE_CHECKING:
    from minicluster_hub.policy.custom_policy import CustomPolicies


class PolicyOptions(Configurable):
    """Set them as options of MiniclusterHub."""

    policy = Unicode("backfill", help="The order of waiting jobs.").tag(config=True)
    placement = Unicode("pack", help="Which nodes a job gets.").tag(config=True)
    policies_dir = Unicode(
        help="Folder of the lab's own policies, NAME.py each; DATA/policies by default. The service runs "
        "code in it, so only admins may have write access."
    ).tag(config=True)
    policy_sandbox = Unicode(
        "process",
        help="Where the lab's own policies run: process (with the job service's user), none, or the path of "
        "a policy container's socket.",
    ).tag(config=True)

    def custom_policies(self, data_dir: Path, log: logging.Logger) -> CustomPolicies:
        """Return the lab's custom policies."""
        from minicluster_hub.policy.custom_policy import CustomPolicies
        from minicluster_hub.policy.policy_files import names
        from minicluster_hub.policy.sandbox import ContainerSandbox, ProcessSandbox
        from minicluster_hub.scheduling.policies import POLICIES

        folder = Path(self.policies_dir or data_dir / "policies").absolute()
        for name in {*names(folder)} & POLICIES.keys():
            log.warning("%s/%s.py is not used: a built-in policy has its name; give it another", folder, name)
        if self.policy_sandbox == "none":
            return CustomPolicies()
        if self.policy_sandbox == "process":
            return CustomPolicies(folder, ProcessSandbox(folder), log)
        return CustomPolicies(folder, ContainerSandbox(Path(self.policy_sandbox)), log)
