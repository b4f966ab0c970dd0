"""pandas' frames and series: as a whole, since what is in them is pandas' own affair."""

from __future__ import annotations

from typing import Any

from minicluster.pickling.pandas_tables import taken_apart
from minicluster.changes.aspects import Aspect, Look, Moved, Undo
from minicluster.changes.digest import digest


class Table(Aspect):
    """Of a frame or a series: its columns, values, index and `attrs`."""

    code = "table"

    def look(self, obj: Any) -> Look:
        head, planes = taken_apart(obj)
        return Look((digest(head), tuple(digest(plane.raw()) for plane in planes)), [])

    def state(self, obj: Any, before: Look, now: Look, moved: Moved) -> Any:
        return [obj.copy(deep=False)]

    def put(self, obj: Any, state: Any) -> Undo:
        old = obj.__getstate__()
        obj.__setstate__(state[0].__getstate__())
        return lambda: obj.__setstate__(old)
