"""The rules in force: chosen by an admin, kept over restarts, and taken back by themselves when they fail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence

from minicluster.wire import ActivePolicy, PolicyChoice, PolicyReport
from minicluster_hub.policy.choices import build, offered_placements, offered_policies
from minicluster_hub.policy.custom_policy import Answer, CustomPolicies, CustomPolicy, PolicyGone, close
from minicluster_hub.policy.errors import ChoiceRefused, PlanFailed
from minicluster_hub.policy.sandbox import SandboxAway
from minicluster_hub.policy.trial import in_words, try_out
from minicluster_hub.scheduling.allocation.free_slots import Places
from minicluster_hub.scheduling.base import Placement, Policy, Snapshot
from minicluster_hub.scheduling.own import PolicyFailed
from minicluster_hub.scheduling.placement.outside import kept_off
from minicluster_hub.scheduling.policies import POLICIES
from minicluster_hub.scheduling.scheduler import Schedule, schedule
from minicluster_hub.store import Store
from minicluster_hub.store.users.policies import Chosen

BUILT_IN = PolicyChoice(policy="backfill", placement="pack")
"""What a cluster begins with that sets nothing."""
LAST_RESORT = PolicyChoice(policy="fifo", placement="pack")
"""In force while what the cluster's settings say cannot be."""
_HINT = "nothing was changed; try the file with `simulate --policy FILE.py`, mend it, and choose it again"
AWAY_S = 5.0
"""How long a built-in policy decides before the sandbox of a lab's own is looked for again."""
_NOTHING: Mapping[int, Places] = {}


class PolicyManager:
    """`default`: what the cluster's settings say. What an admin chooses goes before it.

    A lab's own policy loads and plans beside the event loop: call `schedule` only when `ready_for` says so,
    else `changed` is called later. One that fails is taken back: an admin's choice for good, that of the
    settings until the service starts again. While the sandbox is away a built-in one stands in.
    """

    def __init__(
        self,
        store: Store,
        default: PolicyChoice,
        clock: Callable[[], float],
        log: logging.Logger,
        own: CustomPolicies | None = None,
    ) -> None:
        """Raises ChoiceRefused."""
        self.own = own or CustomPolicies()
        self.changed: Callable[[], None] = lambda: None
        self._store = store
        self._default = self._chosen = Chosen(None, ActivePolicy(choice=default))
        self._trouble = self._away = ""
        self._clock = clock
        self._log = log
        self._policy, self._placement = build(default, self.own)
        self._loaded = False
        self._answer: Answer | None = None
        self._outdated = False
        self._choosing = asyncio.Lock()
        self._asking: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._tried: Policy | None = None
        self._loading: Policy | None = None

    @property
    def in_force(self) -> ActivePolicy:
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

    def ready_for(self, snapshot: Snapshot) -> bool:
        """Return whether `schedule` can be called now. If not, a lab's own policy is loaded and asked.

        Raises what the store raised since the last call.
        """
        if self._answer is not None and not self._answer.holds(snapshot):
            self._answer = None
        if not self._loaded:
            self._load_built_in()
        if not self._ready:
            self._ask(snapshot)
        return self._ready

    def ask_again(self, snapshot: Snapshot) -> None:
        """Ask once more if something happened while the last answer was awaited, and that changed nothing."""
        if self._outdated:
            self._ask(snapshot)

    @property
    def _ready(self) -> bool:
        return self._loaded and (not isinstance(self._policy, CustomPolicy) or self._answer is not None)

    def _ask(self, snapshot: Snapshot) -> None:
        asking, self._asking = self._asking, None
        if asking is not None and not asking.done():
            self._asking, self._outdated = asking, True
            return
        if asking is not None:
            asking.result()
        self._outdated = False
        self._asking = asyncio.create_task(self._get_ready(snapshot))
        self._asking.add_done_callback(lambda _: self.changed())

    async def _get_ready(self, snapshot: Snapshot) -> None:
        """Have ready what `schedule` needs; the world may be another one by then."""
        while not self._ready:
            await self._load()
            if isinstance(self._policy, CustomPolicy):
                await self._have_planned(self._policy, snapshot)

    async def _have_planned(self, policy: CustomPolicy, snapshot: Snapshot) -> None:
        try:
            told = await asyncio.to_thread(policy.plan, snapshot)
        except PolicyGone:
            if policy is self._policy:
                self._loaded = False
        except PolicyFailed as failed:
            if policy is self._policy:
                self._take_back(self._chosen, str(failed))
        else:
            if policy is self._policy:
                self._answer = Answer(policy, told)

    async def choose(self, choice: PolicyChoice, by: str, snapshot: Snapshot) -> None:
        """Put a choice in force, from the next tick on, once it has passed its trial beside the loop.

        Raises ChoiceRefused, with nothing changed.
        """
        async with self._choosing:
            self._tried, placement = policy, placement = build(choice, self.own)
            try:
                await asyncio.to_thread(try_out, policy, placement, snapshot)
                chosen = self._store.policies.choose(choice, by, self._clock())
            except PolicyFailed as failed:
                close(policy)
                message = f"{choice.policy} cannot be put in force: {failed}"
                raise ChoiceRefused("bad_policy", message, _HINT) from failed
            except SandboxAway as away:
                message = f"{choice.policy} cannot be put in force: {away}"
                raise ChoiceRefused("sandbox_away", message, "see `status`") from away
            except BaseException:
                close(policy)
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
            policies=offered_policies(self.own),
            placements=offered_placements(),
        )

    def close(self) -> None:
        """End the processes of a lab's own policies."""
        for work in (self._asking, self._looking):
            if work is not None:
                work.cancel()
        for policy in (self._policy, self._tried, self._loading):
            close(policy)

    def _wanted(self) -> Chosen:
        return self._store.policies.in_force() or self._default

    def _load_built_in(self) -> None:
        """Put in force what was chosen last, if it takes no time."""
        wanted = self._wanted()
        if wanted.told.choice.policy in POLICIES:
            with contextlib.suppress(ChoiceRefused):
                self._put(wanted, *build(wanted.told.choice))

    async def _load(self) -> None:
        """Put in force what was chosen last, once; one that cannot be built is taken back."""
        while not self._loaded:
            wanted = self._wanted()
            try:
                policy, placement = await self._built(wanted.told.choice)
            except SandboxAway as away:
                if not self._loaded:
                    self._stand_in(wanted, away)
            except (ChoiceRefused, PolicyFailed) as refused:
                if not self._loaded:
                    self._take_back(wanted, str(refused))
            else:
                if self._loaded:
                    close(policy)
                else:
                    self._put(wanted, policy, placement)

    async def _built(self, choice: PolicyChoice) -> tuple[Policy, Placement]:
        """Return what a choice means, loaded; else there is no process left.

        Raises ChoiceRefused, PolicyFailed, SandboxAway.
        """
        self._loading, placement = policy, placement = build(choice, self.own)
        try:
            if isinstance(policy, CustomPolicy):
                await asyncio.to_thread(policy.load)
        except BaseException:
            close(policy)
            raise
        finally:
            self._loading = None
        return policy, placement

    def _put(self, chosen: Chosen, policy: Policy, placement: Placement) -> None:
        before = self._policy
        self._chosen, self._policy, self._placement, self._loaded = chosen, policy, placement, True
        self._answer, self._away = None, ""
        close(before)

    def _take_back(self, failed: Chosen, why: str) -> None:
        """Have the one before it loaded; of the settings' there is none, and LAST_RESORT takes its place."""
        name = failed.told.choice.policy
        self._log.error("the policy %s is taken back: %s", name, why)
        if failed.id is not None:
            self._store.policies.take_back(failed.id, f"{name} was taken back: {why}")
        elif failed is self._default:
            self._default = Chosen(None, ActivePolicy(choice=LAST_RESORT))
            self._trouble = f"{name}, which the cluster's settings name, was taken back: {why}"
        self._loaded = False

    def _stand_in(self, wanted: Chosen, away: SandboxAway) -> None:
        """Have the newest choice that needs no sandbox decide until there is one."""
        before = self._away
        chosen = self._put_built_in((*self._store.policies.standing(), self._default))
        name, instead = wanted.told.choice.policy, chosen.told.choice.policy
        self._away = f"{name} does not decide: {away}. Until it does, {instead} decides"
        if self._away != before:
            self._log.warning("%s", self._away)
        self._looking = asyncio.get_running_loop().call_later(AWAY_S, self._look_again)

    def _put_built_in(self, choices: Sequence[Chosen]) -> Chosen:
        """Put in force the first of these that is built in and can be, LAST_RESORT if none can; return it."""
        for chosen in (*choices, Chosen(None, ActivePolicy(choice=LAST_RESORT))):
            if chosen.told.choice.policy in POLICIES:
                with contextlib.suppress(ChoiceRefused):
                    self._put(chosen, *build(chosen.told.choice))
                    break
        return self._chosen

    def _look_again(self) -> None:
        if self._away:
            self._loaded = False
            self.changed()

    def _told_trouble(self) -> str:
        """Return why not the newest choice, and not what the settings say, is in force."""
        why = self._store.policies.trouble(), self._trouble if self._chosen.id is None else "", self._away
        return "; ".join(filter(None, why))
