"""Notices as e-mails, by the mail server that an admin names."""

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
from minicluster_hub.notices.words import headline

TIMEOUT_S = 20.0
_WORDS = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
_HOST = r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*"
# Not with =?, by which an encoded word begins: the header would name another address.
_ADDRESS = re.compile(rf"(?!.*=\?)(?=.{{1,64}}@.{{1,253}}$){_WORDS}@{_HOST}")
_CODE_SUBJECT = "Minicluster: is this address yours?"
_CODE = """The user {owner!r} of a cluster wants its notices at this address. If that is you, the code is

    {code}

It is good for a day. If it is not you, there is nothing to do: no other mail comes.
"""


class Emails:
    """`host`: of the mail server, "": there are no e-mails. sender: whom they come from."""

    def __init__(self, host: str = "", port: int = 25, sender: str = "", *, starttls: bool = True) -> None:
        self.host = host
        self._port = port
        self._sender = sender
        self._starttls = starttls
        # Threads of their own: a mail server that hangs takes none from the rest of the service.
        self._threads = ThreadPoolExecutor(2, "emails")

    def check(self, address: str) -> None:
        """Raises AddressRefused unless notices may go there."""
        if not self.host:
            raise AddressRefused("this cluster sends no e-mails", "An admin sets smtp_host.")
        if not _ADDRESS.fullmatch(address):
            raise AddressRefused(f"{address!r} is no e-mail address")

    async def send(self, address: str, notice: Notice) -> None:
        """Raises AddressRefused and NotSent."""
        self.check(address)
        await self._hand_over(self.message(address, notice))

    async def send_code(self, address: str, owner: str, code: str) -> None:
        """Send what shows whose address it is. Raises AddressRefused and NotSent."""
        self.check(address)
        text = _CODE.format(owner=owner, code=code)
        await self._hand_over(self._mail(address, _CODE_SUBJECT, uuid4().hex, text))

    async def _hand_over(self, mail: EmailMessage) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads, self._send, mail)
        except (OSError, smtplib.SMTPException) as error:
            raise NotSent(f"the mail server {self.host}:{self._port} did not take it: {error}") from None

    def message(self, address: str, notice: Notice) -> EmailMessage:
        """Return the mail. A second one of the same notice has the same Message-ID.

        What users named is in the body alone: in a header, an encoded word of theirs would be decoded.
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
