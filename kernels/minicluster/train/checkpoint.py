"""mc.checkpoint: saves the training state, so that losing a node costs seconds of work, not the run."""

from __future__ import annotations

import time
from typing import Any

from minicluster.train import place
from minicluster.train.calls import called_as
from minicluster.train.comm import rank as comm
from minicluster.train.snapshots import state
from minicluster.train.snapshots.arrays import SnapshotImpossible
from minicluster.train.snapshots.session import SnapshotSession, session
from minicluster.train.snapshots.state import Parts
from minicluster.train.strategies.divided import divided_of

_CALL = "mc.checkpoint(model, optimizer, loader, step=step)"


@called_as(_CALL)
def checkpoint(
    model: Any = None,
    optimizer: Any = None,
    loader: Any = None,
    *,
    step: int,
    every: int | None = None,
    keep: int = 2,
    **more: Any,
) -> None:
    """Save a snapshot when one is due: `mc.checkpoint(model, optimizer, loader, step=step)` after each step.

    All ranks call it, with the same step. A snapshot goes into the memory of each node and, in the
    background, into the job's storage, which keeps the newest `keep`. It includes the ranks' random states.
    every: steps between snapshots; None: chosen so that snapshots take at most 1.25 % of the time.
    loader: one of mc.prepare(); its position is saved. more: objects with a state_dict() (a scheduler, a
    GradScaler), dicts and lists. Models and optimizers of Keras are saved by their variables; arrays of
    NumPy and trees of JAX within a dict: `mc.checkpoint(state, step=step)`. Outside of a job this does
    nothing.
    Raises SnapshotImpossible.
    """
    _check(step, every, keep)
    here = session()
    if here is None:
        return
    began = time.perf_counter()
    here.calls += 1
    named = {"model": state.trained_model(model), "optimizer": optimizer, "loader": loader, **more}
    state.check(named, _CALL)
    due = step % every == 0 if every else here.calls >= here.plan_at and _is_due(here, named)
    if due:
        _take(here, named, step, keep, began)


def _check(step: int, every: int | None, keep: int) -> None:
    asked = (("step", step, 0), ("every", 1 if every is None else every, 1), ("keep", keep, 1))
    for name, value, least in asked:
        if not isinstance(value, int) or value < least:
            raise SnapshotImpossible(
                f"mc.checkpoint({name}={value!r}) takes a whole number from {least} on.",
                "step counts the steps of the whole training: step=step.",
            )


def _is_due(here: SnapshotSession, named: dict[str, Any]) -> bool:
    """Return whether a snapshot is due. Rank 0 decides for all, since the ranks' clocks differ."""
    decided = (0, 0)
    if here.ranks.decides:
        here.schedule.cost_s = here.cost_s or here.schedule.cost_s
        plan = here.schedule.plan(here.calls, time.monotonic(), _size_of(named))
        decided = (int(plan.take), plan.plan_at)
        _tell_cost(here, named)
    take, here.plan_at = here.ranks.decided_by_first(decided)
    return bool(take)


def _take(here: SnapshotSession, named: dict[str, Any], step: int, keep: int, began: float) -> None:
    """Save a snapshot: each node saves the full state and the random states of all ranks.

    Of a divided model, each node saves what its ranks have.
    """
    if (divided := divided_of(named["model"])) is not None:
        from minicluster.train.snapshots.divided import take

        take(here, divided, named, step, keep, began)
        return
    comm.average_weights()
    randoms = here.ranks.gather(state.random_states())
    if not here.ranks.writes:
        return
    kept = {name: state.state_of(name, part) for name, part in named.items() if part is not None}
    parts = Parts({"state": kept, "randoms": randoms, "world_size": place.world_size(), "step": step})
    here.writer.write(parts, (here.attempt, step), len(randoms), keep, began)


def _size_of(named: dict[str, Any]) -> int:
    """Estimate a snapshot's size in bytes: cheap, and accurate enough to plan the first one."""
    return state.size_bytes([part for part in named.values() if part is not None])


def _tell_cost(here: SnapshotSession, named: dict[str, Any]) -> None:
    if not here.cost_told and here.cost_s:
        here.cost_told = True
        here.snapshot_store.tell_cost(
            size_bytes=_size_of(named), cost_s=here.cost_s, interval_s=here.schedule.interval_s
        )
