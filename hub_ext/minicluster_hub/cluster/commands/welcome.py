"""What `up` says at its end: where to go, as whom, and how another machine joins."""

from __future__ import annotations

from minicluster_hub.cluster.plan.choices import TLS_NONE, TLS_SELF_MADE, Choices
from minicluster_hub.cluster.plan.record import Record
from minicluster_hub.login.accounts_file import FIRST_USER


def welcome(choices: Choices, record: Record, address: str, join: str, password: str, changes: int) -> str:
    """Return the last lines of `up`; the password only if nobody has seen it yet."""
    known = f"as before; a new one: passwd {FIRST_USER}"
    lines = [
        "",
        f"Minicluster is ready: {choices.url(address)}" + ("" if changes else "   (nothing was changed)"),
        "",
        f"  user      {FIRST_USER}",
        f"  password  {password + '   (shown only now)' if password else known}",
        "",
        "  Another machine becomes a node by this command, run there:",
        f"    {join}",
        "",
        *_warnings(choices, record),
        "  Another user: adduser NAME.  What runs where: status.  If something is wrong: doctor.",
    ]
    return "\n".join(lines)


def _warnings(choices: Choices, record: Record) -> list[str]:
    lines = []
    if choices.tls == TLS_NONE:
        lines.append(
            "  WARNING: plain HTTP: passwords can be read on the way. `up --self-made --port 443` ends that."
        )
    if choices.tls == TLS_SELF_MADE:
        lines.append("  The certificate is self-made: browsers ask once whether to trust it.")
    if not record.images.hub_is_published:
        lines.append(
            "  The hub image is only on this machine, so other nodes cannot fetch what they need: before they"
            " join, publish it (images/publish) and run upgrade --hub-image NAME."
        )
    return [*lines, ""] if lines else []
