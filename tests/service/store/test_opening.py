"""Opening a database: created, migrated, reused, or refused with one sentence."""

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from minicluster_hub.store import Store, StoreBroken, StoreUnavailable
from minicluster_hub.store.database import open_database
from minicluster_hub.store.schema import HEAD
from minicluster_hub.store.tables.main import METADATA

from ... import messages

CUT_CONNECTIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'test_%'"


def refusal(url):
    """Return the message with which opening is refused."""
    with pytest.raises(StoreBroken) as caught:
        Store.open(url)
    message = str(caught.value)
    assert "\n" not in message
    return message


def run_python(code, *arguments, prefix=()):
    return subprocess.run([*prefix, sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_the_migrations_make_exactly_the_tables_of_the_code(database_url):
    Store.open(database_url).close()
    database = open_database(database_url)
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, METADATA)
    database.close()
    assert differences == []


def test_ids_are_never_used_again(tmp_path):
    """An agent of an old task must not find another task under its id."""
    path = tmp_path / "minicluster.sqlite"
    Store.open(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as connection:
        tables = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    numbered = {"jobs", "gangs", "attempts", "tasks", "events", "servers"}
    numbered |= {"policies", "usage", "allowances", "reservations", "notices", "sweeps"}
    numbered |= {"models", "model_events"}
    assert {name for name, sql in tables.items() if "AUTOINCREMENT" in sql} == numbered


def test_the_newest_migration_is_the_one_that_opening_expects():
    config = Config()
    config.set_main_option("script_location", "minicluster_hub.store:migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_a_database_is_gone_on_with(database_url, store, given):
    job = given.admitted()[0]
    again = Store.open(database_url)
    assert again.job(job.id) == job
    assert again.open_state() == store.open_state()
    again.close()


def test_a_database_that_is_up_to_date_is_opened_without_alembic(database_url, store):
    code = (
        "import sys; from minicluster_hub.store import Store; Store.open(sys.argv[1]).ping();"
        "print('alembic' in sys.modules)"
    )
    done = run_python(code, database_url)
    assert (done.stdout.strip(), done.stderr) == ("False", "")


def test_several_services_may_make_the_same_database_at_once(database_url):
    code = "import sys; from minicluster_hub.store import Store; Store.open(sys.argv[1]).ping()"
    children = [subprocess.Popen([sys.executable, "-c", code, database_url]) for _ in range(3)]
    assert [child.wait(60) for child in children] == [0, 0, 0]


def test_a_new_file_is_opened_by_several_at_the_same_moment(tmp_path):
    """If two set a new file's journal mode at once, SQLite refuses one of them without waiting."""
    code = """
import multiprocessing, sys
from minicluster_hub.store.database import open_database

def opens(url, together, failed):
    together.wait()
    try:
        with open_database(url).write():
            pass
    except Exception as error:
        failed.put(repr(error))

fork = multiprocessing.get_context("fork")
failed = fork.SimpleQueue()
for number in range(60):
    together = fork.Barrier(4)
    url = f"sqlite:///{sys.argv[1]}/{number}.sqlite"
    children = [fork.Process(target=opens, args=(url, together, failed)) for _ in range(4)]
    [child.start() for child in children]
    [child.join() for child in children]
assert failed.empty(), failed.get()
"""
    assert run_python(code, str(tmp_path)).stderr == ""


def test_what_was_answered_survives_kill_9(tmp_path):
    code = """
import sys
from minicluster.wire import JobSpec, JobSubmit
from minicluster_hub.store import Store
store = Store.open(sys.argv[1])
for number in range(10_000):
    request = JobSubmit(idempotency_key=f"key-{number:05}", spec=JobSpec(payload_sha256="a" * 64))
    print(store.submit("ada", request, 1.0)[0].id, flush=True)
"""
    url = f"sqlite:///{tmp_path}/minicluster.sqlite"
    child = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
    numbers = [int(child.stdout.readline()) for _ in range(40)]
    child.send_signal(signal.SIGKILL)
    numbers += [int(line) for line in child.stdout.read().split("\n")[:-1]]
    child.wait(10)
    store = Store.open(url)
    kept = {job.id for job in store.jobs("ada", limit=10_000)}
    store.close()
    assert set(numbers) <= kept
    assert len(kept) <= len(numbers) + 1


def test_only_the_services_user_can_read_the_file(tmp_path):
    Store.open(f"sqlite:///{tmp_path}/service/minicluster.sqlite").close()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "service").iterdir()}
    assert modes == {"minicluster.sqlite": 0o600}
    assert stat.S_IMODE((tmp_path / "service").stat().st_mode) == 0o700


def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(database_url):
    Store.open(database_url).close()
    database = open_database(database_url)
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    message = refusal(database_url)
    with database.read() as connection:
        kept = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    database.close()
    assert kept == "9999"
    assert "newer" in message and f"revision 9999, this one knows {HEAD}" in message


def test_tables_of_another_program_are_not_touched(database_url):
    database = open_database(database_url)
    with database.write() as connection:
        connection.execute(text("CREATE TABLE jobs (id INTEGER)"))
    database.close()
    assert "tables of another program" in refusal(database_url)


def test_a_file_that_is_not_sqlite_is_refused_and_left_as_it_is(tmp_path):
    path = tmp_path / "minicluster.sqlite"
    path.write_text("a letter to a friend, long enough to be no empty database" * 20)
    before = path.read_bytes()
    message = refusal(f"sqlite:///{path}")
    assert f"{path} is not a sound SQLite database" in message
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "service").write_text("a file where a folder should be")
    path = tmp_path / "service" / "minicluster.sqlite"
    message = refusal(f"sqlite:///{path}")
    assert f"the database {path} cannot be written" in message
    assert "another data folder" in message


def test_a_folder_without_permission_is_named(tmp_path):
    code = """
import sys
from minicluster_hub.store import Store, StoreBroken
try:
    Store.open(sys.argv[1])
except StoreBroken as error:
    print(error)
"""
    folder = tmp_path / "service"
    folder.mkdir(mode=0o500)
    prefix = ()
    if os.getuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("root may write everywhere, and there is no setpriv to be someone else")
        prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
        if run_python("import minicluster_hub.store", prefix=prefix).returncode:
            pytest.skip("root may write everywhere, and this checkout is in a folder that nobody else reads")
    done = run_python(code, f"sqlite:///{folder}/minicluster.sqlite", prefix=prefix)
    assert f"{folder}/minicluster.sqlite" in done.stdout
    assert "cannot be written (Permission denied)" in done.stdout


@pytest.mark.parametrize("url", ["not an url", "mysql://localhost/minicluster", "postgresql+asyncpg+x:y"])
def test_an_url_of_nothing_we_know_is_answered_with_the_right_ones(url):
    message = refusal(url)
    assert "sqlite:////path" in message and "postgresql://user:password@host" in message


def test_a_server_that_is_not_there_is_told_without_the_password(tmp_path):
    message = refusal(f"postgresql://ada:secret@/minicluster?host={tmp_path}")
    assert f"{messages.CHECK_ITS_URL}, and that its server runs" in message
    assert "secret" not in message


def test_a_cut_connection_is_made_again(postgres_server, postgres_url):
    store = Store.open(postgres_url)
    with postgres_server.connect() as connection:
        connection.execute(CUT_CONNECTIONS)
    store.ping()
    assert store.jobs(None) == []
    store.close()


def test_a_database_that_does_not_answer_is_told_as_unavailable(postgres_server, postgres_url):
    store = Store.open(postgres_url)
    name = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    with postgres_server.connect() as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.execute(CUT_CONNECTIONS)
    with pytest.raises(StoreUnavailable, match=name):
        store.ping()
    with pytest.raises(StoreUnavailable, match=name):
        store.task_ended(1, 1.0)
    store.close()


def test_a_broken_file_is_told_as_unavailable_while_the_service_runs(tmp_path):
    path = tmp_path / "minicluster.sqlite"
    store = Store.open(f"sqlite:///{path}")
    store.close()
    path.write_bytes(b"\x00" * 8192)
    with pytest.raises(StoreUnavailable, match=str(path)):
        store.open_state()
    store.close()
