"""Abuse of e-mail notices: mail to other people, mail floods, injected headers."""

import asyncio
import time

import pytest

from minicluster.wire import NoticeEvent
from minicluster_hub.notices.emails import Emails, MailRates
from minicluster_hub.notices.sender import NoticeSender
from minicluster_hub.notices.webhooks import Webhooks
from minicluster_hub.store.users.notices import MOST_TRIES, MOST_WAITING

from ...patience import eventually
from ...service.api.receivers import MailServer

ALL = [event.value for event in NoticeEvent]


@pytest.fixture
async def mails():
    made = MailServer()
    await made.open()
    yield made
    await made.close()


@pytest.fixture
def start(start_api, mails):
    """A function that starts a service with the mail server and these limits."""

    def started(**rates):
        def make(store, log):
            emails = Emails("127.0.0.1", mails.port, "cluster@lab.org", starttls=False)
            return NoticeSender(
                store, Webhooks(()), emails, time.time, log, pauses_s=(), rates=MailRates(**rates)
            )

        return start_api(post=make)

    return started


async def set_notices(api, address, owner="ada"):
    wishes = {"events": ALL, "email": address}
    return await api.ask("PUT", "api/notices/me", f"{owner}-token", json=wishes)


async def confirm(api, code, owner="ada"):
    return await api.ask("POST", "api/notices/me/email", f"{owner}-token", json={"code": code})


async def confirmed(api, mails, owner="ada"):
    """Confirm an owner's own address."""
    assert (await set_notices(api, f"{owner}@lab.org", owner)).status_code == 200
    assert (await confirm(api, await mails.code(), owner)).json()["email_confirmed"]


def send_notices(api, owner="ada", times=1, reason=""):
    for _ in range(times):
        api.context.status_cache.send_notices(
            owner, NoticeEvent.GPU_WARNED, time.time(), server="", reason=reason
        )


async def test_somebody_elses_address_gets_a_code_and_nothing_more(start, mails):
    async with start() as api:
        assert not (await set_notices(api, "victim@lab.org")).json()["email_confirmed"]
        code = await mails.code()
        send_notices(api, times=5, reason="buy this")
        await confirmed(api, mails, "bob")
        send_notices(api, "bob")
        assert (await mails.next())["To"] == "bob@lab.org" and mails.mails.empty()
        assert (await confirm(api, code)).json()["email_confirmed"]
        await set_notices(api, "other@lab.org")
        await mails.code()
        send_notices(api, times=5)
        send_notices(api, "bob")
        assert (await mails.next())["To"] == "bob@lab.org" and mails.mails.empty()


async def test_a_code_cannot_be_guessed_nor_used_by_another(start, mails):
    async with start() as api:
        await set_notices(api, "victim@lab.org")
        code = await mails.code()
        await set_notices(api, "bob@lab.org", "bob")
        assert (await confirm(api, code, "bob")).status_code == 422
        wrong = [f"{(int(code) + more) % 10**8:08}" for more in range(1, MOST_TRIES + 1)]
        for guess in wrong:
            assert (await confirm(api, guess)).json()["error"]["code"] == "wrong_code"
        assert (await confirm(api, code)).status_code == 422
        for nonsense in ("", "1", "１２３４５６７８", code + "\n", f"{code} "):
            assert (await confirm(api, nonsense)).status_code == 422


async def test_codes_fill_nobodys_mailbox(start, mails):
    async with start() as api:
        answers = [await set_notices(api, f"victim-{number}@lab.org") for number in range(8)]
        assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 5
        assert (
            answers[-1].json()["error"]["code"] == "too_many_codes" and "Retry-After" in answers[-1].headers
        )
        assert mails.mails.qsize() == 3
        for case in ("Victim@lab.org", "victim@LAB.org", "victim@lab.org"):
            assert (await set_notices(api, case, "bob")).status_code == 200
        assert (await set_notices(api, "victim@lab.org", "root")).status_code == 429
        assert mails.mails.qsize() == 6


async def test_a_flood_of_notices_waits_and_holds_up_nobody_elses(start, mails):
    async with start(user_per_hour=6) as api:
        await confirmed(api, mails)
        await confirmed(api, mails, "bob")
        send_notices(api, times=MOST_WAITING + 50)
        send_notices(api, "bob")
        come = [(await mails.next())["To"] for _ in range(3)]
        assert sorted(come) == ["ada@lab.org", "ada@lab.org", "bob@lab.org"]
        send_notices(api, "bob")
        assert (await mails.next())["To"] == "bob@lab.org" and mails.mails.empty()
        await eventually(lambda: api.context.store.notices.queues() == [("ada", "email")])
        data = (await api.ask("GET", "api/notices/me")).json()["trouble"]
        assert "left out" in data


async def test_many_users_together_send_no_more_than_the_cluster_may(start, mails):
    async with start(per_hour=12) as api:
        await confirmed(api, mails)
        await confirmed(api, mails, "bob")
        send_notices(api, times=5)
        await mails.next()
        await mails.next()
        send_notices(api, "bob", times=5)
        assert (await set_notices(api, "root@lab.org", "root")).status_code == 429
        assert mails.mails.empty()


@pytest.mark.parametrize(
    "address",
    [
        "a@lab.org\r\nBcc: victim@lab.org",
        "a@lab.org\nRCPT TO:<victim@lab.org>",
        "a@lab.org, victim@lab.org",
        "<a@lab.org> victim@lab.org",
        "victim@lab.org\x00@lab.org",
        "a@lab.org\u2028x",
    ],
)
async def test_an_address_makes_no_further_headers_or_recipients(start, mails, address):
    async with start() as api:
        answer = await set_notices(api, address)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "address_refused")
    assert mails.commands == []


@pytest.mark.parametrize("line_break", ["\r\n", "\n", "\r", "\x0b", "\x85", "\u2028", "\r\n.\r\n"])
async def test_what_jobs_and_servers_are_named_makes_no_headers_or_commands(start, mails, line_break):
    named = f"x{line_break}Bcc: victim@lab.org{line_break}RCPT TO:<victim@lab.org>"
    async with start() as api:
        await confirmed(api, mails)
        api.context.status_cache.send_notices(
            "ada", NoticeEvent.GPU_WARNED, time.time(), server=named, reason=named
        )
        mail = await mails.next()
    heads = " ".join(f"{name}: {value}" for name, value in mail.items())
    assert "victim" not in heads and mail["To"] == "ada@lab.org"
    recipients = {line for line in mails.commands if line.startswith(b"RCPT")}
    assert recipients == {b"RCPT TO:<ADA@LAB.ORG>"}


async def test_an_address_is_not_kept_if_its_code_was_not_taken(start, mails):
    silent = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    mails.port = silent.sockets[0].getsockname()[1]
    async with start() as api:
        answer = await set_notices(api, "ada@lab.org")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "mail_not_sent")
        assert (await api.ask("GET", "api/notices/me")).json()["wishes"]["email"] is None
    silent.close()
