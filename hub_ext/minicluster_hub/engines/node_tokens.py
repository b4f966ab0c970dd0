"""Tokens of the nodes' data set agents: each speaks for its own nodes, and no node can make another's.

A token is the nodes' names and a code that only the job service can make of them, so none has to be stored.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable


class NodeTokens:
    """secret: the job service's own; no node has it."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def issue(self, nodes: Iterable[str]) -> str:
        """Return what lets an agent speak for these nodes and no others."""
        names = ",".join(nodes)
        code = self._code(f"nodes\0{names}")
        return f"{names}:{code}"

    def nodes(self, token: str) -> frozenset[str]:
        """Return the nodes that a token speaks for; none if it is no token."""
        names, _, _ = token.rpartition(":")
        genuine = hmac.compare_digest(token.encode(), self.issue([names]).encode())
        return frozenset(names.split(",")) if names and genuine else frozenset()

    def file(self, nodes: Iterable[str]) -> str:
        """Return what an agent's token file holds: the token and, below, the index of a former cache."""
        return f"{self.issue(nodes)}\n{self._code('index')[:40]}"

    def _code(self, text: str) -> str:
        return hmac.new(self._secret.encode(), text.encode(), hashlib.sha256).hexdigest()
