"""Engines by their names: entry points of the group `minicluster.engines`, of any installed package."""

from __future__ import annotations

from importlib.metadata import entry_points

from traitlets.utils.importstring import import_item

from minicluster_hub.engines.base import Engine

GROUP = "minicluster.engines"


class EngineNotFound(Exception):
    """No engine has this name, or it cannot be imported."""


def engine_class(name: str) -> type[Engine]:
    """Return the engine of that name, or at that class path (package.module.Class). Raises EngineNotFound."""
    installed = entry_points(group=GROUP)
    try:
        if name in installed.names:
            found = installed[name].load()
        elif "." in name:
            found = import_item(name.replace(":", "."))
        else:
            listed = ", ".join(sorted(installed.names)) or "none: install Minicluster again"
            raise EngineNotFound(f"there is no engine {name!r}; there are: {listed}")
    except (ImportError, AttributeError) as error:
        raise EngineNotFound(f"the engine {name!r} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise EngineNotFound(f"{name!r} is no engine: it has to be a subclass of {Engine.__module__}.Engine")
    return found
