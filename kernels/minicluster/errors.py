"""The base of all errors that a notebook's user may see from this package."""

from __future__ import annotations


class MiniclusterError(Exception):
    """An error for people: what happened, and a hint of what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def _render_traceback_(self) -> list[str]:
        """Show only the message in IPython: this package's stack does not help users."""
        return [f"{type(self).__name__}: {self.message}", *([self.hint] if self.hint else [])]
