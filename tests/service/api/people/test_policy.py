"""The policy over the API: all users see it, administrators choose it, bad ones are refused with a reason."""

import asyncio
import os
import sys

import psutil
import pytest

from minicluster.wire import PolicyReport
from minicluster_hub.app import MiniclusterHub
from minicluster_hub.policy.active_policy import BUILT_IN

from .... import messages
from ....patience import WITHIN_S, eventually
from ....processes import runs
from ..client import PREFIX
from .test_entitlements import reason

OURS = """
from minicluster_hub.scheduling.base import Grant, Plan

def plan(snapshot):
    return Plan(tuple(Grant(job.job_id, job.replicas or job.min_replicas) for job in snapshot.jobs))
"""

AT_NIGHT = '''
"""Large gangs start at night.

More of that.
"""
from dataclasses import dataclass
from minicluster_hub.scheduling.base import Grant, Plan

@dataclass
class Policy:
    large_slots: int = 4
    from_h: float = -2.5
    names: tuple = ()

    def plan(self, snapshot):
        return Plan(tuple(Grant(job.job_id, job.replicas or job.min_replicas) for job in snapshot.jobs))
'''


async def report(api, token="ada-token"):
    answer = await api.ask("GET", "api/policy", token)
    assert answer.status_code == 200, answer.text
    return PolicyReport.model_validate_json(answer.content)


async def choose(api, token="root-token", **choice):
    return await api.ask("PUT", "api/policy", token, json=choice)


@pytest.fixture
def ours(tmp_path):
    """Write a custom policy into the folder of policies."""

    def put(source=OURS, name="ours"):
        (tmp_path / "policies").mkdir(exist_ok=True)
        (tmp_path / "policies" / f"{name}.py").write_text(source)

    return put


async def test_what_there_is_to_choose_is_told_with_its_options(api):
    current = await report(api)
    assert current.in_force.choice.policy == "backfill" and current.in_force.by == ""
    offered = {policy.name: policy for policy in current.policies}
    assert {"fifo", "backfill", "fair_share", "elastic_fifo", "srtf"} <= offered.keys()
    assert "quantum_s" in {option.name for option in offered["time_slice"].options}
    assert all(policy.summary for policy in (*current.policies, *current.placements))


async def test_who_may_choose_a_policy_may_nothing_else_of_an_admin(api):
    theirs = await api.submit("bob", nodes=5)
    chosen = await choose(api, "policy-token", policy="fifo")
    assert chosen.status_code == 200 and chosen.json()["in_force"]["by"] == "ada"
    for method, path in (
        ("GET", "api/jobs?owner=all"),
        ("GET", "api/policy/what-if"),
        ("PUT", "api/quotas"),
        ("POST", "api/nodes/node-1/undrain"),
    ):
        answer = await api.ask(method, path, "policy-token")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "scope_missing"), path
    for method, path in (("GET", f"api/jobs/{theirs.id}"), ("POST", f"api/jobs/{theirs.id}/stop")):
        answer = await api.ask(method, path, "policy-token")
        assert answer.json()["error"]["code"] == "unknown_job", path


def test_the_settings_begin_with_what_is_built_in():
    settings = MiniclusterHub()
    assert (settings.policy, settings.placement) == (BUILT_IN.policy, BUILT_IN.placement)


async def test_a_short_job_passes_one_that_does_not_fit_yet_without_anybody_choosing_so(api):
    await api.running(nodes=2, timeout_s=3600)
    large, short = await api.submit(nodes=3), await api.submit(nodes=1, timeout_s=60)
    await api.agents(short.id)
    assert (await api.ask("GET", f"api/jobs/{large.id}")).json()["state"] == "queued"


async def test_an_admin_changes_it_and_everybody_sees_that(api):
    answer = await choose(api, policy="time_slice", placement="spread", options={"quantum_s": 60})
    assert answer.status_code == 200, answer.text
    current = await report(api)
    assert (current.in_force.choice.policy, current.in_force.choice.placement) == ("time_slice", "spread")
    assert (current.in_force.choice.options, current.in_force.by) == ({"quantum_s": 60}, "root")


async def test_users_change_nothing(api):
    answer = await choose(api, token="ada-token", policy="srtf")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "scope_missing")


async def test_files_of_the_lab_are_offered_with_what_they_say_of_themselves(api, ours):
    ours(OURS)
    ours(AT_NIGHT, "at_night")
    ours("def plan(", "broken")
    ours(OURS, "fifo")
    offered = {policy.name: policy for policy in (await report(api)).policies}
    assert offered["ours"].summary == "This lab's own policy." and offered["ours"].options == ()
    assert offered["at_night"].summary == "Large gangs start at night."
    options = {option.name: (option.kind, option.default) for option in offered["at_night"].options}
    assert options == {"large_slots": ("int", 4), "from_h": ("float", -2.5)}
    assert offered["broken"].summary.startswith("broken.py cannot be read: '(' was never closed")
    assert not offered["fifo"].summary.startswith("This lab's"), "the built-in ones keep their names"


async def test_a_file_that_is_gone_gives_way_and_says_so(start_api, ours, tmp_path):
    ours()
    async with start_api() as api:
        assert (await choose(api, policy="ours")).status_code == 200
    (tmp_path / "policies" / "ours.py").unlink()
    async with start_api() as api:
        job = await api.submit()
        assert await api.agents(job.id)
        current = await report(api)
        assert current.in_force.choice == BUILT_IN
        assert current.trouble.startswith(
            f"ours {messages.TAKEN_BACK}{messages.NO_SUCH_POLICY.format(name='ours')}"
        )
        assert "the folder of policies has no ours.py" in current.trouble


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        ({"policy": "lottery"}, "unknown_name"),
        ({"policy": "fifo", "options": {"speed": 1}}, "unknown_option"),
        ({"policy": "time_slice", "options": {"quantum_s": "soon"}}, "bad_option"),
        ({"policy": "ours"}, "unknown_name"),
        ({"policy": "fifo", "colour": "red"}, "unknown_field"),
        ({"policy": "ours", "source": "def plan(snapshot): ..."}, "unknown_field"),
    ],
)
async def test_what_is_wrong_is_told_and_changes_nothing(api, choice, code):
    answer = await choose(api, **choice)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, code)
    assert (await report(api)).in_force.choice == BUILT_IN


async def test_the_reasons_in_the_queue_change_with_it(api):
    assert (await choose(api, policy="fifo")).status_code == 200
    await api.submit(nodes=2, timeout_s=3600)
    large, small = await api.submit(nodes=3), await api.submit(nodes=1, timeout_s=60)

    async def waits(job):
        return (await api.ask("GET", f"api/jobs/{job.id}")).json()

    await reason(api, small, f"waits for job {large.id}, which is {messages.AHEAD_OF_IT}")
    assert (await choose(api, policy="backfill")).status_code == 200
    async with asyncio.timeout(WITHIN_S):
        while (await waits(small))["state"] == "queued":
            await asyncio.sleep(0.01)
    assert (await waits(large))["state"] == "queued"


def tried_out():
    """Return the processes of policies."""
    return [
        child for child in psutil.Process().children() if runs(child, "minicluster_hub.policy.sandbox_child")
    ]


async def test_others_are_answered_while_a_policy_is_tried_out(api, ours, tmp_path, monkeypatch):
    monkeypatch.setattr("minicluster_hub.policy.custom_policy.START_S", WITHIN_S)
    held = tmp_path / "held"
    held.touch()
    ours(f"import os, time\nwhile os.path.exists({str(held)!r}): time.sleep(0.01)\n{OURS}")
    admin, client = api.client("root-token"), api.client("ada-token")
    choice = {"policy": "ours"}
    choosing = asyncio.create_task(admin.put("api/policy", json=choice, timeout=60))
    await eventually(tried_out)
    for _ in range(20):
        assert (await client.get("api/jobs")).status_code == 200
    assert not choosing.done()
    held.unlink()
    assert (await choosing).status_code == 200, choosing.result().text
    assert (await report(api)).in_force.choice.policy == "ours"


async def test_a_policy_that_is_taken_back_says_why_to_everybody(api, ours):
    ours(
        OURS.replace("    return", "    assert all(job.owner != 'ada' for job in snapshot.jobs)\n    return")
    )
    assert (await choose(api, policy="ours")).status_code == 200
    job = await api.submit()
    assert await api.agents(job.id), "the policy before it goes on at once"
    current = await report(api, "bob-token")
    assert current.in_force.choice == BUILT_IN
    assert (
        current.trouble.startswith(f"ours {messages.TAKEN_BACK}AssertionError: ")
        and "line 5 in plan" in current.trouble
    )


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with two policies, one of which cannot be imported."""
    (tmp_path / "our_policies.py").write_text(
        "from dataclasses import dataclass\nfrom minicluster_hub.scheduling.base import Grant, Plan\n\n"
        "@dataclass\nclass Latest:\n    most: int = 9\n\n    def plan(self, snapshot):\n"
        "        running = [Grant(job.job_id, job.replicas) for job in snapshot.running]\n"
        "        last = sorted(snapshot.waiting, key=lambda job: -job.job_id)[: self.most]\n"
        "        return Plan((*running, *(Grant(job.job_id, job.min_replicas) for job in last)))\n"
    )
    about = tmp_path / "our_policies-1.2.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: our-policies\nVersion: 1.2\nSummary: Ours\n"
    )
    (about / "entry_points.txt").write_text(
        "[minicluster.policies]\nlatest = our_policies:Latest\nbroken = our_policies:Gone\n"
        "fifo = our_policies:Latest\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


async def test_policies_of_installed_packages_are_offered_and_run(package, api):
    offered = {policy.name: policy for policy in (await report(api)).policies}
    assert (offered["latest"].summary, offered["latest"].distribution) == ("Ours", "our-policies 1.2")
    assert offered["fifo"].distribution == "", "the built-in ones keep their names"
    first = await api.submit(nodes=3)
    await api.agents(first.id)
    second, third = await api.submit(nodes=3), await api.submit(nodes=3)
    answer = await choose(api, policy="latest", options={"most": 2})
    assert answer.status_code == 200, answer.text
    await api.ask("POST", f"api/jobs/{first.id}/stop")
    assert await api.agents(third.id)
    assert api.context.store.job(second.id).state == "queued"
    assert (await report(api)).in_force.choice.policy == "latest"


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"policy": "broken"}, "AttributeError: module 'our_policies' has no attribute 'Gone'"),
        ({"policy": "latest", "options": {"speed": 1}}, "unexpected keyword argument 'speed'"),
        ({"policy": "late"}, messages.NO_SUCH_POLICY.format(name="late")),
    ],
)
async def test_what_is_wrong_with_an_installed_one_is_told(package, api, choice, told):
    answer = await choose(api, **choice)
    assert answer.status_code == 422 and told in answer.json()["error"]["message"], answer.text
    assert "latest" in answer.json()["error"]["hint"] or answer.json()["error"]["code"] == "bad_policy"


async def command(api, *words, token="root-token", url=""):
    """Run `minicluster policy` as a process; return its exit code and output."""
    pipe = asyncio.subprocess.PIPE
    program = [sys.executable, "-P", "-m", "minicluster_hub.cluster", "policy"]
    where = ("--url", url or api.url.removesuffix(PREFIX))
    known = {**os.environ, "MINICLUSTER_TOKEN": token}
    ran = await asyncio.create_subprocess_exec(*program, *words, *where, env=known, stdout=pipe, stderr=pipe)
    printed, errors = await ran.communicate()
    return ran.returncode, (printed + errors).decode()


async def test_the_command_shows_the_policy_and_changes_it(api, ours):
    code, output = await command(api)
    assert code == 0 and output.startswith(
        "policy     backfill\nplacement  pack\nsince      the cluster's settings"
    )
    arguments = ("time_slice", "--placement", "spread", "--option", "quantum_s=60")
    code, output = await command(api, *arguments)
    assert code == 0 and output.startswith("policy     time_slice quantum_s=60\nplacement  spread\n"), output
    assert ", by root\n" in output
    ours()
    code, output = await command(api, "ours")
    assert code == 0 and output.startswith("policy     ours\nplacement  spread\n"), output
    assert (await report(api)).in_force.choice.policy == "ours"


async def test_the_command_says_what_is_wrong(api, ours):
    ours("def plan(", "bad")
    code, output = await command(api, "bad")
    assert (
        code == 1 and f"bad {messages.CANNOT_BE_ACTIVATED}SyntaxError" in output and "Traceback" not in output
    )
    code, output = await command(api, "fifo", token="ada-token")
    assert code == 1 and "custom:minicluster:policy" in output, output


async def test_hours_are_counted_and_each_sees_their_own(api):
    await api.submit()
    async with asyncio.timeout(WITHIN_S):
        while not (rows := (await api.ask("GET", "api/usage")).json()["rows"]):
            await asyncio.sleep(0.01)
    assert [row["owner"] for row in rows] == ["ada"] and rows[0]["jobs"] == 1 and rows[0]["slot_hours"] > 0
    assert (await api.ask("GET", "api/usage", "bob-token")).json()["rows"] == []
    table = await api.ask("GET", "api/usage.csv", "root-token")
    assert table.headers["Content-Type"].startswith("text/csv")
    head, row = table.text.split()
    assert head == "owner,gpu_hours,slot_hours,server_gpu_hours,jobs" and row.startswith("ada,")
    answer = await api.ask("GET", "api/usage?from=100&to=50")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "empty_period")


async def test_the_command_says_what_is_wrong_on_its_way(api, tmp_path):
    code, output = await command(api, "latin.py")
    assert (
        code == 2 and "latin.py: files cannot be sent. Put it into the cluster's folder of policies" in output
    )
    code, output = await command(api, "--ca", str(tmp_path / "none.pem"))
    assert code == 1 and "none.pem: No such file or directory" in output and "Traceback" not in output
    code, output = await command(api, "fifo", url="lab.example.org")
    assert code == 2 and "it must begin with https://" in output
