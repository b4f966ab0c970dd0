"""Notices by webhook and e-mail: recipients, content, frequency, and forbidden addresses."""

import asyncio
import json
import time
from email import message_from_bytes, policy

import pytest

from minicluster.wire import Notice, NoticeEvent
from minicluster_hub.notices.emails import Emails
from minicluster_hub.notices.errors import AddressRefused
from minicluster_hub.notices.sender import NoticeSender
from minicluster_hub.notices.webhooks import Webhooks
from minicluster_hub.notices.wording import sentence

from ..receivers import Hooks, MailServer

ALL = [event.value for event in NoticeEvent]
SECRET = "hunter2"


@pytest.fixture
async def hooks():
    made = Hooks()
    yield made
    await made.close()


@pytest.fixture
async def mails():
    made = MailServer()
    await made.open()
    yield made
    await made.close()


def posting(*hosts, port=0, pauses_s=(0.0, 0.0)):
    """Return a factory of the sender, for a cluster whose administrator allows these hosts."""

    def make(store, log):
        emails = Emails("127.0.0.1" if port else "", port, "cluster@lab.org", starttls=False)
        url = "https://lab.org/services/minicluster/"
        return NoticeSender(store, Webhooks(hosts), emails, time.time, log, public_url=url, pauses_s=pauses_s)

    return make


async def set_notices(api, owner="ada", **wishes):
    answer = await api.ask("PUT", "api/notices/me", f"{owner}-token", json={"events": ALL, **wishes})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def trouble(api, owner="ada"):
    return (await api.ask("GET", "api/notices/me", f"{owner}-token")).json()["trouble"]


async def finished(api, owner="ada", **spec):
    """Run a job to its end."""
    job, agents, runs = await api.running(owner, **spec)
    await agents[0].finish(runs[0])
    await api.until(job.id, "succeeded")
    return job


async def test_a_webhook_is_told_of_a_jobs_start_and_end(start_api, hooks):
    async with start_api(post=posting(hooks.host)) as api:
        await set_notices(api, webhook=hooks.url)
        job = await finished(api, name="train", env={"TOKEN": SECRET})
        started, ended = await hooks.next(), await hooks.next()
        assert (started["event"], started["job_id"], started["name"]) == ("started", job.id, "train")
        assert (ended["event"], ended["state"]) == ("ended", "succeeded")
        assert ended["text"] == f"Job {job.id} (train) has succeeded."
        assert ended["url"] == f"https://lab.org/services/minicluster/jobs/{job.id}"
        assert started["id"] != ended["id"] and SECRET not in json.dumps([started, ended])
        assert await trouble(api) == ""


async def test_nobody_is_told_who_did_not_ask_nor_of_what_was_not_asked_for(start_api, hooks):
    async with start_api(post=posting(hooks.host)) as api:
        await set_notices(api, webhook=hooks.url, events=["ended"])
        await set_notices(api, "bob", webhook=None)
        await finished(api, "bob")
        await finished(api, "root")
        job = await finished(api)
        notice = await hooks.next()
        assert (notice["event"], notice["job_id"]) == ("ended", job.id) and hooks.requests.empty()
        await set_notices(api, webhook=None)
        await finished(api)
        assert api.context.store.notices.queues() == [] and hooks.requests.empty()


async def test_a_failure_is_told_without_the_words_of_its_code(start_api, hooks):
    async with start_api(post=posting(hooks.host)) as api:
        await set_notices(api, webhook=hooks.url, events=["failed"])
        job, agents, runs = await api.running()
        error = {"kind": "exception", "message": f"ValueError: {SECRET}", "rank": 0, "traceback": SECRET}
        rank = {"rank": 0, "state": "exited", "exit_code": 1, "error": error}
        await agents[0].report(attempt=runs[0].attempt, ranks=(rank,), cleared=runs[0].attempt)
        await api.until(job.id, "failed")
        notice = await hooks.next()
        assert notice["text"] == f"Job {job.id} has failed: rank 0 raised an exception."
        assert SECRET not in json.dumps(notice)


async def test_a_notice_is_tried_three_times_with_one_id_and_the_next_is_not_lost_with_it(start_api, hooks):
    async def refuse(handler):
        handler.send_error(503)

    taken, hooks.answer = hooks.answer, refuse
    async with start_api(post=posting(hooks.host)) as api:
        await set_notices(api, webhook=hooks.url, events=["ended"])
        first = await finished(api)
        tries = [await hooks.next() for _ in range(3)]
        assert {notice["job_id"] for notice in tries} == {first.id} and len(
            {notice["id"] for notice in tries}
        ) == 1
        async with asyncio.timeout(5):
            while "answered 503" not in await trouble(api):
                await asyncio.sleep(0.01)
        assert hooks.requests.empty() and "a-secret" not in await trouble(api)
        hooks.answer = taken
        second = await finished(api)
        assert (await hooks.next())["job_id"] == second.id and await trouble(api) == ""


async def test_a_receiver_that_hangs_holds_up_no_job_and_no_other_owners_notices(start_api, hooks):
    slow = Hooks()
    slow.answer = slow.hang
    async with start_api(post=posting(hooks.host, slow.host)) as api:
        await set_notices(api, webhook=slow.url)
        await set_notices(api, "bob", webhook=hooks.url, events=["ended"])
        await finished(api)
        await slow.next()
        job = await finished(api, "bob")
        assert (await hooks.next())["job_id"] == job.id
    await slow.close()


async def test_a_service_that_is_killed_while_it_sends_sends_it_again_with_the_same_id(start_api, hooks):
    taken, hooks.answer = hooks.answer, hooks.hang
    async with start_api(post=posting(hooks.host)) as before:
        await set_notices(before, webhook=hooks.url, events=["ended"])
        job = await finished(before)
        notice = await hooks.next()
    hooks.answer = taken
    async with start_api(post=posting(hooks.host)) as after:
        again = await hooks.next()
        assert (again["id"], again["job_id"]) == (notice["id"], job.id)
        async with asyncio.timeout(5):
            while after.context.store.notices.queues():
                await asyncio.sleep(0.01)
        assert hooks.requests.empty()


async def test_an_e_mail_tells_the_same_and_an_owner_of_a_notebook_server_gets_one(start_api, mails):
    async with start_api(post=posting(port=mails.port)) as api:
        assert (await set_notices(api, email="ada@lab.org"))["emails"]
        code = await mails.code()
        assert (await api.ask("POST", "api/notices/me/email", json={"code": code})).json()["email_confirmed"]
        job = await finished(api, name="train\u00e9")
        mail = await mails.next()
        assert (mail["To"], mail["From"]) == ("ada@lab.org", "cluster@lab.org")
        assert mail["Subject"] == f"Minicluster: Job {job.id} has started"
        assert f"Job {job.id} (train\u00e9) has started." in mail.get_content()
        assert f"https://lab.org/services/minicluster/jobs/{job.id}" in mail.get_content()
        await mails.next()
        details = {"server": "", "reason": "unused for 15 minutes"}
        api.context.status_cache.send_notices("ada", NoticeEvent.GPU_WARNED, time.time(), **details)
        text = (await mails.next()).get_content()
        assert f"server are idle: {details['reason']}" in text


WORD = "=?utf-8?q?x=0D=0AReply-To=3Ae=40x.y=0D=0A=0D=0A<b>hello</b>?="


@pytest.mark.parametrize("told", [{"job_id": 7, "name": WORD}, {"server": WORD}, {"reason": WORD}])
def test_what_users_name_makes_no_headers(told):
    notice = Notice(id="1", event=NoticeEvent.GPU_WARNED, at=1.0, **told)
    text = sentence(notice)
    mail = Emails("mail.lab", 25, "cluster@lab.org").message(
        "ada@lab.org", notice.model_copy(update={"text": text})
    )
    come = message_from_bytes(mail.as_bytes(policy=policy.SMTP), policy=policy.default)
    assert set(come.keys()) == {"From", "To", "Subject", "Message-ID", "Auto-Submitted"} | {
        "Content-Type",
        "Content-Transfer-Encoding",
        "MIME-Version",
    }
    assert come["Subject"].startswith("Minicluster: ") and "hello" not in come["Subject"]
    assert come.get_content().strip() == text


@pytest.mark.parametrize("local", ["ada", "ada.l+notices=all?", "a" * 64])
def test_an_e_mail_goes_to_the_address_that_was_given(local):
    emails, notice = Emails("mail.lab", 25, "cluster@lab.org"), Notice(id="1", event="started", at=1.0)
    emails.check(f"{local}@lab.org")
    (found,) = emails.message(f"{local}@lab.org", notice)["To"].addresses
    assert found.addr_spec == f"{local}@lab.org"


@pytest.mark.parametrize(
    "address",
    [
        "=?utf-8?q?a=2Cb?=@lab.org",
        "a..b@lab.org",
        ".a@lab.org",
        "a@lab..org",
        "a@lab.",
        "a,b@lab.org",
        "a@lab.org\nx",
        "a@lab.org\n",
        "a@b@lab.org",
        "a" * 65 + "@lab.org",
    ],
)
def test_an_address_that_could_be_another_is_refused(address):
    with pytest.raises(AddressRefused, match="is not an e-mail address"):
        Emails("mail.lab").check(address)


async def test_there_are_none_until_an_admin_says_where_they_may_go(api):
    data = (await api.ask("GET", "api/notices/me")).json()
    assert data == {
        "wishes": {"events": [], "webhook": None, "email": None},
        "hosts": [],
        "emails": False,
        "email_confirmed": False,
        "trouble": "",
    }
    for wishes in ({"webhook": "https://hooks.example.org/x"}, {"email": "ada@lab.org"}):
        answer = await api.ask("PUT", "api/notices/me", json=wishes)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "address_refused")


@pytest.mark.parametrize(
    "url",
    [
        "http://{host}.evil.org/",
        "http://evil.org/#{host}",
        "http://{host}@evil.org/",
        "http://ada:pw@{host}/",
        "http://chat.lab/",
        "http://127.0.0.1:1/",
        "http://evil.org\\@{host}/",
        "file:///etc/passwd",
        "http://lab.public.org/",
        "https://public.org/",
    ],
)
def test_a_webhook_goes_to_allowed_hosts_only(url):
    webhooks = Webhooks(("chat.lab:8065", "*.public.org"))
    for allowed in ("http://chat.lab:8065/x?key=1", "https://CHAT.lab:8065", "https://lab.public.org:443/"):
        webhooks.check(allowed)
    with pytest.raises(AddressRefused):
        webhooks.check(url.format(host="chat.lab:8065"))


async def test_a_host_that_is_not_named_in_full_has_to_be_a_public_one(start_api, hooks):
    name = f"localhost:{hooks.host.rpartition(':')[2]}"
    async with start_api(post=posting("local*")) as api:
        await set_notices(api, webhook=f"https://{name}/")
        await finished(api)
        async with asyncio.timeout(5):
            while "is not public" not in await trouble(api):
                await asyncio.sleep(0.01)
    assert hooks.requests.empty()


async def test_a_redirect_is_not_followed(start_api, hooks):
    inner = Hooks()

    async def redirect(handler):
        handler.redirect(inner.url, status=307)

    hooks.answer = redirect
    async with start_api(post=posting(hooks.host)) as api:
        await set_notices(api, webhook=hooks.url, events=["ended"])
        await finished(api)
        async with asyncio.timeout(5):
            while "answered 307" not in await trouble(api):
                await asyncio.sleep(0.01)
    assert inner.requests.empty()
    await inner.close()


async def test_ones_wishes_are_nobody_elses_business(start_api, hooks):
    async with start_api(post=posting(hooks.host)) as api:
        await set_notices(api, webhook=hooks.url)
        for token in ("bob-token", "root-token"):
            assert (await api.ask("GET", "api/notices/me", token)).json()["wishes"]["webhook"] is None
        assert (await api.ask("PUT", "api/notices/me", "reader-token", json={})).status_code == 403
