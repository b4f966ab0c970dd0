"""The active policy: admins choose it, it is kept over restarts, and it is taken back when it fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from minicluster.wire import ActivePolicy, PolicyChoice, PolicyReport
from minicluster_hub.policy.choices import ChoiceRefused, build, offered_placements, offered_policies
from minicluster_hub.policy.custom_policy import CustomPolicies, CustomPolicy, PolicyGone, ReadyPlan, close
from minicluster_hub.policy.sandbox import SandboxAway
from minicluster_hub.policy.simulations import in_words, try_out
from minicluster_hub.scheduling.allocation.free_slots import Places
from minicluster_hub.scheduling.base import Placement, Policy, Snapshot
from minicluster_hub.scheduling.own import PolicyFailed
from minicluster_hub.scheduling.policies import POLICIES
from minicluster_hub.scheduling.reservations.excluding import excluding
from minicluster_hub.scheduling.scheduler import Schedule, schedule
from minicluster_hub.store import Store
from minicluster_hub.store.users.policies import Chosen

BUILT_IN = PolicyChoice(policy="backfill", placement="pack")
"""The choice of a cluster whose settings name none."""
LAST_RESORT = PolicyChoice(policy="fifo", placement="pack")
"""Active while the choice of the cluster's settings does not work."""
AWAY_S = 5.0
"""While the sandbox of custom policies is away, the time between two tries to reach it."""
_HINT = "nothing was changed; try the file with `simulate --policy FILE.py`, mend it, and choose it again"
_LAST_RESORT = Chosen(None, ActivePolicy(choice=LAST_RESORT))
_NOTHING: Mapping[int, Places] = {}


class PlanFailed(Exception):
    """Policy or placement raised at a snapshot; the message is what they raised, in words."""


class PolicyManager:
    """Holds the active policy: the newest choice of an admin, else `default`, the choice of the settings.

    A custom policy loads and plans beside the event loop: call `schedule` only when `ready_for` returns true;
    otherwise `changed` is called when it may. A policy that fails is taken back: for good if an admin chose
    it, until the service restarts if the settings did. While the sandbox is away, a built-in policy stands
    in.
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
        self._default = self._chosen = Chosen(None, ActivePolicy(choice=default))
        self._clock = clock
        self._log = log
        self.policy, self.placement = build(default, self.custom)
        self.loaded = False
        """Whether the newest choice is active, or a stand-in for it."""
        self._plan: ReadyPlan | None = None
        self._default_trouble = self._away = ""
        self._choosing = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self._outdated = False
        self._retry: asyncio.TimerHandle | None = None
        self._on_trial: Policy | None = None
        self._loading: Policy | None = None

    @property
    def active(self) -> ActivePolicy:
        return self._chosen.told

    # Planning.

    def ready_for(self, snapshot: Snapshot) -> bool:
        """Return whether `schedule` can be called now. If not, load the custom policy and have it plan.

        Raises what the store raised since the last call.
        """
        if self._plan is not None and not self._plan.holds(snapshot):
            self._plan = None
        if not self.loaded:
            self._activate_built_in()
        if not self._ready:
            self._ask(snapshot)
        return self._ready

    def ask_again(self, snapshot: Snapshot) -> None:
        """Have it plan anew if the last plan was asked for before something happened."""
        if self._outdated:
            self._ask(snapshot)

    def schedule(self, snapshot: Snapshot, excluded: Mapping[int, Places] = _NOTHING) -> Schedule:
        """Return what to do now. Raises PlanFailed: blame a job for it, or the policy.

        excluded: slots that a job may not be placed on, by job.
        """
        policy, self._plan = self._plan or self.policy, None
        try:
            return schedule(snapshot, policy, excluding(self.placement, excluded))
        except Exception as error:
            raise PlanFailed(in_words(error)) from error

    def drop_answer(self) -> None:
        """Forget what a custom policy planned: its plan is for one moment only."""
        self._plan = None

    def blame(self, failed: PlanFailed) -> None:
        """Take the active policy back. Raises `failed` if there is none to replace it."""
        if self._chosen.id is None and self.active.choice == LAST_RESORT:
            raise failed
        self._take_back(self._chosen, str(failed))

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
        """Load the newest choice and have it plan, if it is a custom policy."""
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
                self._take_back(self._chosen, str(error))
        else:
            if policy is self.policy:
                self._plan = ReadyPlan(policy, plan)

    # Choosing.

    async def choose(self, choice: PolicyChoice, by: str, snapshot: Snapshot) -> None:
        """Activate a choice for the next tick, after a trial beside the event loop.

        Raises ChoiceRefused, with nothing changed.
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
            except SandboxAway as away:
                message = f"{choice.policy} cannot be activated: {away}"
                raise ChoiceRefused("sandbox_away", message, "see `status`") from away
            except BaseException:
                close(policy)
                raise
            finally:
                self._on_trial = None
            self._activate(chosen, policy, placement)
        self._log.info("policy %s with placement %s, by %s", choice.policy, choice.placement, by)

    def report(self) -> PolicyReport:
        """Return the active policy, what else there is, and why the newest choice is not active."""
        default_trouble = self._default_trouble if self._chosen.id is None else ""
        return PolicyReport(
            in_force=self.active,
            trouble="; ".join(filter(None, (self._store.policies.trouble(), default_trouble, self._away))),
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

    # Activating what was chosen, and taking it back.

    def _newest(self) -> Chosen:
        return self._store.policies.in_force() or self._default

    def _activate(self, chosen: Chosen, policy: Policy, placement: Placement) -> None:
        before = self.policy
        self._chosen, self.policy, self.placement, self.loaded = chosen, policy, placement, True
        self._plan, self._away = None, ""
        close(before)

    def _activate_built_in(self, *others: Chosen) -> None:
        """Activate the newest choice, or the first of the others, if that is built in and can be built."""
        for chosen in others or (self._newest(),):
            if chosen.told.choice.policy in POLICIES:
                with contextlib.suppress(ChoiceRefused):
                    self._activate(chosen, *build(chosen.told.choice))
                    return

    async def _load(self) -> None:
        """Activate the newest choice; take back one that cannot be built, and try the one before."""
        while not self.loaded:
            chosen = self._newest()
            try:
                policy, placement = await self._built(chosen.told.choice)
            except SandboxAway as away:
                if not self.loaded:
                    self._stand_in(chosen, away)
            except (ChoiceRefused, PolicyFailed) as refused:
                if not self.loaded:
                    self._take_back(chosen, str(refused))
            else:
                if self.loaded:  # an admin's choice was activated meanwhile
                    close(policy)
                else:
                    self._activate(chosen, policy, placement)

    async def _built(self, choice: PolicyChoice) -> tuple[Policy, Placement]:
        """Return policy and placement of a choice, loaded. If it raises, no process is left.

        Raises ChoiceRefused, PolicyFailed, SandboxAway.
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

    def _take_back(self, failed: Chosen, why: str) -> None:
        """Have the choice before it loaded; before that of the settings there is only LAST_RESORT."""
        name = failed.told.choice.policy
        self._log.error("the policy %s is taken back: %s", name, why)
        if failed.id is not None:
            self._store.policies.take_back(failed.id, f"{name} was taken back: {why}")
        elif failed is self._default:
            self._default = _LAST_RESORT
            self._default_trouble = f"{name}, which the cluster's settings name, was taken back: {why}"
        self.loaded = False

    def _stand_in(self, chosen: Chosen, away: SandboxAway) -> None:
        """Activate the newest choice that needs no sandbox until there is one again."""
        before = self._away
        self._activate_built_in(*self._store.policies.standing(), self._default, _LAST_RESORT)
        name, instead = chosen.told.choice.policy, self.active.choice.policy
        self._away = f"{name} does not decide: {away}. Until it does, {instead} decides"
        if self._away != before:
            self._log.warning("%s", self._away)
        self._retry = asyncio.get_running_loop().call_later(AWAY_S, self._try_sandbox_again)

    def _try_sandbox_again(self) -> None:
        if self._away:
            self.loaded = False
            self.changed()
