"""The tokens that people make: so many each, and with a short note, since they fill the hub's database."""

from __future__ import annotations

from typing import Any

from jupyterhub.apihandlers.users import UserTokenListAPIHandler
from tornado.web import HTTPError

MOST_TOKENS, LONGEST_NOTE = 200, 1000
"""JupyterHub's own table says 1023 characters, which SQLite does not look at."""
_OWN_CLIENT = "jupyterhub"


class TokensOfUser(UserTokenListAPIHandler):
    """JupyterHub's own, with bounds. A password in the body, which it takes as well, counts for nothing."""

    async def post(self, user_name: str) -> None:
        """Make a token."""
        if self.current_user is None:
            raise HTTPError(403, "Make tokens on the hub's page Token, or with a token that may.")
        body: Any = self.get_json_body()
        note = body.get("note") if isinstance(body, dict) else None
        if note is not None and not (isinstance(note, str) and len(note) <= LONGEST_NOTE):
            raise HTTPError(400, f"A token's note is a text of at most {LONGEST_NOTE} characters.")
        user: Any = self.find_user(user_name)
        if user is not None and self.get_scope_filter("tokens")(user, kind="user"):
            _check_room(user)
        await super().post(user_name)


def _check_room(user: Any) -> None:
    """Count tokens, but for those that browsers get when they visit a service: they expire."""
    if sum(token.client_id == _OWN_CLIENT for token in user.api_tokens) >= MOST_TOKENS:
        raise HTTPError(
            409,
            f"{user.name} has {MOST_TOKENS} tokens, the most that there may be. "
            "Revoke those that nobody needs on the hub's page Token.",
        )


PAGES = [(r"/api/users/([^/]+)/tokens", TokensOfUser)]
