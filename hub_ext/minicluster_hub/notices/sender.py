"""Sends the notices in the store's outbox. Each webhook and each mailbox has its own queue."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence

from minicluster.wire import Notice
from minicluster_hub.notices.emails import Emails, MailRates
from minicluster_hub.notices.errors import AddressRefused, NotSent, TooManyMails
from minicluster_hub.notices.webhooks import Webhooks
from minicluster_hub.notices.wording import sentence
from minicluster_hub.store import Store, StoreError
from minicluster_hub.store.users.notices import EMAIL, WEBHOOK, NoticeMessage, NoticeQueue
from minicluster_hub.support.notifier import NOTICES, Notifier

PAUSES_S = (10.0, 120.0)
"""Pauses between the attempts to send a notice, in seconds."""
_AT_ONCE = 8
_STORE_PAUSE_S = 5.0


class NoticeSender:
    """public_url: the job service's URL in browsers; "" if unknown."""

    def __init__(
        self,
        store: Store,
        webhooks: Webhooks,
        emails: Emails,
        clock: Callable[[], float],
        log: logging.Logger,
        *,
        public_url: str = "",
        pauses_s: Sequence[float] = PAUSES_S,
        rates: MailRates | None = None,
    ) -> None:
        self.webhooks = webhooks
        self.emails = emails
        self._store = store
        self._clock = clock
        self._log = log
        self._public_url = public_url
        self._pauses_s = pauses_s
        self._rates = rates or MailRates()
        self._queues: dict[NoticeQueue, asyncio.Task[None]] = {}
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def send_code(self, owner: str, address: str) -> str:
        """Send a code to an address and return it. Raises AddressRefused, NotSent and TooManyMails."""
        self.emails.check(address)
        wait_s = self._rates.consume_code(owner, address)
        if wait_s:
            raise TooManyMails(wait_s)
        code = f"{secrets.randbelow(10**8):08}"
        await self.emails.send_code(address, owner, code)
        return code

    async def run(self, changes: Notifier) -> None:
        """Send notices until cancelled, beginning with those that an earlier service did not send."""
        try:
            async with changes.listen() as subscription:
                while True:
                    await subscription.wait(None if self._start_queues(changes) else _STORE_PAUSE_S)
        finally:
            for work in self._queues.values():
                work.cancel()

    def close(self) -> None:
        self.webhooks.close()
        self.emails.close()

    def _start_queues(self, changes: Notifier) -> bool:
        """Start tasks for queues that have none; return whether the store answered."""
        try:
            queues = self._store.notices.queues()
        except StoreError as error:
            self._log.warning("notices wait: %s", error)
            return False
        for queue in queues:
            if queue not in self._queues:
                self._queues[queue] = asyncio.create_task(self._serve(queue, changes))
        return True

    async def _serve(self, queue: NoticeQueue, changes: Notifier) -> None:
        """Send the notices of a queue until it is empty."""
        try:
            async with changes.listen() as subscription:
                while found := self._store.notices.next(queue):
                    message, target = found
                    pause_s = message.due_at - self._clock()
                    if pause_s <= 0 and queue[1] == EMAIL and target is not None:
                        pause_s = self._rates.consume_notice(queue[0])
                    if pause_s > 0:
                        await subscription.wait(pause_s)  # a new message may be due earlier
                    else:
                        await self._send(message, target)
        except StoreError as error:
            self._log.warning("notices for %s wait: %s", queue[0], error)
            await asyncio.sleep(_STORE_PAUSE_S)
            changes.notify(NOTICES)
        finally:
            del self._queues[queue]

    async def _send(self, message: NoticeMessage, target: str | None) -> None:
        """Send a message, postpone it, or discard it."""
        notices = self._store.notices
        if target is None:
            notices.done(message)
            return
        try:
            channel = self.webhooks if message.queue[1] == WEBHOOK else self.emails
            async with self._free:
                await channel.send(target, self.worded(message.notice))
        except AddressRefused as refused:
            notices.done(message, f"{refused}")
        except NotSent as error:
            self._postpone(message, f"{error}")
        except Exception:
            self._log.exception("a notice for %s was not sent", message.queue[0])
            self._postpone(message, "an error of the job service; see its log")
        else:
            notices.done(message)

    def _postpone(self, message: NoticeMessage, trouble: str) -> None:
        if message.tries < len(self._pauses_s):
            self._store.notices.again(message, self._clock() + self._pauses_s[message.tries])
        else:
            self._log.warning("a notice for %s was discarded: %s", message.queue[0], trouble)
            self._store.notices.done(message, trouble)

    def worded(self, notice: Notice) -> Notice:
        """Return a notice with its text and the URL of its page."""
        page = f"jobs/{notice.job_id}" if notice.job_id is not None else "cluster"
        url = f"{self._public_url.rstrip('/')}/{page}" if self._public_url else ""
        return notice.model_copy(update={"url": url, "text": sentence(notice)})
