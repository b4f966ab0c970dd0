"""Users of the lab's cluster with notebook servers, and the output of their cells."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from nbformat import NotebookNode

from .cluster import LabCluster, Person

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class People:
    """Users by name, each created on first request."""

    cluster: LabCluster
    _passwords: dict[str, str] = field(default_factory=dict)

    @asynccontextmanager
    async def logged_in(self, name: str) -> AsyncIterator[Person]:
        if name not in self._passwords:
            self._passwords[name] = self.cluster.add_user(name)
        async with self.cluster.person(name, self._passwords[name]) as person:
            yield person

    @asynccontextmanager
    async def at_work(self, name: str, **choices: Any) -> AsyncIterator[Person]:
        """Yield a user with a running notebook server."""
        async with self.logged_in(name) as person:
            await person.start_server(**choices)
            try:
                yield person
            finally:
                await person.stop_server()


def shown_text(outputs: list[NotebookNode]) -> str:
    """Return a cell's whole output as text, including errors."""
    return _COLOUR.sub("", "\n".join(map(_text_of, outputs)))


def text(outputs: list[NotebookNode]) -> str:
    """Return the output of a cell that raised no error."""
    found = shown_text(outputs)
    assert not any(output.output_type == "error" for output in outputs), found
    return found


def error(outputs: list[NotebookNode]) -> str:
    """Return the error of a cell that raised one."""
    found = shown_text(outputs)
    assert any(output.output_type == "error" for output in outputs), found
    return found


def _text_of(output: NotebookNode) -> str:
    if output.output_type == "error":
        return "\n".join([*output.traceback, f"{output.ename}: {output.evalue}"])
    return str(output.get("text") or output.get("data", {}).get("text/plain", ""))
