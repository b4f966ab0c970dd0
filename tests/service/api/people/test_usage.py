"""GPU-hours by owner, group and period, over the API."""

import csv
import io
from datetime import UTC, datetime

import pytest

from minicluster_hub.jobs.records import UseRecord

HOUR_S = 3600.0


def moment(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def held(api, owner, began, hours, *, gpus=2, job_id=1):
    """Record a user's lease."""
    began_at, store = moment(began), api.context.store
    server_id = None if job_id else 5
    use = UseRecord(0, owner, job_id, server_id, job_id, "node-1", gpus, gpus, began_at, None)
    (kept,) = store.usage.change([], [use], began_at)
    store.usage.change([kept.id], [], began_at + hours * HOUR_S)


async def usage(api, query, owner="root"):
    answer = await api.ask("GET", f"api/usage?{query}", f"{owner}-token")
    assert answer.status_code == 200, answer.text
    return answer.json()


def hours(told, *names):
    return [(*(row[name] for name in names), round(row["gpu_hours"], 3)) for row in told["rows"]]


MARCH = "from=2026-03-01&to=2026-03-31"


async def test_hours_go_to_the_periods_that_they_are_in(api):
    held(api, "ada", "2026-03-29T22:00", 4)  # Until two hours into Monday, in another ISO week.
    held(api, "ada", "2026-02-28T23:00", 2)  # One of them is before the period.
    by_day = await usage(api, f"{MARCH}&period=day")
    assert hours(by_day, "period", "owner") == [
        ("2026-03-01", "ada", 2.0),
        ("2026-03-29", "ada", 4.0),
        ("2026-03-30", "ada", 4.0),
    ]
    by_week = await usage(api, f"{MARCH}&period=week")
    assert hours(by_week, "period") == [("2026-W09", 2.0), ("2026-W13", 4.0), ("2026-W14", 4.0)]
    assert hours(await usage(api, f"{MARCH}&period=month"), "period") == [("2026-03", 10.0)]
    assert hours(await usage(api, MARCH), "period", "owner") == [("", "ada", 10.0)]


async def test_who_is_in_two_groups_counts_in_both_and_that_is_said(api):
    api.context.store.owners.note("ada", ["vision", "robots"], 1.0)
    api.context.store.owners.note("bob", ["vision"], 1.0)
    held(api, "ada", "2026-03-05", 1)
    held(api, "bob", "2026-03-05", 2, job_id=2)
    held(api, "eve", "2026-03-05", 3, job_id=None)
    answer = await usage(api, f"{MARCH}&by=group")
    assert hours(answer, "group", "shared_gpu_hours") == [
        ("", 0, 6.0),
        ("vision", 2.0, 6.0),
        ("robots", 2.0, 2.0),
    ]
    assert answer["rows"][0]["server_gpu_hours"] == 6.0
    assert answer["note"].startswith("users in several groups: ada;")
    assert (await usage(api, MARCH))["note"] == ""


async def test_each_sees_their_own_only_by_groups_too(api):
    for owner in ("ada", "bob"):
        api.context.store.owners.note(owner, ["vision"], 1.0)
        held(api, owner, "2026-03-05", 1)
    assert hours(await usage(api, f"{MARCH}&by=group", "ada"), "group") == [("vision", 2.0)]
    assert hours(await usage(api, f"{MARCH}&by=group"), "group") == [("vision", 4.0)]
    assert hours(await usage(api, MARCH, "ada"), "owner") == [("ada", 2.0)]


async def test_the_file_has_the_same_rows(api):
    api.context.store.owners.note("ada", ["=cmd()", "robots"], 1.0)
    held(api, "ada", "2026-03-05", 1)
    answer = await api.ask("GET", f"api/usage.csv?{MARCH}&by=group&period=month", "root-token")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [(row["period"], row["group"], row["gpu_hours"], row["shared_gpu_hours"]) for row in rows] == [
        ("2026-03", "'=cmd()", "2.000", "2.000"),
        ("2026-03", "robots", "2.000", "2.000"),
    ]


@pytest.mark.parametrize("query", ["by=node", "period=year", "from=yesterday", "to=2026-13-01", "from=-1"])
async def test_what_cannot_be_read_is_refused(api, query):
    answer = await api.ask("GET", f"api/usage?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")


async def test_without_a_begin_the_first_period_is_whole(api):
    answer = await usage(api, "period=month&to=2026-03-15")
    assert (answer["since"], answer["until"]) == (moment("2026-02-01"), moment("2026-03-16"))
    answer = await usage(api, "to=2026-03-15")
    assert answer["since"] == moment("2026-02-14")
