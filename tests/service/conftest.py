"""A store on each supported database, with a real PostgreSQL server."""

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
import pytest

from minicluster.wire import JobSpec, JobState, JobSubmit
from minicluster_hub.jobs.records import TaskState
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.store import Store

from .publishing.registries import running

THREE_NODES = (("node-1", (0,)), ("node-2", (0,)), ("node-3", (0,)))

WAYS = {
    JobState.QUEUED: [],
    JobState.STARTING: [JobEvent.ADMITTED],
    JobState.RUNNING: [JobEvent.ADMITTED, JobEvent.RANKS_STARTED],
    JobState.STOPPING: [JobEvent.ADMITTED, JobEvent.STOP_ASKED],
    JobState.FAILING: [JobEvent.ADMITTED, JobEvent.FAILURE_SEEN],
    JobState.REQUEUING: [JobEvent.ADMITTED, JobEvent.TASK_LOST],
    JobState.YIELDING: [JobEvent.ADMITTED, JobEvent.RANKS_STARTED, JobEvent.PREEMPTED],
    JobState.SUCCEEDED: [JobEvent.ADMITTED, JobEvent.RANKS_SUCCEEDED],
    JobState.FAILED: [JobEvent.FAILURE_SEEN],
    JobState.STOPPED: [JobEvent.STOP_ASKED],
}
"""The shortest path to each state."""


class PostgresServer:
    """A PostgreSQL server with a private folder and a Unix socket; a port only if `listen` is given."""

    def __init__(self, binaries, folder, account, listen=""):
        self.folder = folder
        self._account = account
        data = folder / "data"
        init = [binaries / "initdb", "-D", data, "-A", "trust", "-U", "minicluster", "--no-sync"]
        subprocess.run([*self._as_account(), *init], check=True, capture_output=True, cwd=folder)
        if listen:
            with (data / "pg_hba.conf").open("a") as policy_manager:
                policy_manager.write("host all all 10.64.0.0/10 trust\n")
        settings = ["-c", f"listen_addresses={listen}", "-c", "fsync=off", "-c", "max_connections=60"]
        self._serve = [*self._as_account(), binaries / "postgres", "-D", data, "-k", folder, *settings]
        self.start()

    def start(self):
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._serve, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )
        self._wait()

    def connect(self):
        return psycopg.connect(host=str(self.folder), user="minicluster", dbname="postgres", autocommit=True)

    def url(self, database):
        return f"postgresql://minicluster@/{database}?host={self.folder}"

    def stop(self):
        self.process.terminate()
        self.process.wait(20)

    def kill(self):
        """Kill the server and all its sessions at once, as the kernel does if memory is short."""
        server = psutil.Process(self.process.pid)
        victims = [server, *server.children(recursive=True)]
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.kill()
        self.process.wait(20)
        psutil.wait_procs(victims, 20)

    def _as_account(self):
        """Run as another user, since PostgreSQL refuses root; setpriv adds no process in between."""
        if self._account is None:
            return []
        return ["setpriv", f"--reuid={self._account}", f"--regid={self._account}", "--clear-groups", "--"]

    def _wait(self):
        end = time.monotonic() + 30
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > end:
                    self.process.kill()
                    raise AssertionError((self.folder / "server.log").read_text()) from None
                time.sleep(0.05)


def _lacking(reason):
    """Skip a test that this machine cannot run; on CI, fail."""
    if os.environ.get("CI"):
        pytest.fail(f"{reason} (required where CI is set)")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres_server():
    with a_postgres() as server:
        yield server


@contextmanager
def a_postgres(listen=""):
    """Run a PostgreSQL server. listen: a further address, for clients in the lab's networks."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    binaries = Path(on_path).parent if on_path else found[-1].parent if found else None
    if binaries is None:
        _lacking("PostgreSQL's programs are not installed (Debian: postgresql)")
    account = "postgres" if os.getuid() == 0 else None
    if account and account not in {entry.pw_name for entry in pwd.getpwall()}:
        _lacking("PostgreSQL does not run as root, and there is no user postgres")
    folder = Path(tempfile.mkdtemp(prefix="mc-pg-"))
    try:
        if account:
            shutil.chown(folder, account)
        server = PostgresServer(binaries, folder, account, listen)
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def a_database(server, template="template1"):
    """Create a database as a copy of another one."""
    name = f"test_{uuid4().hex}"
    with server.connect() as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield server.url(name)
    with server.connect() as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def postgres_url(postgres_server):
    """A fresh, empty database."""
    with a_database(postgres_server) as url:
        yield url


@pytest.fixture(scope="session")
def postgres_tables(postgres_server):
    """The name of a database with the service's tables, made once and copied by others."""
    with postgres_server.connect() as connection:
        connection.execute("CREATE DATABASE tables")
    Store.open(postgres_server.url("tables")).close()
    return "tables"


@pytest.fixture(scope="session")
def sqlite_tables(tmp_path_factory):
    """The file of an SQLite database with the service's tables, made once and copied by others."""
    path = tmp_path_factory.mktemp("tables") / "minicluster.sqlite"
    Store.open(f"sqlite:///{path}").close()
    return path


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request, tmp_path):
    """A new database: empty, or with tables if the test also requests `store`."""
    has_tables = "store" in request.fixturenames
    if request.param == "sqlite":
        path = tmp_path / "service" / "minicluster.sqlite"
        if has_tables:
            path.parent.mkdir()
            shutil.copy(request.getfixturevalue("sqlite_tables"), path)
        yield f"sqlite:///{path}"
    elif has_tables:
        server = request.getfixturevalue("postgres_server")
        with a_database(server, request.getfixturevalue("postgres_tables")) as url:
            yield url
    else:
        yield request.getfixturevalue("postgres_url")


@pytest.fixture
def store(database_url):
    """A store; at the end of the test, its rows must be consistent."""
    opened = Store.open(database_url)
    yield opened
    check_invariants(opened.open_state())
    opened.close()


def check_invariants(stored):
    tasks = {task.id: task for task in stored.tasks}
    jobs = {job.id: job for job in stored.jobs}
    held = {(lease.node, lease.slot): (lease.task_id, lease.server_id) for lease in stored.leases}
    wanted = {
        (task.node, slot): (task.id, None)
        for task in stored.tasks
        if task.state is not TaskState.ENDED
        for slot in task.slots
    }
    wanted |= {(server.node, slot): (None, server.id) for server in stored.servers for slot in server.slots}
    assert held == wanted, "leases and the slots of living tasks and of placed servers differ"
    for gang in stored.gangs:
        assert gang.job_id is None or jobs[gang.job_id].gang_id == gang.id, f"{gang} holds on to no open job"
        assert (gang.job_id is None) == (gang.idle_since is not None), f"{gang} is neither bound nor warm"
    for lease in stored.leases:
        if lease.task_id is None:
            assert (lease.job_id, lease.warm) == (None, False), f"{lease} is a server's and yet of a job"
            continue
        gang = next(gang for gang in stored.gangs if gang.id == tasks[lease.task_id].gang_id)
        assert (lease.job_id, lease.warm) == (gang.job_id, gang.job_id is None), f"{lease} is not as {gang}"
    for job in stored.jobs:
        ranks = [rank for rank in stored.ranks if rank.attempt_id == job.attempt_id]
        # There may be more ranks: those of lost tasks count, too.
        assert len(ranks) >= (job.world_size or 0), f"{job} has {len(ranks)} ranks"
        assert job.state is JobState.QUEUED or ranks, f"{job} is under way without ranks"


class Given:
    """Helpers for the initial states of store tests."""

    def __init__(self, store):
        self.store = store

    def job(self, key="key-0001", owner="ada", now=1.0, **spec):
        request = JobSubmit(idempotency_key=key, spec=JobSpec(payload_sha256="a" * 64, **spec))
        return self.store.submit(owner, request, now)[0]

    def job_in(self, state):
        job = self.job()
        for number, way in enumerate(WAYS[state], start=2):
            if way is JobEvent.ADMITTED:
                self.store.admit(job.id, THREE_NODES, float(number))
            else:
                self.store.apply(job.id, way, float(number))
        return self.store.job(job.id)

    def admitted(self, key="key-0001", owner="ada", places=THREE_NODES, **spec):
        """Return an admitted job, its gang's id and its tasks."""
        job = self.job(key, owner, **spec)
        gang_id = self.store.admit(job.id, places, 2.0)
        tasks = [task for task in self.store.open_state().tasks if task.gang_id == gang_id]
        return self.store.job(job.id), gang_id, tasks

    def check_invariants(self, stored):
        check_invariants(stored)

    def in_threads(self, count, call):
        """Call with 0..count-1 at the same time, each in its own thread; return the results."""
        barrier = threading.Barrier(count)

        def go(number):
            barrier.wait()
            return call(number)

        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(go, range(count)))


@pytest.fixture
def given(store):
    return Given(store)


@pytest.fixture
def sqlite(tmp_path, sqlite_tables):
    path = shutil.copy(sqlite_tables, tmp_path / "service.sqlite")
    store = Store.open(f"sqlite:///{path}")
    yield store
    store.close()


@pytest.fixture(scope="module")
def registry(tmp_path_factory, needs):
    """An image registry like the cluster's own."""
    with running(tmp_path_factory.mktemp("registry") / "own", needs) as made:
        yield made
