"""What stands between a notice and who should get it."""

from __future__ import annotations


class AddressRefused(Exception):
    """Notices may not go there; the message says why, the hint what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class NotSent(Exception):
    """It did not get there this time."""


class TooManyMails(Exception):
    """Another one may go in `wait_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        super().__init__("too many codes were asked for")
        self.wait_s = wait_s
