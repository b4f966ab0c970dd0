"""The options of notices."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from traitlets import Bool, Integer, List, Unicode, default
from traitlets.config import Configurable

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from minicluster_hub.notices.sender import NoticeSender
    from minicluster_hub.store import Store


class NoticeOptions(Configurable):
    """Set them as options of MiniclusterHub. Nothing is sent unless a mail server or hosts are named."""

    smtp_host = Unicode(help="Mail server that sends users' notices; empty: no e-mails.").tag(config=True)
    smtp_port = Integer(25, min=1, max=65535, help="Its port.").tag(config=True)
    smtp_from = Unicode("minicluster@localhost", help="Address that e-mails come from.").tag(config=True)
    smtp_starttls = Bool(
        True,
        help="Encrypt the connection to the mail server. Without it, others on the network can read e-mails.",
    ).tag(config=True)
    emails_per_hour = Integer(
        60, min=1, help="E-mails with notices to one user per hour; further ones wait."
    ).tag(config=True)
    emails_per_hour_of_all = Integer(600, min=1, help="E-mails of the whole cluster per hour.").tag(
        config=True
    )
    notice_hosts = List(
        Unicode(),
        help="Hosts that users' webhooks may call from inside the cluster: hooks.slack.com, "
        "chat.lab.org:8065. A pattern with * (*.example.org) allows only hosts with public addresses. "
        "Empty: no webhooks.",
    ).tag(config=True)
    public_url = Unicode(
        help="The job service's URL in browsers, for links in notices; by default the hub's setting."
    ).tag(config=True)

    @default("public_url")
    def _default_public_url(self) -> str:
        return os.environ.get("JUPYTERHUB_PUBLIC_URL", "")

    def notice_sender(self, store: Store, clock: Callable[[], float], log: logging.Logger) -> NoticeSender:
        from minicluster_hub.notices.emails import Emails, MailRates
        from minicluster_hub.notices.sender import NoticeSender
        from minicluster_hub.notices.webhooks import Webhooks

        emails = Emails(self.smtp_host, self.smtp_port, self.smtp_from, starttls=self.smtp_starttls)
        rates = MailRates(self.emails_per_hour, self.emails_per_hour_of_all)
        webhooks = Webhooks(self.notice_hosts)
        return NoticeSender(store, webhooks, emails, clock, log, public_url=self.public_url, rates=rates)
