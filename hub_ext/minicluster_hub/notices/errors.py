"""Why a notice is not sent."""

from __future__ import annotations


class AddressRefused(Exception):
    """Notices may not go to this address. The message says why, the hint what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class NotSent(Exception):
    """An attempt to send a notice failed."""


class TooManyMails(Exception):
    """Another code may be sent in `wait_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        super().__init__("too many codes were requested")
        self.wait_s = wait_s
