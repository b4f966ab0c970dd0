"""What a cell uses that was installed with pip here, and that the ranks' image may lack."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from minicluster.capture.cell import CellSource
from minicluster.capture.modules import imports_of
from minicluster.client.client import Service
from minicluster.publishing.site import Addition, additions, pins, user_site
from minicluster.wire import Image, Pin


def travelling() -> tuple[str, ...]:
    """Return the pins of all that was installed here. Raises NotReplayable."""
    return tuple(pin.model_dump_json(exclude_defaults=True) for pin in pins(user_site()))


def tell(cell: CellSource, namespace: Mapping[str, Any], service: Service, image: str) -> None:
    """Print what the ranks will not have, before they start."""
    used = used_additions(cell, namespace, user_site())
    lacking = not_in(used, _packages_of(image, service)) if used else ()
    if lacking:
        print(notice(lacking))  # noqa: T201


def used_additions(
    cell: CellSource, namespace: Mapping[str, Any], folder: Path | None
) -> tuple[Addition, ...]:
    """Return the packages of a folder that a cell imports, or uses by a name of the notebook."""
    modules = imports_of(ast.parse(cell.source))
    modules |= {_module(namespace[name]) for name in cell.reads if name in namespace}
    return tuple(one for one in additions(folder) if one.modules & modules)


def not_in(used: Iterable[Addition], packages: Iterable[Pin]) -> tuple[Addition, ...]:
    """Return those that an image does not have in this version."""
    there = {(pin.plain_name, pin.version) for pin in packages}
    return tuple(one for one in used if (one.plain_name, one.version) not in there)


def notice(lacking: Iterable[Addition]) -> str:
    names = [one.name for one in lacking]
    was, them = ("was", "it") if len(names) == 1 else ("were", "them")
    return (
        f"{', '.join(names)} {was} installed with pip here, the ranks do not have {them}: "
        f"%distribute publish NAME makes an image with {them}, --sync-env installs {them} for this job."
    )


def _packages_of(image: str, service: Service) -> tuple[Pin, ...]:
    """Return all packages that an image has more than its base."""
    digest = image.rpartition("@")[2]
    for one in service.images().images:
        if image == one.name or digest == one.digest:
            return _whole(one, service).packages
    return ()


def _whole(image: Image, service: Service) -> Image:
    """Return an image of a list with all of its packages."""
    if not image.more_packages:
        return image
    return Image.model_validate_json(service.ask("GET", f"api/images/{image.digest}").content)


def _module(value: object) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or type(value).__module__).partition(".")[0]
