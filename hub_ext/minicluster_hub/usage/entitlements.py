"""What each user and group may have: by the cluster's settings, until an admin changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite

from minicluster.wire import Allowances, AllowancesInForce
from minicluster_hub.scheduling.limits import EVERYBODY, Quotas, QuotaWrong
from minicluster_hub.scheduling.reservations.claims import GROUP
from minicluster_hub.store import Store

LEAST_WEIGHT = 0.001


class Entitlements:
    """quotas, weights: of the settings. What an admin chose goes before both."""

    def __init__(self, store: Store, quotas: Quotas, weights: Mapping[str, float]) -> None:
        told: dict[str, dict[str, float | None]] = {
            name: {**quota.told()} for name, quota in quotas.of_users.items()
        }
        self._store = store
        self._default = AllowancesInForce(allowances=Allowances(quotas=told, shares=dict(weights)))
        self._in_force: AllowancesInForce | None = None
        self._quotas = quotas

    @property
    def in_force(self) -> AllowancesInForce:
        return self._load()

    @property
    def quotas(self) -> Quotas:
        """What everybody may have; it knows who is in which group."""
        self._load()
        return self._quotas

    def choose(self, choice: Allowances, by: str, now: float) -> None:
        """Put it in force and keep it. Raises QuotaWrong, with nothing changed."""
        Quotas.read(choice.quotas)
        _check_weights(choice.shares)
        self._store.allowances.choose(choice, by, now)
        self._in_force = self._put(AllowancesInForce(allowances=choice, by=by, since=now))

    def weight_of(self, owner: str) -> float:
        """Return an owner's weight in fair shares: their own, else the greatest of their groups', else 1."""
        shares = self.in_force.allowances.shares
        if owner in shares:
            return shares[owner]
        groups = (GROUP + group for group in self._store.owners.groups_of(owner))
        return max((shares[group] for group in groups if group in shares), default=1.0)

    def weights(self) -> Mapping[str, float]:
        """Return the weights of all owners who have one."""
        named = (name for name in self.in_force.allowances.shares if not name.startswith(GROUP))
        owners = {*named, *self._store.owners.groups()}
        return {owner: self.weight_of(owner) for owner in sorted(owners)}

    def forget_known(self) -> None:
        """Read it again: another service may have changed it."""
        self._in_force = None

    def _load(self) -> AllowancesInForce:
        if self._in_force is None:
            self._in_force = self._put(self._store.allowances.in_force() or self._default)
        return self._in_force

    def _put(self, chosen: AllowancesInForce) -> AllowancesInForce:
        quotas = Quotas.read(chosen.allowances.quotas)
        self._quotas = replace(quotas, groups_of=self._store.owners.groups_of)
        return chosen


def _check_weights(shares: Mapping[str, float]) -> None:
    for name, weight in shares.items():
        if name in (EVERYBODY, GROUP):
            raise QuotaWrong(f"a share is a user's or a group's (group:NAME), not of {name!r}")
        if not (isfinite(weight) and weight >= LEAST_WEIGHT):
            raise QuotaWrong(f"the share of {name!r} is {weight!r}; want a number from {LEAST_WEIGHT:g} on")
