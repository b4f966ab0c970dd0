"""The options of shares, quotas and priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traitlets import Dict, Float, Integer, Unicode
from traitlets.config import Configurable

from minicluster_hub.scheduling.base import HIGHEST_PRIORITY, NORMAL_PRIORITY
from minicluster_hub.scheduling.limits import Quotas

if TYPE_CHECKING:
    from minicluster_hub.store import Store
    from minicluster_hub.usage.accounting import UsageAccounting


class UsageOptions(Configurable):
    """Set them as options of MiniclusterHub."""

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
