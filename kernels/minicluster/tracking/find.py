"""mc.runs: the user's runs as a table."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minicluster.errors import MiniclusterError
from minicluster.train.calls import WrongCall, called_as

if TYPE_CHECKING:
    from minicluster.client.client import JobServiceClient
    from minicluster.tracking.table import RunTable
    from minicluster.wire import Run

_LIKE = 'mc.runs(), mc.runs(tag="baseline", limit=20) or mc.runs([67, 68])'
_PAGE = 100


class PandasMissing(MiniclusterError):
    """The table of runs needs pandas, which is not installed here."""


@called_as(_LIKE)
def runs(
    ids: Sequence[int] | int | None = None,
    *,
    tag: str = "",
    name: str = "",
    state: str = "",
    limit: int = 100,
) -> RunTable:
    """Return your runs as a pandas table, the newest first; or those with these numbers, in this order.

    tag, state: only runs with this tag, in this state. name: part of their name, note or a tag. The last
    value of each metric is a column: `metrics.loss`. `.curves("loss")` returns all values, `.plot("loss")`
    draws them.
    Raises PandasMissing, ServiceError, WrongCall.
    """
    if importlib.util.find_spec("pandas") is None:
        raise PandasMissing(
            "mc.runs() makes a pandas table, and pandas is not installed here.",
            "Install it: %pip install pandas. %distribute status needs no package.",
        )
    if not isinstance(limit, int) or limit < 1:
        raise WrongCall(f"mc.runs(limit={limit!r}): not a number above 0.", f"Like this: {_LIKE}")
    from minicluster.tracking.table import RunTable

    service = service_of_notebook()
    if ids is None:
        found = _search(service, {"tag": tag, "search": name, "state": state}, limit)
    else:
        found = [service.run(number).run for number in _numbers(ids)]
    return RunTable.of(found)


def service_of_notebook() -> JobServiceClient:
    """Return the connection that this notebook's magics use; without them, the default one."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    magics = shell.magics_manager.registry.get("Distribute") if shell is not None else None
    if magics is not None:
        return magics.service()
    from minicluster.client.connect import open_known

    return open_known()


def _numbers(ids: Sequence[int] | int) -> list[int]:
    wanted = [ids] if isinstance(ids, int) else list(ids)
    if not all(hasattr(one, "__index__") for one in wanted):
        raise WrongCall(f"mc.runs({ids!r}): not the numbers of runs.", f"Like this: {_LIKE}")
    # Numbers from a table are NumPy's.
    return list(dict.fromkeys(map(int, wanted)))


def _search(service: JobServiceClient, query: dict[str, str], limit: int) -> list[Run]:
    given: dict[str, str | int] = {key: value for key, value in query.items() if value}
    found: list[Run] = []
    while len(found) < limit:
        page = service.runs(**given, limit=min(_PAGE, limit - len(found)), offset=len(found))
        found += page.runs
        if not page.runs or len(found) >= page.total:
            break
    return found
