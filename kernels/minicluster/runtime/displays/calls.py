"""The calls of `IPython.display`, on a rank: the same names, the same arguments."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from minicluster.runtime.displays.content import TEXT, Content, content_of, of_bundle
from minicluster.runtime.displays.publisher import Publisher


class Handle:
    """What display(..., display_id=True) gives: later, `update` shows something else in its place."""

    def __init__(self, calls: Calls, display_id: str) -> None:
        self.display_id = display_id
        self._calls = calls

    def display(self, obj: Any, **options: Any) -> None:
        self._calls.display(obj, display_id=self.display_id, **options)

    def update(self, obj: Any, **options: Any) -> None:
        self._calls.update_display(obj, display_id=self.display_id, **options)


class Calls:
    """display() and its relatives, bound to a rank's publisher."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher

    def display(
        self,
        *objs: Any,
        include: Any = None,
        exclude: Any = None,
        metadata: Any = None,
        transient: Any = None,
        display_id: Any = None,
        raw: bool = False,
        clear: bool = False,
        **kwargs: Any,
    ) -> Handle | None:
        """Show objects in this rank's tab of the cell's panel."""
        if display_id is None and transient:
            display_id = transient.get("display_id")
        if display_id is True or (display_id is None and not objs):
            display_id = uuid.uuid4().hex
        if clear:
            self._publisher.clear(wait=True)
        update = kwargs.get("update", False)
        for obj in objs:
            content = of_bundle(obj, metadata) if raw else content_of(obj)
            self._publish(_chosen(content, include, exclude), display_id, update)
        return None if display_id is None else Handle(self, display_id)

    def update_display(self, obj: Any, *, display_id: str, **options: Any) -> None:
        self.display(obj, display_id=display_id, **{**options, "update": True})

    def publish_display_data(
        self,
        data: Mapping[str, Any],
        metadata: Any = None,
        *,
        transient: Any = None,
        update: bool = False,
        **_: Any,
    ) -> None:
        self._publish(of_bundle(data, metadata), (transient or {}).get("display_id"), update)

    def clear_output(self, wait: bool = False) -> None:
        self._publisher.clear(wait=wait)

    def _publish(self, content: Content, display_id: str | None, update: bool) -> None:
        if update and display_id is not None:
            self._publisher.change(content, display_id)
        elif content.plain and display_id is None:
            print(content.text)  # noqa: T201 - a terminal's display() prints, too
        else:
            self._publisher.show(content, display_id or uuid.uuid4().hex)


def _chosen(content: Content, include: Any, exclude: Any) -> Content:
    wanted = set(content.data) if not include else {TEXT, *include}
    wanted -= set(exclude or ())
    content.data = {mime: shown for mime, shown in content.data.items() if mime in wanted}
    return content
