"""Sends notices as e-mails through the mail server that an admin names, within limits per hour."""

from __future__ import annotations

import asyncio
import re
import smtplib
import ssl
from concurrent.futures import ThreadPoolExecutor
from email.message import EmailMessage
from uuid import uuid4

from minicluster.wire import Notice
from minicluster_hub.notices.errors import AddressRefused, NotSent
from minicluster_hub.notices.wording import headline
from minicluster_hub.support.rates import Buckets, Rate

TIMEOUT_S = 20.0
_WORDS = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_HOST = r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*"
# No `=?`, which begins an encoded word: a mail program would decode it to another address.
_ADDRESS = re.compile(rf"(?!.*=\?)(?=.{{1,64}}@.{{1,253}}$){_WORDS}@{_HOST}")
_HOUR_S = 3600.0
_CODES = Rate(per_s=3 / _HOUR_S, burst=3.0)
"""How many codes one user may request."""
_CODES_TO_ADDRESS = Rate(per_s=3 / (24 * _HOUR_S), burst=3.0)
"""How many codes all users together may send to one address: its owner may be a stranger to the cluster."""
_CODE_SUBJECT = "Minicluster: is this address yours?"
_CODE = """The user {owner!r} of a cluster wants its notices at this address. If that is you, the code is

    {code}

It is valid for a day. If that is not you, do nothing: you will get no other mail.
"""


class Emails:
    """host: the mail server; "": send no e-mails. sender: the From address."""

    def __init__(self, host: str = "", port: int = 25, sender: str = "", *, starttls: bool = True) -> None:
        self.host = host
        self._port = port
        self._sender = sender
        self._starttls = starttls
        # Own threads: a mail server that hangs must not block the threads of the rest of the service.
        self._threads = ThreadPoolExecutor(2, "emails")

    def check(self, address: str) -> None:
        """Raise AddressRefused unless notices may go to this address."""
        if not self.host:
            raise AddressRefused("this cluster sends no e-mails", "An admin sets smtp_host.")
        if not _ADDRESS.fullmatch(address):
            raise AddressRefused(f"{address!r} is not an e-mail address")

    async def send(self, address: str, notice: Notice) -> None:
        """Raises AddressRefused and NotSent."""
        self.check(address)
        await self._submit(self.message(address, notice))

    async def send_code(self, address: str, owner: str, code: str) -> None:
        """Send the code that confirms an address. Raises AddressRefused and NotSent."""
        self.check(address)
        text = _CODE.format(owner=owner, code=code)
        await self._submit(self._mail(address, _CODE_SUBJECT, uuid4().hex, text))

    async def _submit(self, mail: EmailMessage) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, self._send, mail)
        except (OSError, smtplib.SMTPException) as error:
            raise NotSent(f"the mail server {self.host}:{self._port} did not accept it: {error}") from None

    def message(self, address: str, notice: Notice) -> EmailMessage:
        """Return the mail. If a notice is sent twice, both mails have the same Message-ID.

        Names that users chose are only in the body: in a header, a mail program would decode encoded words.
        """
        text = f"{notice.text}\n\n{notice.url}\n" if notice.url else f"{notice.text}\n"
        return self._mail(address, f"Minicluster: {headline(notice)}", notice.id, text)

    def _mail(self, address: str, subject: str, ident: str, text: str) -> EmailMessage:
        mail = EmailMessage()
        mail["From"], mail["To"] = self._sender, address
        mail["Subject"] = subject
        mail["Message-ID"] = f"<{ident}@minicluster>"
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(text)
        return mail

    def close(self) -> None:
        self._threads.shutdown(wait=False)

    def _send(self, mail: EmailMessage) -> None:
        with smtplib.SMTP(self.host, self._port, timeout=TIMEOUT_S) as server:
            if self._starttls:
                server.starttls(context=ssl.create_default_context())
            server.send_message(mail)


class MailRates:
    """user_per_hour: notices to one user; a third may be sent at once. per_hour: mails to all users."""

    def __init__(self, user_per_hour: int = 60, per_hour: int = 600) -> None:
        self._buckets = Buckets()
        self._user, self._all = _hourly(user_per_hour), _hourly(per_hour)

    def consume_notice(self, owner: str) -> float:
        """Count one mail and return 0.0; or count none and return the seconds until one may be sent."""
        return self._consume((("notice", owner), self._user))

    def consume_code(self, owner: str, address: str) -> float:
        """Do the same for a mail with a code."""
        return self._consume((("code", owner), _CODES), (("address", address.lower()), _CODES_TO_ADDRESS))

    def _consume(self, *mine: tuple[tuple[str, str], Rate]) -> float:
        limits = (*mine, (("all", ""), self._all))
        wait_s = max(self._buckets.wait_s(key, rate) for key, rate in limits)
        if not wait_s:
            for key, rate in limits:
                self._buckets.charge(key, rate, 1.0)
        return wait_s


def _hourly(mails: int) -> Rate:
    return Rate(per_s=mails / _HOUR_S, burst=max(1.0, mails / 3))
