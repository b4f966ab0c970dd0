"""What must happen to a model's replicas next, from what is wanted and what is there. Pure.

A change to another version: its replicas start beside the old ones; when they answer, the requests go to
them; then the old ones take no more requests, answer those that they have, and end. So no request is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from minicluster.wire import JobState

MOST_FAILURES = 3
"""A version has failed when so many replicas in a row ended before they ever answered."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica whose job is not over. ready: it answers. waits: the scheduler found no slots for it."""

    job_id: int
    version: int
    state: JobState
    ready: bool = False
    waits: bool = False
    retired: bool = False


@dataclass(frozen=True, slots=True)
class ModelView:
    """What a model's owner wants, and what is there.

    active: the version that is wanted; serving: the one that gets the requests, 0: none. failed: versions
    that do not come up. stopped: nothing is wanted any more.
    """

    active: int
    serving: int
    replicas: int
    stopped: bool = False
    failed: frozenset[int] = frozenset()
    present: tuple[ReplicaView, ...] = ()

    def living(self, version: int) -> list[ReplicaView]:
        """Return the replicas of a version that nobody told to end, the oldest first."""
        mine = (one for one in self.present if one.version == version and not one.retired)
        return sorted(mine, key=lambda one: one.job_id)

    def ready(self, version: int) -> list[ReplicaView]:
        return [one for one in self.living(version) if one.ready]


@dataclass(frozen=True, slots=True)
class Steps:
    """serving: the version that gets the requests from now on. start: how many replicas of each version to
    start.

    retire: replicas to end, after the requests go where they shall. fall_back: the version that is wanted in
    place of one that failed; 0: none.
    """

    serving: int
    start: dict[int, int] = field(default_factory=dict[int, int])
    retire: tuple[int, ...] = ()
    fall_back: int = 0


def next_steps(model: ModelView) -> Steps:
    """Return what to do now. Called again after each change, it comes to rest."""
    if model.stopped:
        return Steps(0, retire=_ids(one for one in model.present if not one.retired))
    if model.active in model.failed and model.serving not in (0, model.active, *model.failed):
        # Its replicas are there: it goes on as if nothing had been wanted.
        return Steps(model.serving, fall_back=model.serving)
    serving = model.active if _takes_over(model) else model.serving
    wanted = {model.active: model.replicas}
    if serving not in (0, model.active):
        # Those that end while the others start are not replaced, but for the last one.
        wanted[serving] = max(1, min(model.replicas, len(model.living(serving))))
    start = {
        version: missing
        for version, count in wanted.items()
        if version not in model.failed and (missing := count - len(model.living(version))) > 0
    }
    return Steps(
        serving, start, tuple(dict.fromkeys((*_surplus(model, wanted), *_making_room(model, serving))))
    )


def _takes_over(model: ModelView) -> bool:
    """Whether the wanted version gets the requests: all its replicas answer, or the others wait for slots."""
    living, ready = model.living(model.active), model.ready(model.active)
    if model.serving in (0, model.active):
        return bool(ready) or model.serving == model.active
    others_wait = all(one.ready or one.state is JobState.QUEUED for one in living)
    return bool(ready) and (len(ready) >= model.replicas or others_wait)


def _surplus(model: ModelView, wanted: dict[int, int]) -> Iterable[int]:
    """Yield the replicas of versions that nobody wants, and of those too many; first those that do not
    answer.
    """
    for version in sorted({one.version for one in model.present}):
        living = model.living(version)
        spare = len(living) - wanted.get(version, 0)
        order = sorted(living, key=lambda one: (one.ready, one.state is not JobState.QUEUED, -one.job_id))
        yield from _ids(order[: max(0, spare)])


def _making_room(model: ModelView, serving: int) -> Iterable[int]:
    """Yield an old replica whose slots the new version needs: all of its replicas wait for slots."""
    coming, old = model.living(model.active), model.ready(serving)
    stuck = coming and all(one.state is JobState.QUEUED and one.waits for one in coming)
    if serving != model.active and stuck and len(old) > 1 and len(old) == len(model.living(serving)):
        yield old[-1].job_id


def _ids(replicas: Iterable[ReplicaView]) -> tuple[int, ...]:
    return tuple(one.job_id for one in replicas)
