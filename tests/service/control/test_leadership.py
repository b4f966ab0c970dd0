"""Leadership on a real PostgreSQL: one leader at a time, and former leaders cannot write."""

import threading

import psycopg
import pytest
from sqlalchemy import text

from minicluster.wire import JobSpec, JobSubmit
from minicluster_hub.store import NotLeading, Store, StoreUnavailable

from ...patience import WITHIN_S, until

LEASE_S = 0.3
END_SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() AND datname = current_database()"
)


class Competitor:
    """A service's store and its leadership."""

    def __init__(self, url, name):
        self.store = Store.open(url)
        self.leadership = self.store.compete(f"http://{name}/", LEASE_S)

    def submit(self, key):
        request = JobSubmit(idempotency_key=key, spec=JobSpec(payload_sha256="a" * 64))
        return self.store.submit("ada", request, 1.0)[0]

    def close(self):
        self.leadership.close()
        self.store.close()


@pytest.fixture
def pair(postgres_url):
    both = [Competitor(postgres_url, name) for name in ("one", "two")]
    yield both
    for competitor in both:
        competitor.close()


@pytest.fixture
def database(postgres_url):
    """A separate connection to the same database."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


def test_one_leads_and_the_other_sees_who(pair):
    one, two = pair
    one.leadership.lease_s = two.leadership.lease_s = WITHIN_S
    assert one.leadership.take()
    assert not two.leadership.take()
    claim = two.leadership.read()
    assert claim.holder == "http://one/"
    one.leadership.renew()
    assert one.leadership.take(), "who leads already goes on to"


def test_only_the_leader_writes_and_everyone_reads(pair):
    one, two = pair
    with pytest.raises(NotLeading):
        one.submit("key-0001")
    one.leadership.take()
    job = one.submit("key-0001")
    with pytest.raises(NotLeading):
        two.submit("key-0002")
    assert two.store.job(job.id) == job
    assert two.store.job_of_key("ada", "key-0002") is None


def test_who_lets_go_is_followed_at_once_with_a_higher_epoch(pair):
    one, two = pair
    one.leadership.take()
    first = one.leadership.epoch
    one.leadership.close()
    assert two.leadership.take()
    assert two.leadership.epoch == first + 1


def test_a_frozen_leader_is_followed_when_its_lease_is_over_and_fenced_off(pair, database):
    one, two = pair
    one.leadership.take()
    assert not two.leadership.take()
    until_taken(two)
    with pytest.raises(NotLeading):
        one.submit("key-0001")
    with pytest.raises(StoreUnavailable):
        one.leadership.renew()  # its session was ended
    with pytest.raises(NotLeading):
        one.leadership.renew()
    assert not one.leadership.take()
    two.submit("key-0001")


def test_a_leader_that_froze_in_the_middle_of_a_write_holds_nobody_off(pair, database):
    one, two = pair
    one.leadership.take()
    began, thaw = threading.Event(), threading.Event()
    lost = []

    def write():
        try:
            with one.store._database.write():
                began.set()
                thaw.wait()
        except StoreUnavailable as error:
            lost.append(error)

    frozen = threading.Thread(target=write, daemon=True)
    frozen.start()
    began.wait()
    until_taken(two)
    thaw.set()
    frozen.join()
    assert lost, "the write of the former leader was kept"
    two.submit("key-0001")


def test_a_takeover_waits_for_a_write_that_is_under_way(pair, database, monkeypatch):
    """Otherwise a stale write would follow the new leader's first read."""
    # A long write is ended (tested above); here, a busy machine must not make it long.
    monkeypatch.setattr("minicluster_hub.store.leadership._END_WRITERS", text("SELECT 1"))
    one, two = pair
    one.leadership.take()
    began, go_on = threading.Event(), threading.Event()

    def write():
        with one.store._database.write() as connection:
            began.set()
            go_on.wait()
            connection.execute(text("INSERT INTO homes (owner, node) VALUES ('ada', 'node-1')"))

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    began.wait()
    one.leadership.close()  # as when its way to the database is cut for this session only
    taking = threading.Thread(target=until_taken, args=[two])
    taking.start()
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while not database.execute(waiting).fetchone()[0]:
        assert taking.is_alive()
    go_on.set()
    for thread in (writing, taking):
        thread.join()
    assert two.store.homes() == {"ada": "node-1"}
    two.submit("key-0001")


def test_a_leader_goes_on_through_a_restart_of_the_database(pair, database):
    one, _ = pair
    one.leadership.take()
    epoch = one.leadership.epoch
    database.execute(END_SESSIONS)
    with pytest.raises(StoreUnavailable):
        one.leadership.renew()
    one.leadership.renew()
    assert one.leadership.epoch == epoch
    one.submit("key-0001")


def test_of_many_at_once_one_leads(postgres_url, given_threads=8):
    competitors = [Competitor(postgres_url, str(number)) for number in range(given_threads)]
    for competitor in competitors:
        competitor.leadership.lease_s = WITHIN_S
    barrier, taken = threading.Barrier(given_threads), []

    def go(competitor):
        barrier.wait()
        taken.append(competitor.leadership.take())

    threads = [threading.Thread(target=go, args=[competitor]) for competitor in competitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [False] * (given_threads - 1) + [True]
    for competitor in competitors:
        competitor.close()


def test_the_only_service_on_sqlite_competes_with_nobody(sqlite):
    assert sqlite.compete("http://one/") is None


def until_taken(competitor):
    until(lambda: taken(competitor))


def taken(competitor):
    try:
        return competitor.leadership.take()
    except StoreUnavailable:
        return False
