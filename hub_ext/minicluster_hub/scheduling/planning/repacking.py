"""Whether a gang would fit if running jobs stood elsewhere: the question only, `assign` does the moving."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minicluster_hub.scheduling.base import JobView
from minicluster_hub.scheduling.allocation.free_slots import FreeSlots, Places, count_slots
from minicluster_hub.scheduling.placement.filling import fill

Holders = Mapping[int, tuple[JobView, Places]]
"""By their number: jobs, and the places that they would have."""


def repack(gang: JobView, others: Holders, free: FreeSlots) -> dict[int, Places]:
    """Return places for a gang's minimum and for all the others, taken from `free`.

    Empty, and nothing taken, if somebody finds none, or none on as few nodes as before.
    """
    trial = free.copy()
    _give(trial, (places for _, places in others.values()))
    own = fill(gang, gang.min_chunks, trial, trial.nodes(gang.chunk_slots))
    if own is None:
        return {}
    trial.take(own)
    found = _places_of_all(others, trial)
    if len(found) < len(others):
        return {}
    found[gang.job_id] = own
    _give(free, (places for _, places in others.values()))
    for places in found.values():
        free.take(places)
    return found


def _places_of_all(others: Holders, trial: FreeSlots) -> dict[int, Places]:
    """Leave those where they are who can stay, and find places for the rest, the largest first."""
    found: dict[int, Places] = {}
    for job_id, (_, places) in others.items():
        if trial.has(places):
            found[job_id] = places
            trial.take(places)
    homeless = (item for item in others.items() if item[0] not in found)
    for job_id, (job, places) in sorted(homeless, key=lambda item: -count_slots(item[1][1])):
        chunks = count_slots(places) // job.chunk_slots
        elsewhere = fill(job, chunks, trial, trial.nodes(job.chunk_slots))
        if elsewhere is None or len(elsewhere) > len(places):
            break
        found[job_id] = elsewhere
        trial.take(elsewhere)
    return found


def _give(free: FreeSlots, all_places: Iterable[Places]) -> None:
    for places in all_places:
        free.give(places)
