"""Lists the packages that pip installed into the user site: exact versions and sources."""

from __future__ import annotations

import ast
import json
import site
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType
from typing import Any

from minicluster.capture.cell import CellSource
from minicluster.capture.modules import imports_of
from minicluster.client.client import JobServiceClient
from minicluster.errors import MiniclusterError
from minicluster.wire import Image, Pin
from minicluster.wire.images import plain_name


class NotReplayable(MiniclusterError):
    """A package cannot be installed elsewhere: it came from a folder or file of this machine."""


@dataclass(frozen=True)
class Addition:
    """A package with its import names."""

    name: str
    version: str
    origin: str
    modules: frozenset[str]

    @property
    def plain_name(self) -> str:
        return plain_name(self.name)

    def pin(self) -> Pin:
        """Return the pin that installs it again. Raises NotReplayable."""
        return Pin(name=self.name, version=self.version, source=_source(self) if self.origin else "")


def user_site() -> Path | None:
    """Return the user site, the folder of `pip install --user`, if it is enabled and exists."""
    folder = Path(site.getusersitepackages())
    return folder if site.ENABLE_USER_SITE and folder.is_dir() else None


def additions(folder: Path | None) -> tuple[Addition, ...]:
    """Return the packages installed in a folder, sorted by name."""
    if folder is None:
        return ()
    found = {one.plain_name: one for one in map(_addition, distributions(path=[str(folder)]))}
    return tuple(found[name] for name in sorted(found))


def pins(folder: Path | None) -> tuple[Pin, ...]:
    """Return pins that install all of the folder's packages again, without others. Raises NotReplayable."""
    return tuple(one.pin() for one in additions(folder))


def _addition(package: Distribution) -> Addition:
    name = package.metadata["Name"]
    origin = package.read_text("direct_url.json") or ""
    return Addition(name, package.version, origin, frozenset(_modules(package)))


def _modules(package: Distribution) -> Iterator[str]:
    for file in package.files or ():
        first = file.parts[0]
        if len(file.parts) > 1 and not first.endswith((".dist-info", ".data")):
            yield first
        elif first.endswith((".py", ".so")):
            yield first.partition(".")[0]


def _source(package: Addition) -> str:
    """Return pip's direct reference to a package that is not from an index. Raises NotReplayable."""
    data = json.loads(package.origin)
    url = str(data["url"])
    if url.startswith("file:") or "dir_info" in data:
        raise NotReplayable(
            f"{package.name} was installed from this machine ({url}): nobody else has that.",
            f"Install it from an index or a repository, or: %pip uninstall -y {package.name}, and put its "
            "modules beside the notebook. They travel with each cell.",
        )
    part = f"#subdirectory={data['subdirectory']}" if data.get("subdirectory") else ""
    if "vcs_info" in data:
        return f"{data['vcs_info']['vcs']}+{url}@{data['vcs_info']['commit_id']}{part}"
    return url + part


# Packages that a cell uses and that the user installed with pip here: the ranks' image may lack them.


def pins_to_install() -> tuple[str, ...]:
    """Return the pins of all packages in the user site, as JSON. Raises NotReplayable."""
    return tuple(pin.model_dump_json(exclude_defaults=True) for pin in pins(user_site()))


def packages_beyond(image: str, service: JobServiceClient) -> tuple[Addition, ...]:
    """Return the packages of the user site that an image lacks, or has in another version."""
    installed = additions(user_site())
    return not_in(installed, _packages_of(image, service)) if installed else ()


def warn_missing_packages(
    cell: CellSource, namespace: Mapping[str, Any], lacking: Iterable[Addition]
) -> None:
    """Print, before ranks start, which packages of the cell they will lack."""
    if used := used_packages(cell, namespace, lacking):
        print(notice(used))  # noqa: T201


def used_packages(
    cell: CellSource, namespace: Mapping[str, Any], packages: Iterable[Addition]
) -> tuple[Addition, ...]:
    """Return the packages that a cell imports, or that define a name that the cell reads."""
    modules = imports_of(ast.parse(cell.source))
    modules |= {_module(namespace[name]) for name in cell.reads if name in namespace}
    return tuple(one for one in packages if one.modules & modules)


def not_in(installed: Iterable[Addition], packages: Iterable[Pin]) -> tuple[Addition, ...]:
    """Return the packages that an image lacks in this version."""
    there = {(pin.plain_name, pin.version) for pin in packages}
    return tuple(one for one in installed if (one.plain_name, one.version) not in there)


def notice(lacking: Iterable[Addition]) -> str:
    names = [one.name for one in lacking]
    was, them = ("was", "it") if len(names) == 1 else ("were", "them")
    return (
        f"{', '.join(names)} {was} installed with pip here, the ranks do not have {them}: "
        f"%distribute publish NAME makes an image with {them}, --sync-env installs {them} for this job."
    )


def _packages_of(image: str, service: JobServiceClient) -> tuple[Pin, ...]:
    """Return all packages that an image adds to its base."""
    digest = image.rpartition("@")[2]
    for one in service.images().images:
        if image == one.name or digest == one.digest:
            return _whole(one, service).packages
    return ()


def _whole(image: Image, service: JobServiceClient) -> Image:
    """Return an image with its full list of packages: a list of images may have only some of them."""
    if not image.more_packages:
        return image
    return Image.model_validate_json(service.ask("GET", f"api/images/{image.digest}").content)


def _module(value: object) -> str:
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or type(value).__module__).partition(".")[0]
