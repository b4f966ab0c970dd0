"""Options of the job service, for MiniclusterHub: policies, usage, idle GPUs and notices."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from traitlets import Bool, Dict, Float, Integer, List, Unicode, default
from traitlets.config import Configurable

from minicluster_hub.scheduling.base import HIGHEST_PRIORITY, NORMAL_PRIORITY
from minicluster_hub.scheduling.idle import IdleLimits
from minicluster_hub.scheduling.limits import Quotas

if TYPE_CHECKING:
    from minicluster_hub.notices.sender import NoticeSender
    from minicluster_hub.policy.custom_policy import CustomPolicies
    from minicluster_hub.store import Store
    from minicluster_hub.usage.accounting import UsageAccounting


class PolicyOptions(Configurable):
    """The policy of a new cluster, and where custom policies are and run."""

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


class UsageOptions(Configurable):
    """Shares, quotas and priorities."""

    usage_half_life_days = Float(
        7.0, min=0.01, help="Days after which a user's use counts half in fair shares."
    ).tag(config=True)
    shares = Dict(
        value_trait=Float(min=0.001),
        key_trait=Unicode(),
        help="Weights of users and groups (group:NAME) in fair shares; all others have 1.",
    ).tag(config=True)
    max_priority = Integer(
        NORMAL_PRIORITY,
        min=NORMAL_PRIORITY,
        max=HIGHEST_PRIORITY,
        help=f"Highest --priority of users' jobs; of admins' jobs it is {HIGHEST_PRIORITY}. Without "
        f"--priority a job has {NORMAL_PRIORITY}.",
    ).tag(config=True)
    quotas = Dict(
        value_trait=Dict(key_trait=Unicode()),
        key_trait=Unicode(),
        help="Limits of users: by name, group:NAME, or '*' for all others, a dictionary of slots (at once), "
        "jobs (that run at once), open_jobs (that wait or run), cpus and memory_gb (at once), gpu_hours (in "
        "30 days), run_s (seconds that a job may run) and, for a group, slots_together. What is missing has "
        "no limit. Less leaves more to others, and idle slots when others have no jobs.",
    ).tag(config=True)

    def accounting(self, store: Store) -> UsageAccounting:
        """Return the accounting with these settings. Raises QuotaWrong."""
        from minicluster_hub.usage.accounting import UsageAccounting

        quotas = Quotas.read(self.quotas)
        return UsageAccounting(store, self.usage_half_life_days * 86400, self.shares, quotas)


class IdleOptions(Configurable):
    """Notebook servers that leave their GPUs idle."""

    gpu_idle_warn_s = Float(
        900.0,
        min=0.0,
        help="Seconds without use of a notebook server's GPUs after which its owner is warned; 0: never.",
    ).tag(config=True)
    gpu_idle_reclaim_s = Float(
        3600.0,
        min=0.0,
        help="Seconds without use after which the GPUs go to others, while the server and its kernels keep "
        "running; 0: never. Less leaves more GPUs to jobs, and takes more GPUs from users who only paused.",
    ).tag(config=True)
    gpu_idle_held_bytes = Integer(
        2**30,
        min=0,
        help="GPUs are not taken back while kernels hold more bytes of their memory than this: the next job "
        "would lack it. A kernel that only initialized CUDA holds some hundred MB.",
    ).tag(config=True)
    gpu_idle_reclaim_when_needed = Bool(
        False,
        help="If a job waits, take idle GPUs back soon after the warning and not only after "
        "gpu_idle_reclaim_s.",
    ).tag(config=True)

    @property
    def idle_limits(self) -> IdleLimits:
        return IdleLimits(
            warn_s=self.gpu_idle_warn_s,
            reclaim_s=self.gpu_idle_reclaim_s,
            held_bytes=self.gpu_idle_held_bytes,
            when_needed=self.gpu_idle_reclaim_when_needed,
        )


class NoticeOptions(Configurable):
    """Notices. None are sent unless a mail server or hosts are named."""

    smtp_host = Unicode(help="Mail server that sends users' notices; empty: no e-mails.").tag(config=True)
    smtp_port = Integer(25, min=1, max=65535, help="Its port.").tag(config=True)
    smtp_from = Unicode("minicluster@localhost", help="Address that e-mails come from.").tag(config=True)
    smtp_starttls = Bool(
        True,
        help="Encrypt the connection to the mail server. Without it, others on the network can read e-mails.",
    ).tag(config=True)
    emails_per_hour = Integer(
        60, min=1, help="E-mails with notices to one user per hour; further ones wait."
    ).tag(config=True)
    emails_per_hour_of_all = Integer(600, min=1, help="E-mails of the whole cluster per hour.").tag(
        config=True
    )
    notice_hosts = List(
        Unicode(),
        help="Hosts that users' webhooks may call from inside the cluster: hooks.slack.com, "
        "chat.lab.org:8065. A pattern with * (*.example.org) allows only hosts with public addresses. "
        "Empty: no webhooks.",
    ).tag(config=True)
    public_url = Unicode(
        help="The job service's URL in browsers, for links in notices; by default the hub's setting."
    ).tag(config=True)

    @default("public_url")
    def _default_public_url(self) -> str:
        return os.environ.get("JUPYTERHUB_PUBLIC_URL", "")

    def notice_sender(self, store: Store, clock: Callable[[], float], log: logging.Logger) -> NoticeSender:
        from minicluster_hub.notices.emails import Emails, MailRates
        from minicluster_hub.notices.sender import NoticeSender
        from minicluster_hub.notices.webhooks import Webhooks

        emails = Emails(self.smtp_host, self.smtp_port, self.smtp_from, starttls=self.smtp_starttls)
        rates = MailRates(self.emails_per_hour, self.emails_per_hour_of_all)
        webhooks = Webhooks(self.notice_hosts)
        return NoticeSender(store, webhooks, emails, clock, log, public_url=self.public_url, rates=rates)
