"""How many e-mails go out: for each user, to each address that is not confirmed, and of the whole cluster."""

from __future__ import annotations

from minicluster_hub.support.rates import Buckets, Rate

_HOUR_S = 3600.0
_CODES = Rate(per_s=3 / _HOUR_S, burst=3.0)
"""Codes that one user may ask for."""
_CODES_THERE = Rate(per_s=3 / (24 * _HOUR_S), burst=3.0)
"""Codes that come to one address, whoever asks: its owner may have nothing to do with the cluster."""


class MailRates:
    """user_per_hour: notices of one user; a third of them may go at once. per_hour: mails of all."""

    def __init__(self, user_per_hour: int = 60, per_hour: int = 600) -> None:
        self._buckets = Buckets()
        self._user, self._all = _hourly(user_per_hour), _hourly(per_hour)

    def take_notice(self, owner: str) -> float:
        """Take one mail; return 0.0, or in how many seconds there is one."""
        return self._take((("notice", owner), self._user))

    def take_code(self, owner: str, address: str) -> float:
        """The same, of a mail with a code."""
        return self._take((("code", owner), _CODES), (("address", address.lower()), _CODES_THERE))

    def _take(self, *mine: tuple[tuple[str, str], Rate]) -> float:
        taken = (*mine, (("all", ""), self._all))
        wait_s = max(self._buckets.wait_s(key, rate) for key, rate in taken)
        if not wait_s:
            for key, rate in taken:
                self._buckets.charge(key, rate, 1.0)
        return wait_s


def _hourly(mails: int) -> Rate:
    return Rate(per_s=mails / _HOUR_S, burst=max(1.0, mails / 3))
