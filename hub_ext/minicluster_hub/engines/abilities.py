"""What a cluster can and cannot with its engine: one table for the documentation, `doctor` and the pages."""

from __future__ import annotations

from collections.abc import Sequence

from minicluster.wire import Ability
from minicluster_hub.engines.base import Engine

YES = "yes"


def abilities(engine: Engine) -> tuple[Ability, ...]:
    """Return what an engine can; it need not be open."""
    queue = engine.batch_queue.name if engine.batch_queue is not None else ""
    rest = f"they go on with the nodes that are left: {queue} gives a running job no more"
    alone = "this machine is all there is" if engine.own_nodes else "their own tools watch them"
    watched = f"{queue} watches its nodes" if queue else alone
    rows: tuple[tuple[str, object, str], ...] = (
        ("the order of waiting jobs by a policy", not queue, f"{queue} decides; quotas still count"),
        ("reservations, maintenance windows, drains", not queue, f"make them in {queue}"),
        ("gangs prepared before the first cell", not queue, f"slots are {queue}'s until a job asks"),
        ("fault-tolerant jobs", engine.lighthouses, "after a loss, jobs continue from their snapshots"),
        ("growth of fault-tolerant jobs", engine.lighthouses and not queue, rest),
        ("GPUs of servers, taken back when idle", engine.gpu_holds, "servers have no GPUs, or keep them"),
        ("half a GPU", engine.gpu_sharing, "each GPU belongs to one job"),
        ("container images, also published ones", engine.task_images, "ranks run in one environment"),
        ("data sets", engine.data_agents, without_data_sets(engine)),
        ("`doctor` on the machines", engine.examined_by, watched),
    )
    return tuple(_ability(*row) for row in rows)


def without_data_sets(engine: Engine) -> str:
    """Return what happens while an engine has no data sets, and what would give it some."""
    option = engine.data_sets_option
    return f"jobs read what the nodes have{f', until an admin sets {option}' if option else ''}"


def _ability(name: str, can: object, instead: str) -> Ability:
    """instead: what happens where it cannot."""
    return Ability(name=name, can=bool(can), instead="" if can else instead)


def table(engines: Sequence[tuple[str, Engine]]) -> str:
    """Return a Markdown table of the engines, by their names."""
    names = [name for name, _ in engines]
    columns = [abilities(engine) for _, engine in engines]
    head = f"| | {' | '.join(f'`{name}`' for name in names)} |\n|---|{'---|' * len(names)}\n"
    rows = (
        f"| {row[0].name} | {' | '.join(YES if one.can else f'no: {one.instead}' for one in row)} |\n"
        for row in zip(*columns, strict=True)
    )
    return head + "".join(rows)
