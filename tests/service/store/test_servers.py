"""Slots of notebook servers on SQLite and PostgreSQL: one ledger with jobs, no slot held twice."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from minicluster.wire import JobState
from minicluster_hub.jobs.records import Lease
from minicluster_hub.store import HomeMoved, SlotTaken, Store
from minicluster_hub.store.database import open_database


def place(store, owner="ada", name="", node="node-1", slots=(0,), **more):
    how = {"until": 99.0, "shared_home": False, "now": 5.0, **more}
    return store.place_server(owner, name, (node, slots), **how)


def test_a_place_is_kept_with_its_slots_and_its_home(store):
    record = place(store, slots=(0, 2))
    assert (record.owner, record.name, record.node, record.slots) == ("ada", "", "node-1", (0, 2))
    assert (record.until, record.created_at) == (99.0, 5.0)
    stored = store.open_state()
    assert stored.servers == (record,)
    assert stored.leases == tuple(
        Lease("node-1", slot, None, None, "ada", False, server_id=record.id) for slot in (0, 2)
    )
    assert store.server("ada", "") == record
    assert (store.home_of("ada"), store.home_of("bob"), store.homes()) == ("node-1", None, {"ada": "node-1"})


def test_an_ended_server_gives_back_its_slots_and_its_home_stays(store):
    first = place(store)
    assert store.end_server(first.id)
    assert not store.end_server(first.id)
    assert (store.open_state().servers, store.open_state().leases) == ((), ())
    assert store.home_of("ada") == "node-1"
    assert place(store, "bob").id > first.id, "an id that comes again would free another server's place"


def test_named_servers_are_places_of_their_own(store):
    place(store)
    place(store, name="second", slots=())
    assert [record.name for record in store.open_state().servers] == ["", "second"]
    with pytest.raises(SlotTaken, match="server 'second' of ada cannot be placed"):
        place(store, name="second", slots=())


def test_a_home_is_never_moved_by_a_place_elsewhere(store):
    place(store, slots=())
    before = store.open_state()
    with pytest.raises(HomeMoved, match="the home of ada is on node-1"):
        place(store, name="second", node="node-2")
    assert store.open_state() == before
    place(store, name="shared", node="node-2", shared_home=True)
    assert store.home_of("ada") == "node-1"
    place(store, "bob", node="node-3", shared_home=True)
    assert store.home_of("bob") is None


def test_jobs_and_servers_refuse_each_other_by_name(store, given):
    place(store, "bob", slots=(0,))
    job = given.job()
    with pytest.raises(SlotTaken, match=r"slot 0 of node-1 is held by a notebook server of bob"):
        store.admit(job.id, [("node-1", (0,))], 6.0)
    given.admitted("key-0002", places=[("node-2", (0,))])
    before = store.open_state()
    with pytest.raises(SlotTaken, match=r"slot 0 of node-2 is held by task \d+ of ada"):
        place(store, "cid", node="node-2")
    assert store.open_state() == before
    assert store.home_of("cid") is None, "nothing of a refused place is kept"


def test_a_lease_has_exactly_one_holder(store, database_url, given):
    record = place(store)
    _, _, tasks = given.admitted(places=[("node-2", (0,))])
    database = open_database(database_url)
    row = (
        "INSERT INTO leases (node, slot, task_id, server_id, owner, warm) VALUES ('n', 0, :t, :s, 'x', false)"
    )
    for holders in ({"t": None, "s": None}, {"t": tasks[0].id, "s": record.id}):
        with pytest.raises(IntegrityError), database.write() as connection:
            connection.execute(text(row), holders)
    database.close()


def test_50_servers_and_jobs_at_once_never_share_a_slot(store, database_url, given):
    """Five services on one database; all request the same eight slots, and try each in turn."""
    stores = [Store.open(database_url) for _ in range(5)]
    slots = [(f"node-{number}", slot) for number in (1, 2) for slot in range(4)]
    jobs = {number: given.job(f"key-{number:04}") for number in range(0, 50, 2)}

    def take(number):
        own = stores[number % 5]
        for node, slot in slots[number % 8 :] + slots[: number % 8]:
            try:
                if number in jobs:
                    own.admit(jobs[number].id, [(node, (slot,))], 6.0)
                else:
                    place(own, f"user-{number}", node=node, slots=(slot,))
            except SlotTaken:
                continue
            return node, slot
        return None

    taken = [won for won in given.in_threads(50, take) if won is not None]
    for each in stores:
        each.close()
    stored = store.open_state()
    assert sorted(taken) == slots
    assert [(lease.node, lease.slot) for lease in stored.leases] == slots
    started = [job for job in stored.jobs if job.state is JobState.STARTING]
    assert len(started) + len(stored.servers) == 8


def test_one_server_asked_for_by_many_has_one_place(store, given):
    def take(number):
        try:
            return place(store, node=f"node-{number % 3}", slots=(number,))
        except (SlotTaken, HomeMoved):
            return None

    won = [record for record in given.in_threads(8, take) if record is not None]
    assert won == list(store.open_state().servers)
    assert len(won) == 1
    assert store.home_of("ada") == won[0].node


def test_gpus_go_back_while_the_place_stays_and_come_again(store, given):
    server = place(store, slots=(0, 1))
    store.idle.held(server.id, ("GPU-a", "GPU-b"))
    store.idle.warned(server.id, 6.0)
    store.idle.reclaim(server.id, 7.0)
    assert len(store.open_state().leases) == 2, "held until the engine has them back"
    store.idle.freed(server.id)
    gone = store.server("ada", "")
    assert (gone.slots, gone.gpus, gone.warned_at, gone.reclaimed_at) == (
        (0, 1),
        ("GPU-a", "GPU-b"),
        6.0,
        7.0,
    )
    given.admitted(places=[("node-1", (0,))])
    before = store.open_state()
    with pytest.raises(SlotTaken, match="cannot have GPUs again"):
        store.idle.again(gone, (0, 1), 99.0, 8.0)
    assert store.open_state() == before
    again = store.idle.again(gone, (2, 3), 99.0, 8.0)
    assert (again.slots, again.gpus, again.created_at) == ((2, 3), ("GPU-a", "GPU-b"), 8.0)
    assert (again.warned_at, again.reclaimed_at) == (None, None)
    assert [lease.slot for lease in store.open_state().leases if lease.server_id == again.id] == [2, 3]
