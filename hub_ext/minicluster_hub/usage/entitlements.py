"""Quotas and shares of users and groups: the cluster's settings, until an admin changes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from minicluster.wire import ActiveAllowances, Allowances
from minicluster_hub.scheduling.limits import EVERYBODY, Quotas, QuotaWrong
from minicluster_hub.scheduling.reservations.reservation import GROUP
from minicluster_hub.store import Store

LEAST_WEIGHT = 0.001


class Entitlements:
    """quotas, weights: the settings. An admin's choice replaces both."""

    def __init__(self, store: Store, quotas: Quotas, weights: Mapping[str, float]) -> None:
        by_name: dict[str, dict[str, float | None]] = {
            name: {**quota.as_dict()} for name, quota in quotas.of_users.items()
        }
        self._store = store
        self._default = ActiveAllowances(allowances=Allowances(quotas=by_name, shares=dict(weights)))
        self._active: tuple[ActiveAllowances, Quotas] | None = None

    @property
    def active(self) -> ActiveAllowances:
        return self._load()[0]

    @property
    def quotas(self) -> Quotas:
        """The quotas of all users, with their groups."""
        return self._load()[1]

    def choose(self, choice: Allowances, by: str, now: float) -> None:
        """Store and activate a choice. Raises QuotaWrong, and then changes nothing."""
        active = self._with_quotas(ActiveAllowances(allowances=choice, by=by, since=now))
        _check_weights(choice.shares)
        self._store.allowances.choose(choice, by, now)
        self._active = active

    def weight_of(self, owner: str) -> float:
        """Return an owner's weight in fair shares: the owner's, else the highest of their groups, else 1."""
        shares = self.active.allowances.shares
        if owner in shares:
            return shares[owner]
        groups = (GROUP + group for group in self._store.owners.groups_of(owner))
        return max((shares[group] for group in groups if group in shares), default=1.0)

    def weights(self) -> Mapping[str, float]:
        """Return the weights of all owners with a share or a group."""
        named = (name for name in self.active.allowances.shares if not name.startswith(GROUP))
        owners = {*named, *self._store.owners.groups()}
        return {owner: self.weight_of(owner) for owner in sorted(owners)}

    def forget_known(self) -> None:
        """Read the choice again at its next use: another service may have changed it."""
        self._active = None

    def _load(self) -> tuple[ActiveAllowances, Quotas]:
        if self._active is None:
            self._active = self._with_quotas(self._store.allowances.active() or self._default)
        return self._active

    def _with_quotas(self, chosen: ActiveAllowances) -> tuple[ActiveAllowances, Quotas]:
        """Raises QuotaWrong."""
        quotas = Quotas.read(chosen.allowances.quotas)
        return chosen, replace(quotas, groups_of=self._store.owners.groups_of)


def _check_weights(shares: Mapping[str, float]) -> None:
    for name, weight in shares.items():
        if name in (EVERYBODY, GROUP):
            raise QuotaWrong(f"a share belongs to a user or a group (group:NAME), not to {name!r}")
        if not (isfinite(weight) and weight >= LEAST_WEIGHT):
            raise QuotaWrong(f"the share of {name!r} is {weight!r}; it must be at least {LEAST_WEIGHT:g}")
