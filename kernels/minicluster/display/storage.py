"""`%distribute storage`: shows the user's storage at the job service."""

from __future__ import annotations

import time
from collections.abc import Iterable

from minicluster.client.client import JobServiceClient
from minicluster.datasets.progress import sizes
from minicluster.display.tables import Table
from minicluster.wire import KIND_NAMES, OwnerStorage, StorageReport, StorageUse, StoredThing


def show(service: JobServiceClient, everyones: bool) -> Table:
    """Print the user's storage use and list the largest items; for administrators, of all users."""
    params = {"owner": "all"} if everyones else {}
    report = StorageReport.model_validate_json(service.ask("GET", "api/storage", params=params).content)
    if everyones:
        heads = ("user", "in use", "limit", "of which")
        rows = tuple((one.owner, *_sizes(one), _kinds(one.uses)) for one in report.owners)
        return Table(heads, rows, "Nobody stores anything.")
    for own in report.owners:
        print(summary(own))  # noqa: T201
    heads = ("what", "size", "of which", "since", "to remove it")
    return Table(heads, tuple(map(_row, report.things)), "Nothing is stored.")


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
    earlier = f", earlier versions {sizes(thing.earlier_bytes)}" if thing.earlier_versions else ""
    return (_what(thing), sizes(thing.size_bytes), _kinds(thing.uses) + earlier, since, _removal(thing))


def _what(thing: StoredThing) -> str:
    if thing.job_id is None:
        return f"data set {thing.name}"
    return f"job {thing.job_id}" + (f" ({thing.name})" if thing.name != "cell" else "")


def _removal(thing: StoredThing) -> str:
    if thing.job_id is None:
        return f"%distribute data rm {thing.name}"
    return "not over yet" if thing.open else f"%distribute storage rm {thing.job_id}"
