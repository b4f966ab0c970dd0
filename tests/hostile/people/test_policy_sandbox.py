"""A custom policy that attacks, and attempts to install one over the network."""

import asyncio
import os
import socket
import time

import pytest

from minicluster.wire import JobState, PolicyChoice, RankReport, RankState
from minicluster_hub.jobs.orders import TaskEnded
from minicluster_hub.jobs.states import JobEvent
from minicluster_hub.policy.active_policy import BUILT_IN
from minicluster_hub.policy.sandbox import ContainerSandbox, SandboxUnavailable

from ... import messages
from ...patience import WITHIN_S
from ...service.machines import Machines, play, play_one, send_report, service, submit, until
from ...service.policy.sandboxes import custom_policies
from ...service.policy.test_active_policy import TURNS_BAD

OURS = PolicyChoice(policy="ours")
BUSY = """while True:
            try:
                while True: pass
            except BaseException: pass"""
OVER_ITS_LINK = (
    "import socket, struct; link = [fd for fd in os.listdir('/proc/self/fd') if 'socket' in "
    "os.path.realpath('/proc/self/fd/' + fd)]; [os.write(int(fd), struct.pack('!I', {said}) + {data}) "
    "for fd in link]; return rest(snapshot)"
)
OTHER_ANSWER = 'b\'{{"number": 1, "grants": [[1, 1]], "again_at": null, "in_turn": true, "kept": []}}\''
RAISES = {
    "reads the service's environment": (
        "print(open(f'/proc/{{os.getppid()}}/environ').read())",
        "a policy may read its own folder",
    ),
    "reads a secret's file": ("print(open('{secret}').read())", "a policy may read its own folder"),
    "calls home": ("import socket; socket.create_connection(('127.0.0.1', {port}))", "no network"),
    "listens": ("import socket; socket.create_server(('127.0.0.1', 0))", "no network"),
    "forks": ("os.fork()", messages.MAY_START_NO_PROCESS),
    "starts a program": ("os.system('true > {made}')", messages.MAY_START_NO_PROCESS),
    "kills the service": ("os.kill(os.getppid(), 9)", messages.MAY_START_NO_PROCESS),
    "eats memory": ("bytearray(3 << 30)", "MemoryError"),
    "sleeps for ever": ("import time; time.sleep(1e9)", messages.TOOK_LONGER.format(limit=1)),
    "is busy for ever": (BUSY, messages.TOOK_LONGER.format(limit=1)),
    "writes a file": ("open('{made}', 'w')", "may change no file"),
    "opens a file to write, one level lower": ("os.open('{made}', os.O_CREAT | os.O_RDWR)", "may change no"),
    "removes a file": ("os.remove('{secret}')", "may change no file"),
    "removes a folder": ("import shutil; shutil.rmtree('{folder}')", "may change no file"),
    "returns rubbish": ("return {{'grants': 'all'}}", messages.WHICH_IS_NO_PLAN),
    "returns endless grants": ("return Plan([Grant(1, 1)] * 10**6)", messages.PLANNED_TWICE.format(job=1)),
    "keeps numbers that are none": ("return Plan((), again_at=10**400)", ""),
    "says that gigabytes follow": (
        OVER_ITS_LINK.format(said="4 << 28", data="b''"),
        messages.ANSWER_IS_NO_PLAN,
    ),
    "says what is nested without end": (
        OVER_ITS_LINK.format(said="10**5", data="b'[' * 10**5"),
        messages.ANSWER_IS_NO_PLAN,
    ),
    "answers a question that was not asked": (
        OVER_ITS_LINK.format(said=f"len({OTHER_ANSWER})", data=OTHER_ANSWER),
        messages.ANSWER_IS_NO_PLAN,
    ),
    "ends its process": ("os._exit(0)", messages.PROCESS_ENDED),
}


@pytest.fixture(autouse=True)
def plan_within(monkeypatch):
    """Give policies a long time limit, since this machine may be busy; return a function that changes it."""

    def limit(seconds):
        monkeypatch.setattr("minicluster_hub.policy.custom_policy.PLAN_S", seconds)

    limit(WITHIN_S)
    return limit


@pytest.fixture(params=["process", "server"])
def own(request, tmp_path):
    """Write a policy into the folder; return the service's policies, for each kind of sandbox."""
    with custom_policies(request.param, tmp_path / "policies") as policies:

        def put(does, **names):
            text = TURNS_BAD.replace("{does}", does.format(**names) if names else does)
            (policies.folder / "ours.py").write_text(text)
            return policies

        yield put


@pytest.fixture
def witness():
    """A server on this machine that records connections."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


def was_called(listening):
    try:
        listening.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("does", RAISES)
async def test_a_policy_that_attacks_is_taken_back_and_the_jobs_run(
    sqlite, own, witness, tmp_path, monkeypatch, caplog, plan_within, does
):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "the service's own word")
    secret, made = tmp_path / "cookie_secret", tmp_path / "made"
    secret.write_text("the cookies' own word")
    line, message = RAISES[does]
    names = {"secret": secret, "made": made, "folder": tmp_path, "port": witness.getsockname()[1]}
    machines = Machines()
    caplog.set_level("INFO")
    async with service(sqlite, machines, own=own(line, **names)) as reconciler:
        await reconciler.choose_policy(OURS, "root")
        if "longer than 1 s" in message:
            plan_within(1.0)
        report = await play_one(sqlite, reconciler, machines)
    assert report.in_force.choice == BUILT_IN
    assert report.trouble.startswith(f"ours {messages.TAKEN_BACK}") and message in report.trouble
    assert len(report.trouble) < 3000
    assert secret.exists() and not made.exists() and not was_called(witness)
    assert "own word" not in caplog.text + report.trouble


async def test_a_policy_finds_no_token_in_its_environment(sqlite, own, monkeypatch, caplog):
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", "the service's own word")
    caplog.set_level("INFO")
    async with service(sqlite, Machines(), own=own("pass")) as reconciler:
        (reconciler.policy_manager.custom.folder / "ours.py").write_text(
            f"import os\nprint('it has', sorted(os.environ.items()))\n{TURNS_BAD.replace('{does}', 'pass')}"
        )
        await reconciler.choose_policy(OURS, "root")
    assert "it has" in caplog.text and "PYTHONPATH" in caplog.text
    assert "own word" not in caplog.text and "TOKEN" not in caplog.text


async def test_what_a_policy_prints_fills_no_log(sqlite, own, caplog, capfd):
    caplog.set_level("INFO")
    prints = "print('here' * 10**6); os.write(1, b'here' * 10**6); os.write(2, b'here' * 10**6)"
    policies = own("pass")
    text = TURNS_BAD.replace("{does}", "pass")
    (policies.folder / "ours.py").write_text(
        text.replace("def rest(snapshot):", f"def rest(snapshot):\n    {prints}")
    )
    async with service(sqlite, Machines(), own=policies) as reconciler:
        await reconciler.choose_policy(OURS, "root")
        assert reconciler.policy_manager.active.choice == OURS
    assert "here" in caplog.text and len(caplog.text) < 200_000
    assert len(capfd.readouterr().out) < 200_000


async def test_code_that_goes_round_python_has_no_network_either(sqlite, own, witness, needs):
    """The Linux kernel blocks it, not the hook, where unprivileged network namespaces are allowed."""
    needs(_may_unshare(), "user namespaces, which this kernel forbids")
    calls = (
        "import ctypes, struct; libc = ctypes.CDLL(None); fd = libc.socket(2, 1, 0); "
        "address = struct.pack('!4s8x', bytes((127, 0, 0, 1))); "
        "libc.connect(fd, struct.pack('=H', 2) + struct.pack('!H', {port}) + address, 16)"
    )
    machines = Machines()
    async with service(sqlite, machines, own=own(calls, port=witness.getsockname()[1])) as reconciler:
        await reconciler.choose_policy(OURS, "root")
        await play_one(sqlite, reconciler, machines)
    assert not was_called(witness)


def _may_unshare():
    return os.system("unshare --user --net true 2> /dev/null") == 0


@pytest.mark.parametrize("does", ["import time; time.sleep(0.9)", BUSY], ids=["thinks", "is killed"])
async def test_a_loss_is_noticed_while_a_policy_thinks_as_soon_as_under_a_built_in_one(
    sqlite, own, plan_within, does
):
    """Other load only makes times longer, so the test compares minima."""
    policies, usual_s, slow_s = own(does), [], []
    while not slow_s or min(slow_s) >= 2 * min(usual_s):
        assert len(slow_s) < 5, (usual_s, slow_s)
        for times, choice in ((usual_s, BUILT_IN), (slow_s, OURS)):
            key = f"key-{choice.policy}-{len(times)}"
            times.append(await noticed_s(sqlite, policies, choice, key, plan_within))


async def test_a_loss_is_noticed_while_a_policy_loads(sqlite, own):
    machines, policies = Machines(), own("pass")
    async with service(sqlite, machines, own=policies) as reconciler:
        await reconciler.choose_policy(OURS, "root")
        job = submit(sqlite, nodes=2)
        reconciler.wake()
        await runs(sqlite, reconciler, job)
    (policies.folder / "ours.py").write_text("import time; time.sleep(9)\n")
    async with service(sqlite, machines, own=policies, heartbeat_timeout_s=0.3) as again:
        for task in sqlite.open_state().tasks:
            again.heartbeat(task.id)
        again.wake()
        assert await until(again, lambda: sqlite.job(job).state is not JobState.RUNNING)
        assert not again.policy_manager.loaded
        again.apply_event(job, JobEvent.STOP_ASKED)
        await play(sqlite, again, machines, job)


async def noticed_s(store, own, choice, key, plan_within):
    """Return the seconds until a silent agent counts as lost while another job waits for its plan."""
    machines = Machines()
    async with service(store, machines, own=own, heartbeat_timeout_s=0.3) as reconciler:
        plan_within(WITHIN_S)
        await reconciler.choose_policy(choice, "root")
        plan_within(1.0)
        job = submit(store, "bob", 2, f"{key}-runs")
        reconciler.wake()
        await runs(store, reconciler, job)
        waits = submit(store, "ada", 3, f"{key}-waits")
        for task in store.open_state().tasks:
            reconciler.heartbeat(task.id)
        began = time.monotonic()
        reconciler.wake()
        assert await until(reconciler, lambda: store.job(job).state is not JobState.RUNNING)
        took_s = time.monotonic() - began
        for one in (job, waits):
            reconciler.apply_event(one, JobEvent.STOP_ASKED)
            await play(store, reconciler, machines, one)
    return took_s


async def runs(store, reconciler, job):
    """Simulate the agents until a job's ranks have started."""
    while store.job(job).state is not JobState.RUNNING:
        for task in store.open_state().tasks:
            with_run = _orders(reconciler, task)
            ranks = (
                () if with_run is None else (RankReport(rank=with_run.first_rank, state=RankState.STARTED),)
            )
            more = {} if with_run is None else {"attempt": with_run.attempt, "ranks": ranks}
            send_report(store, reconciler, task, store_port=4000 + task.id, **more)
        await asyncio.sleep(0.005)


def _orders(reconciler, task):
    try:
        return reconciler.status_cache.orders(task).run
    except (TaskEnded, KeyError):
        return None


SOURCE = "open('{made}', 'w').close()\n"


async def test_no_request_brings_code(api, tmp_path):
    made = tmp_path / "made"
    choice = {"policy": "ours", "source": SOURCE.format(made=made)}
    answer = await api.ask("PUT", "api/policy", "root-token", json=choice)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unknown_field")
    assert "source" in answer.json()["error"]["message"] and not made.exists()


@pytest.mark.parametrize(
    "name", ["../planted", "{folder}/planted", "planted\x00", "a/../../planted", "planted.py"]
)
async def test_no_request_names_a_file_elsewhere(api, tmp_path, name):
    made = tmp_path / "made"
    (tmp_path / "policies" / "a").mkdir(parents=True)
    (tmp_path / "planted.py").write_text(SOURCE.format(made=made))
    choice = {"policy": name.format(folder=tmp_path)[-64:]}
    answer = await api.ask("PUT", "api/policy", "root-token", json=choice)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unknown_name"), answer.text
    assert not made.exists()


def test_a_link_in_the_place_of_the_policies_socket_leads_nowhere(tmp_path):
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(tmp_path / "docker.sock"))
        engine.listen()
        engine.setblocking(False)
        (tmp_path / "socket").symlink_to(tmp_path / "docker.sock")
        with pytest.raises(SandboxUnavailable):
            ContainerSandbox(tmp_path / "socket").connect()
        assert not was_called(engine)
