"""The active policy: admins choose it, it survives restarts, and it is replaced when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from minicluster.wire import ActivePolicy, PolicyChoice, PolicyReport
from minicluster_hub.policy.choices import ChoiceRefused, build, offered_placements, offered_policies
from minicluster_hub.policy.custom_policy import CustomPolicies, CustomPolicy, PolicyGone, ReadyPlan, close
from minicluster_hub.policy.sandbox import SandboxUnavailable
from minicluster_hub.policy.simulations import error_text, try_out
from minicluster_hub.scheduling.allocation.free_slots import Places
from minicluster_hub.scheduling.base import Placement, Policy, Snapshot
from minicluster_hub.scheduling.own import PolicyFailed
from minicluster_hub.scheduling.policies import POLICIES
from minicluster_hub.scheduling.reservations.excluding import excluding
from minicluster_hub.scheduling.scheduler import Schedule, schedule
from minicluster_hub.store import Store
from minicluster_hub.store.users.policies import StoredPolicy

BUILT_IN = PolicyChoice(policy="backfill", placement="pack")
"""The default if the settings name no policy."""
LAST_RESORT = PolicyChoice(policy="fifo", placement="pack")
"""Active if the choice of the settings fails."""
SANDBOX_RETRY_S = 5.0
"""Seconds between two attempts to reach the sandbox while it does not answer."""
_HINT = "nothing was changed; try the file with `simulate --policy FILE.py`, correct it, and choose it again"
_LAST_RESORT = StoredPolicy(None, ActivePolicy(choice=LAST_RESORT))
_NOTHING: Mapping[int, Places] = {}


class PlanFailed(Exception):
    """A policy or placement raised an error while planning. The message is that of its error."""


class PolicyManager:
    """Holds the active policy: an admin's newest choice, else `default`, the choice of the settings.

    A custom policy loads and plans in a thread. So call `schedule` only if `ready_for` returns true;
    otherwise `changed` is called when it is ready. A policy that fails is withdrawn: for good if an admin
    chose it, until the service restarts if the settings did. While the sandbox does not answer, a built-in
    policy is active.
    """

    def __init__(
        self,
        store: Store,
        default: PolicyChoice,
        clock: Callable[[], float],
        log: logging.Logger,
        custom: CustomPolicies | None = None,
    ) -> None:
        """Raises ChoiceRefused."""
        self.custom = custom or CustomPolicies()
        self.changed: Callable[[], None] = lambda: None
        self._store = store
        self._default = self._chosen = StoredPolicy(None, ActivePolicy(choice=default))
        self._clock = clock
        self._log = log
        self.policy, self.placement = build(default, self.custom)
        self.loaded = False
        """Whether the newest choice is active, or a built-in policy in its place."""
        self._plan: ReadyPlan | None = None
        self._default_trouble = self._sandbox_trouble = ""
        self._choosing = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self._outdated = False
        self._retry: asyncio.TimerHandle | None = None
        self._on_trial: Policy | None = None
        self._loading: Policy | None = None

    @property
    def active(self) -> ActivePolicy:
        return self._chosen.policy

    # Planning.

    def ready_for(self, snapshot: Snapshot) -> bool:
        """Return whether `schedule` can be called now. If not, let the custom policy load and plan.

        Raises an error of the store that occurred since the last call.
        """
        if self._plan is not None and not self._plan.holds(snapshot):
            self._plan = None
        if not self.loaded:
            self._activate_built_in()
        if not self._ready:
            self._ask(snapshot)
        return self._ready

    def ask_again(self, snapshot: Snapshot) -> None:
        """Request a new plan if `ready_for` was called while the last plan was still being made."""
        if self._outdated:
            self._ask(snapshot)

    def schedule(self, snapshot: Snapshot, excluded: Mapping[int, Places] = _NOTHING) -> Schedule:
        """Return what to do now. Raises PlanFailed; the caller blames a job or the policy.

        excluded: by job id, the slots that the job must not get.
        """
        policy, self._plan = self._plan or self.policy, None
        try:
            return schedule(snapshot, policy, excluding(self.placement, excluded))
        except Exception as error:
            raise PlanFailed(error_text(error)) from error

    def drop_answer(self) -> None:
        """Discard a custom policy's plan: it is valid for one tick only."""
        self._plan = None

    def blame(self, failed: PlanFailed) -> None:
        """Withdraw the active policy. Raises `failed` if no other policy can replace it."""
        if self._chosen.id is None and self.active.choice == LAST_RESORT:
            raise failed
        self._withdraw(self._chosen, str(failed))

    @property
    def _ready(self) -> bool:
        return self.loaded and (not isinstance(self.policy, CustomPolicy) or self._plan is not None)

    def _ask(self, snapshot: Snapshot) -> None:
        if self._asking is not None and not self._asking.done():
            self._outdated = True
            return
        asked, self._asking = self._asking, None
        if asked is not None:
            asked.result()
        self._outdated = False
        self._asking = asyncio.create_task(self._prepare(snapshot))
        self._asking.add_done_callback(lambda _: self.changed())

    async def _prepare(self, snapshot: Snapshot) -> None:
        """Load the newest choice. If it is a custom policy, let it plan."""
        while not self._ready:
            await self._load()
            if isinstance(policy := self.policy, CustomPolicy):
                await self._have_planned(policy, snapshot)

    async def _have_planned(self, policy: CustomPolicy, snapshot: Snapshot) -> None:
        try:
            plan = await asyncio.to_thread(policy.plan, snapshot)
        except (PolicyGone, PolicyFailed) as error:
            if policy is not self.policy:
                return
            if isinstance(error, PolicyGone):
                self.loaded = False
            else:
                self._withdraw(self._chosen, str(error))
        else:
            if policy is self.policy:
                self._plan = ReadyPlan(policy, plan)

    # Choosing.

    async def choose(self, choice: PolicyChoice, by: str, snapshot: Snapshot) -> None:
        """Activate a choice for the next tick, after a trial in a thread.

        Raises ChoiceRefused, and then changes nothing.
        """
        async with self._choosing:
            self._on_trial, placement = policy, placement = build(choice, self.custom)
            try:
                await asyncio.to_thread(try_out, policy, placement, snapshot)
                chosen = self._store.policies.choose(choice, by, self._clock())
            except PolicyFailed as failed:
                close(policy)
                message = f"{choice.policy} cannot be activated: {failed}"
                raise ChoiceRefused("bad_policy", message, _HINT) from failed
            except SandboxUnavailable as error:
                message = f"{choice.policy} cannot be activated: {error}"
                raise ChoiceRefused("sandbox_away", message, "see `status`") from error
            except BaseException:
                close(policy)
                raise
            finally:
                self._on_trial = None
            self._activate(chosen, policy, placement)
        self._log.info("policy %s with placement %s, by %s", choice.policy, choice.placement, by)

    def report(self) -> PolicyReport:
        """Return the active policy, all policies, and why the newest choice is not active."""
        default_trouble = self._default_trouble if self._chosen.id is None else ""
        return PolicyReport(
            in_force=self.active,
            trouble="; ".join(
                filter(None, (self._store.policies.trouble(), default_trouble, self._sandbox_trouble))
            ),
            policies=offered_policies(self.custom),
            placements=offered_placements(),
        )

    def close(self) -> None:
        """End the processes of custom policies."""
        for work in (self._asking, self._retry):
            if work is not None:
                work.cancel()
        for policy in (self.policy, self._on_trial, self._loading):
            close(policy)

    # Activating a choice, and withdrawing it.

    def _newest(self) -> StoredPolicy:
        return self._store.policies.active() or self._default

    def _activate(self, chosen: StoredPolicy, policy: Policy, placement: Placement) -> None:
        before = self.policy
        self._chosen, self.policy, self.placement, self.loaded = chosen, policy, placement, True
        self._plan, self._sandbox_trouble = None, ""
        close(before)

    def _activate_built_in(self, *others: StoredPolicy) -> None:
        """Activate the first of `others` (default: the newest choice) that is built in and can be built."""
        for chosen in others or (self._newest(),):
            if chosen.policy.choice.policy in POLICIES:
                with contextlib.suppress(ChoiceRefused):
                    self._activate(chosen, *build(chosen.policy.choice))
                    return

    async def _load(self) -> None:
        """Activate the newest choice. If it cannot be built, withdraw it and try the one before it."""
        while not self.loaded:
            chosen = self._newest()
            try:
                policy, placement = await self._built(chosen.policy.choice)
            except SandboxUnavailable as error:
                if not self.loaded:
                    self._substitute(chosen, error)
            except (ChoiceRefused, PolicyFailed) as refused:
                if not self.loaded:
                    self._withdraw(chosen, str(refused))
            else:
                if self.loaded:  # meanwhile an admin's choice was activated
                    close(policy)
                else:
                    self._activate(chosen, policy, placement)

    async def _built(self, choice: PolicyChoice) -> tuple[Policy, Placement]:
        """Return policy and placement of a choice, loaded. If that fails, end the policy's process.

        Raises ChoiceRefused, PolicyFailed, SandboxUnavailable.
        """
        self._loading, placement = policy, placement = build(choice, self.custom)
        try:
            if isinstance(policy, CustomPolicy):
                await asyncio.to_thread(policy.load)
        except BaseException:
            close(policy)
            raise
        finally:
            self._loading = None
        return policy, placement

    def _withdraw(self, failed: StoredPolicy, why: str) -> None:
        """Withdraw a choice: the one before it loads next; after that of the settings, LAST_RESORT."""
        name = failed.policy.choice.policy
        self._log.error("the policy %s is withdrawn: %s", name, why)
        if failed.id is not None:
            self._store.policies.take_back(failed.id, f"{name} was taken back: {why}")
        elif failed is self._default:
            self._default = _LAST_RESORT
            self._default_trouble = f"{name}, which the cluster's settings name, was taken back: {why}"
        self.loaded = False

    def _substitute(self, chosen: StoredPolicy, error: SandboxUnavailable) -> None:
        """Activate the newest choice that needs no sandbox, until the sandbox answers again."""
        before = self._sandbox_trouble
        self._activate_built_in(*self._store.policies.standing(), self._default, _LAST_RESORT)
        name, instead = chosen.policy.choice.policy, self.active.choice.policy
        self._sandbox_trouble = f"{name} does not decide: {error}. Until it does, {instead} decides"
        if self._sandbox_trouble != before:
            self._log.warning("%s", self._sandbox_trouble)
        self._retry = asyncio.get_running_loop().call_later(SANDBOX_RETRY_S, self._try_sandbox_again)

    def _try_sandbox_again(self) -> None:
        if self._sandbox_trouble:
            self.loaded = False
            self.changed()
