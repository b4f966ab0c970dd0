"""The rules in force: chosen by an admin, kept over restarts, and taken back by themselves when they fail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minicluster.wire import PolicyChoice, PolicyInForce, PolicyReport
from minicluster_hub.rules.choices import build, offered_placements, offered_policies
from minicluster_hub.rules.errors import ChoiceRefused, PlanFailed
from minicluster_hub.rules.own import OwnPolicy
from minicluster_hub.rules.trial import in_words, try_out
from minicluster_hub.scheduling.base import Placement, Plan, Policy, Snapshot
from minicluster_hub.scheduling.free import Places
from minicluster_hub.scheduling.own import PolicyFailed, fitted
from minicluster_hub.scheduling.placement.outside import kept_off
from minicluster_hub.scheduling.scheduler import Schedule, schedule
from minicluster_hub.store import Store
from minicluster_hub.store.policies import Chosen

BUILT_IN = PolicyChoice(policy="backfill", placement="pack")
"""What a cluster begins with that sets nothing."""
LAST_RESORT = PolicyChoice(policy="fifo", placement="pack")
"""In force while what the cluster's settings say cannot be."""
_HINT = (
    "nothing was changed; try the file with `simulate --policy FILE.py`, mend it, and put it in force again"
)
_NOTHING: Mapping[int, Places] = {}


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a lab's own policy planned a moment ago."""

    policy: OwnPolicy
    told: Plan

    @property
    def moves_running(self) -> bool:
        return self.policy.moves_running

    @property
    def elastic(self) -> bool:
        return self.policy.elastic

    def plan(self, snapshot: Snapshot) -> Plan:
        return fitted(self.told, snapshot)


class Rules:
    """`default`: what the cluster's settings say. What an admin chooses goes before it.

    A lab's own policy plans beside the event loop: `ask` first, then `schedule`. One that fails is taken
    back: an admin's choice for good, that of the settings until the service starts again.
    """

    def __init__(
        self, store: Store, default: PolicyChoice, clock: Callable[[], float], log: logging.Logger
    ) -> None:
        self._store = store
        self._default = self._chosen = Chosen(None, PolicyInForce(choice=default))
        self._trouble = ""
        self._clock = clock
        self._log = log
        self._policy, self._placement = build(default)
        self._loaded = False
        self._answer: _Answer | None = None
        self._choosing = asyncio.Lock()
        self._tried: Policy | None = None

    @property
    def in_force(self) -> PolicyInForce:
        return self._chosen.told

    @property
    def policy(self) -> Policy:
        return self._policy

    @property
    def placement(self) -> Placement:
        return self._placement

    @property
    def moves_running(self) -> bool:
        """Whether the policy may have something to do though nobody waits."""
        return self._policy.moves_running

    @property
    def loaded(self) -> bool:
        """Whether what was chosen last is in force."""
        return self._loaded

    @property
    def ready(self) -> bool:
        """Whether `schedule` can be called without `ask`."""
        return self._loaded and (not isinstance(self._policy, OwnPolicy) or self._answer is not None)

    async def ask(self, snapshot: Snapshot) -> None:
        """Have ready what `schedule` needs; the world may be another one by then."""
        await self._load()
        policy = self._policy
        if not isinstance(policy, OwnPolicy):
            return
        try:
            told = await asyncio.to_thread(policy.plan, snapshot)
        except PolicyFailed as failed:
            if policy is self._policy:
                self._take_back(self._chosen, str(failed))
            return
        if policy is self._policy:
            self._answer = _Answer(policy, told)

    async def choose(self, choice: PolicyChoice, by: str, snapshot: Snapshot) -> None:
        """Put a choice in force, from the next tick on, once it has passed its trial beside the loop.

        Raises ChoiceRefused, with nothing changed.
        """
        async with self._choosing:
            self._tried, placement = policy, placement = build(choice)
            try:
                await asyncio.to_thread(try_out, policy, placement, snapshot)
                chosen = self._store.policies.choose(choice, by, self._clock())
            except PolicyFailed as failed:
                _close(policy)
                message = f"{choice.policy} cannot be put in force: {failed}"
                raise ChoiceRefused("bad_policy", message, _HINT) from failed
            except BaseException:
                _close(policy)
                raise
            finally:
                self._tried = None
            self._put(chosen, policy, placement)
        self._log.info("policy %s with placement %s, by %s", choice.policy, choice.placement, by)

    def schedule(self, snapshot: Snapshot, barred: Mapping[int, Places] = _NOTHING) -> Schedule:
        """Return what to do now. Raises PlanFailed: blame a job for it, or the policy.

        barred: by job, the slots that it may not be placed on.
        """
        policy, self._answer = self._answer or self._policy, None
        try:
            return schedule(snapshot, policy, kept_off(self._placement, barred))
        except Exception as error:
            raise PlanFailed(in_words(error)) from error

    def blame(self, failed: PlanFailed) -> None:
        """Take the policy back, and have the one before it. Raises `failed` if there is none."""
        if self._chosen.id is None and self.in_force.choice == LAST_RESORT:
            raise failed
        self._take_back(self._chosen, str(failed))

    def drop_answer(self) -> None:
        """Forget what the policy planned: it is for the moment for which it was asked."""
        self._answer = None

    def report(self) -> PolicyReport:
        return PolicyReport(
            in_force=self.in_force,
            trouble=self._told_trouble(),
            policies=offered_policies(),
            placements=offered_placements(),
        )

    def close(self) -> None:
        """End the processes of a lab's own policies."""
        for policy in (self._policy, self._tried):
            _close(policy)

    async def _load(self) -> None:
        """Put in force what was chosen last, once; one that cannot be built is taken back."""
        while not self._loaded:
            wanted = self._store.policies.in_force() or self._default
            try:
                policy, placement = await _built(wanted.told.choice)
            except (ChoiceRefused, PolicyFailed) as refused:
                if not self._loaded:
                    self._take_back(wanted, str(refused))
                continue
            if self._loaded:
                _close(policy)
            else:
                self._put(wanted, policy, placement)

    def _put(self, chosen: Chosen, policy: Policy, placement: Placement) -> None:
        before = self._policy
        self._chosen, self._policy, self._placement, self._loaded = chosen, policy, placement, True
        self._answer = None
        _close(before)

    def _take_back(self, failed: Chosen, why: str) -> None:
        """Have the one before it loaded; of the settings' there is none, and LAST_RESORT takes its place."""
        name = failed.told.choice.policy
        self._log.error("the policy %s is taken back: %s", name, why)
        if failed.id is not None:
            self._store.policies.take_back(failed.id, f"{name} was taken back: {why}")
        elif failed is self._default:
            self._default = Chosen(None, PolicyInForce(choice=LAST_RESORT))
            self._trouble = f"{name}, which the cluster's settings name, was taken back: {why}"
        self._loaded = False

    def _told_trouble(self) -> str:
        """Return why not the newest choice, and not what the settings say, is in force."""
        of_settings = self._trouble if self._chosen.id is None else ""
        return "; ".join(filter(None, (self._store.policies.trouble(), of_settings)))


async def _built(choice: PolicyChoice) -> tuple[Policy, Placement]:
    """Return what a choice means, loaded. Raises ChoiceRefused, PolicyFailed, with no process left."""
    policy, placement = build(choice)
    if isinstance(policy, OwnPolicy):
        try:
            await asyncio.to_thread(policy.load)
        except BaseException:
            _close(policy)
            raise
    return policy, placement


def _close(policy: Policy | None) -> None:
    if isinstance(policy, OwnPolicy):
        with contextlib.suppress(OSError):
            policy.close()
