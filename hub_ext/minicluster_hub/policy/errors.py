"""What can be wrong with a choice; what can be wrong with a policy stands beside its checks."""

from __future__ import annotations


class ChoiceRefused(Exception):
    """A policy, placement or option that cannot be put in force; `code` is for programs."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class PlanFailed(Exception):
    """Policy and placement raised at a snapshot; the message is what they raised, in words."""
