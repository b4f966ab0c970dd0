"""`%distribute storage` and `%distribute storage rm JOB ...`: what one keeps with the job service."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING

from minicluster.datasets.progress import sizes
from minicluster.display.tables import Table
from minicluster.parsing.parser import OptionWrong
from minicluster.parsing.values import job_id
from minicluster.wire import KIND_NAMES, OwnerStorage, StorageReport, StorageUse, StoredThing

if TYPE_CHECKING:
    from minicluster.magics import Distribute

_HEADS = ("what", "size", "of which", "since", "to remove it")


def show(magics: Distribute, said: Namespace) -> Table:
    """Say how much is kept of how much, and list what is largest."""
    service = magics.service()
    params = {"owner": "all"} if said.all else {}
    report = StorageReport.model_validate_json(service.ask("GET", "api/storage", params=params).content)
    if said.all:
        heads = ("user", "in use", "may keep", "of which")
        rows = tuple((one.owner, *_sizes(one), _kinds(one.uses)) for one in report.owners)
        return Table(heads, rows, "Nobody keeps anything.")
    for own in report.owners:
        print(summary(own))  # noqa: T201
    return Table(_HEADS, tuple(map(_row, report.things)), "Nothing is kept.")


def remove(magics: Distribute, said: Namespace) -> None:
    """Remove what jobs that are over keep, one after the other."""
    if not said.jobs:
        raise OptionWrong("%distribute storage rm needs the number of a job.", _LIKE)
    for number in _job_ids(said.jobs):
        magics.service().ask("DELETE", f"api/jobs/{number}/storage")
        print(f"What job {number} kept is removed; its story stays.")  # noqa: T201


_LIKE = "Like this: %distribute storage rm 12 14"


def _job_ids(words: Iterable[str]) -> list[int]:
    try:
        return [job_id(word) for word in words]
    except ValueError as error:
        raise OptionWrong(f"%distribute storage rm {' '.join(words)}: {error}.", _LIKE) from None


def summary(own: OwnerStorage) -> str:
    used, limit = _sizes(own)
    kinds = f": {_kinds(own.uses)}" if own.uses else ""
    return f"You keep {used} of the {limit} that you may keep with the job service{kinds}."


def _sizes(own: OwnerStorage) -> tuple[str, str]:
    return sizes(own.used_bytes), sizes(own.limit_bytes)


def _kinds(uses: Iterable[StorageUse]) -> str:
    return ", ".join(f"{KIND_NAMES[use.kind]} {sizes(use.size_bytes)}" for use in uses)


def _row(thing: StoredThing) -> tuple[str, ...]:
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(thing.created_at))
    return (_what(thing), sizes(thing.size_bytes), _kinds(thing.uses), since, _removal(thing))


def _what(thing: StoredThing) -> str:
    if thing.job_id is None:
        return f"data set {thing.name}"
    return f"job {thing.job_id}" + (f" ({thing.name})" if thing.name != "cell" else "")


def _removal(thing: StoredThing) -> str:
    if thing.job_id is None:
        return f"%distribute data rm {thing.name}"
    return "not over yet" if thing.open else f"%distribute storage rm {thing.job_id}"
