"""A notebook that no hub started: its token is its user's own affair, and so is what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

PERMISSIONS = (
    "access:services!service=minicluster custom:minicluster:submit!user custom:minicluster:read!user"
)
"""Of its token, as the hub's token page wants them."""


@dataclass(frozen=True)
class Outside:
    """How such a notebook comes in.

    token_page: where the hub makes another token. tls: whom to trust in place of the authorities that
    everybody trusts.
    """

    token_page: str
    tls: ssl.SSLContext | None = None

    def refused(self, code: str, message: str) -> tuple[str, str, str]:
        """Return message, hint and code for a token that the service did not take."""
        hint = (
            f"Make a new one at {self.token_page} with the permissions\n{PERMISSIONS}\n"
            "then: %distribute connect"
        )
        if code == "scope_missing":
            return f"This token may not do that: {message}.", hint, code
        what = "The hub does not know this token: it expired, it was revoked, or a part of it is missing."
        return what, hint, "not_authenticated"
