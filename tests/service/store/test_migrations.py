"""Migrations from each earlier release's tables, with rows, to the current ones."""

import json
from dataclasses import asdict

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import text

from minicluster.wire import NoticeEvent
from minicluster_hub.jobs.records import TaskState, UseRecord
from minicluster_hub.jobs.slot_numbers import halves
from minicluster_hub.store import SlotTaken, Store
from minicluster_hub.store.database import open_database

ROWS_OF_0001 = (
    """INSERT INTO jobs (id, owner, idempotency_key, spec, state, reason, created_at, state_since, attempts,
       attempt_id, gang_id, world_size)
       VALUES (7, 'ada', 'key-0001', '{"payload_sha256": "%s"}', 'starting', '', 1.0, 2.0, 1, 5, 3, 1)"""
    % ("a" * 64),
    """INSERT INTO gangs (id, owner, target, job_id, slots_per_node, created_at)
       VALUES (3, 'ada', 'keep', 7, 1, 2.0)""",
    "INSERT INTO attempts (id, job_id, gang_id, number, created_at) VALUES (5, 7, 3, 1, 2.0)",
    """INSERT INTO tasks (id, gang_id, "index", node, slots, state, token_hash, address, cleared, state_since)
       VALUES (9, 3, 0, 'node-1', '[0]', 'started', 'f00d', '', 0, 2.0)""",
    "INSERT INTO ranks (attempt_id, rank, task_id, state) VALUES (5, 0, 9, 'pending')",
    """INSERT INTO leases (node, slot, task_id, job_id, owner, warm)
       VALUES ('node-1', 0, 9, 7, 'ada', false)""",
)


def migrate(database, revision, way=command.upgrade):
    with database.write() as connection:
        config = Config(attributes={"connection": connection})
        config.set_main_option("script_location", "minicluster_hub.store:migrations")
        way(config, revision)


@pytest.fixture
def old(database_url):
    """A database of release 0001 with an open job."""
    database = open_database(database_url)
    migrate(database, "0001")
    with database.write() as connection:
        for row in ROWS_OF_0001:
            connection.execute(text(row))
    yield database
    database.close()


def test_a_job_under_way_goes_on_in_the_new_tables(old, database_url):
    store = Store.open(database_url)
    stored = store.open_state()
    assert [(gang.id, gang.image, gang.shm_bytes) for gang in stored.gangs] == [(3, None, None)]
    assert [(lease.task_id, lease.server_id, lease.warm) for lease in stored.leases] == [(9, None, False)]
    assert stored.tasks[0].state is TaskState.STARTED
    assert stored.servers == ()
    assert store.task_by_token("f00d").id == 9
    record = store.place_server("bob", "", ("node-1", (1,)), until=9.0, shared_home=False, now=3.0)
    assert store.server("bob", "") == record
    store.task_ended(9, 4.0)
    assert [lease.server_id for lease in store.open_state().leases] == [record.id]
    store.close()


def test_the_blobs_of_earlier_jobs_are_known_as_theirs(old, database_url):
    with old.write() as connection:
        connection.execute(text("UPDATE attempts SET result_sha256 = :sha256"), {"sha256": "b" * 64})
        for sha256 in ("a" * 64, "b" * 64, "c" * 64):
            values = {"sha256": sha256}
            connection.execute(text("INSERT INTO blobs VALUES ('ada', :sha256, 1, 1.0)"), values)
    store = Store.open(database_url)
    assert [store.old_jobs.name_blobs(9), store.old_jobs.name_blobs(9)] == [1, 0]
    assert store.blobs.drop_loose(0.5) == 0
    assert store.blobs.drop_loose(9.0) == 1
    assert store.blobs.unknown(("a" * 64, "b" * 64, "c" * 64)) == {"c" * 64}
    store.close()


def test_a_policy_that_came_as_source_gives_way_to_the_one_before_it_and_says_so(old, database_url):
    migrate(old, "0010")
    with old.write() as connection:
        for choice in ({"policy": "srtf", "source": None}, {"policy": "ours", "source": "def plan(x): ..."}):
            row = {"choice": json.dumps({"placement": "pack", "options": {}, **choice})}
            statement = (
                "INSERT INTO policies (choice, chosen_by, since, ended) VALUES (:choice, 'root', 3.0, '')"
            )
            connection.execute(text(statement), row)
    store = Store.open(database_url)
    assert store.policies.active().policy.choice.policy == "srtf"
    assert store.policies.trouble().startswith("ours was taken back: it came as source, which is not taken")
    assert "ours.py into the folder of policies" in store.policies.trouble()
    store.close()
    with old.read() as connection:
        kept = connection.execute(text("SELECT choice FROM policies WHERE ended != ''")).scalar_one()
    assert json.loads(kept)["source"] == "def plan(x): ...", "it may be the only copy"


def test_an_address_for_e_mails_has_to_be_confirmed_again_and_its_owner_is_told(old, database_url):
    migrate(old, "0011")
    with old.write() as connection:
        for owner, email in (("ada", "ada@lab.org"), ("bob", None)):
            statement = "INSERT INTO notice_wishes VALUES (:owner, :events, NULL, :email, '')"
            row = {"owner": owner, "events": '["gpu-warned"]', "email": email}
            connection.execute(text(statement), row)
    store = Store.open(database_url)
    wishes, trouble = store.notices.settings("ada")
    assert wishes.email == "ada@lab.org" and "confirm your address" in trouble
    assert store.notices.settings("bob")[1] == ""
    assert not store.notices.tell("ada", NoticeEvent.GPU_WARNED, 3.0) and store.notices.queues() == []
    store.notices.expect_code("ada", "ada@lab.org", "12345678", 3.0)
    assert store.notices.confirm("ada", "12345678", 4.0)
    assert store.notices.tell("ada", NoticeEvent.GPU_WARNED, 5.0)
    store.close()


def test_rows_of_earlier_jobs_count_to_their_owners_unless_they_were_removed(old, database_url):
    migrate(old, "0012")
    with old.write() as connection:
        for sql in (
            "INSERT INTO jobs (id, owner, idempotency_key, spec, state, reason, created_at, state_since,"
            " attempts, removed_at) VALUES (8, 'bob', 'key-0002', '{}', 'stopped', '', 1.0, 2.0, 0, 3.0)",
            "INSERT INTO job_files VALUES (7, 'output', '', 'ada', 5000)",
            "UPDATE ranks SET error = :long",
            "INSERT INTO events (job_id, at, kind, text) VALUES (7, 1.0, 'note', :long)",
        ):
            connection.execute(text(sql), {"long": "ü" * 5_000} if ":long" in sql else {})
    store = Store.open(database_url)
    uses = {kind.value: use.size_bytes for kind, use in store.storage.used("ada").items()}
    assert uses.pop("output") == 5_000
    assert 20_000 < uses.pop("cells") < 21_000 and not uses
    assert store.storage.used("bob") == {}
    store.close()


CLAIM = {
    "id": 4,
    "kind": "reservation",
    "holder": "ada",
    "nodes": '["node-1"]',
    "slots": 1,
    "begins_at": 3.0,
    "ends_at": 9.0,
    "note": "thesis",
    "made_by": "root",
    "made_at": 2.0,
    "used_at": 3.5,
    "over_at": None,
    "over_why": "",
}


def test_claims_are_read_as_reservations_and_go_on_counting_and_back(old, database_url):
    migrate(old, "0013")
    lapsed = CLAIM | {"id": 2, "used_at": None, "over_at": 5.0, "over_why": "lapsed"}
    with old.write() as connection:
        for row in (lapsed, CLAIM):
            values = ", ".join(f":{name}" for name in row)
            connection.execute(text(f"INSERT INTO claims ({', '.join(row)}) VALUES ({values})"), row)
    store = Store.open(database_url)
    (record,) = store.reservations.open()
    back = asdict(record) | {"nodes": json.dumps(record.nodes)}
    renamed = {"over_at": back.pop("closed_at"), "over_why": back.pop("closed_reason")}
    assert back | renamed == CLAIM
    (over,) = store.reservations.closed_since(0.0)
    assert (over.id, over.closed_at, over.closed_reason) == (2, 5.0, "lapsed")
    assert store.reservations.make(record).id == 5, "no id is used again"
    assert [gang.id for gang in store.open_state().gangs] == [3], "the job under way goes on"
    store.close()
    migrate(old, "0013", command.downgrade)
    with old.read() as connection:
        rows = connection.execute(text("SELECT * FROM claims ORDER BY id")).mappings().all()
        assert [dict(row) for row in rows] == [lapsed, CLAIM, CLAIM | {"id": 5}]
    store = Store.open(database_url)
    assert [one.id for one in store.reservations.open()] == [4, 5]
    store.close()


def test_leases_become_two_halves_and_usage_counts_halves_and_back(old, database_url):
    migrate(old, "0019")
    with old.write() as connection:
        connection.execute(
            text(
                "INSERT INTO usage (owner, job_id, task_id, node, slots, gpus, began_at)"
                " VALUES ('ada', 7, 9, 'node-1', 1, 1, 2.0)"
            )
        )
    store = Store.open(database_url)
    (lease,) = store.open_state().leases
    assert (lease.node, lease.slot, lease.task_id) == ("node-1", 0, 9)
    light = store.place_server("bob", "", ("node-1", (halves(1)[0],)), until=9.0, shared_home=False, now=3.0)
    with pytest.raises(SlotTaken, match="slot 1 of node-1 is held by a notebook server of bob"):
        store.place_server("eve", "", ("node-1", (1,)), until=9.0, shared_home=False, now=3.0)
    use = UseRecord(0, "bob", None, light.id, None, "node-1", 0.5, 0.5, 3.0, None)
    store.usage.change([], [use], 3.0)
    assert {one.owner: one.slots for one in store.usage.since(0.0)} == {"ada": 1, "bob": 0.5}
    store.close()
    migrate(old, "0019", command.downgrade)
    with old.read() as connection:
        leases = connection.execute(text("SELECT node, slot, task_id FROM leases WHERE task_id = 9")).all()
    assert leases == [("node-1", 0, 9)]


def test_the_way_back_keeps_the_jobs_and_drops_the_servers(old, database_url):
    store = Store.open(database_url)
    store.place_server("bob", "", ("node-1", (1,)), until=9.0, shared_home=False, now=3.0)
    store.close()
    migrate(old, "0001", command.downgrade)
    with old.read() as connection:
        leases = connection.execute(text("SELECT node, slot, task_id, owner FROM leases")).all()
        gangs = connection.execute(text("SELECT id, owner FROM gangs")).all()
    assert (leases, gangs) == ([("node-1", 0, 9, "ada")], [(3, "ada")])
    store = Store.open(database_url)
    assert len(store.open_state().leases) == 1
    store.close()
