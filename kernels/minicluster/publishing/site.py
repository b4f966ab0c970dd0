"""What pip put into the user's own site: exact versions, and where each came from."""

from __future__ import annotations

import json
import site
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from pathlib import Path

from minicluster.errors import MiniclusterError
from minicluster.wire import Pin
from minicluster.wire.images import plain_name


class NotReplayable(MiniclusterError):
    """A package that nobody else could install: it came from a folder or a file of this machine."""


@dataclass(frozen=True)
class Addition:
    """A package with the names that it is imported by."""

    name: str
    version: str
    origin: str
    modules: frozenset[str]

    @property
    def plain_name(self) -> str:
        return plain_name(self.name)

    def pin(self) -> Pin:
        """Return what installs it again. Raises NotReplayable."""
        return Pin(name=self.name, version=self.version, source=_source(self) if self.origin else "")


def user_site() -> Path | None:
    """Return the folder that pip installs into for this user, if it counts here and is there."""
    folder = Path(site.getusersitepackages())
    return folder if site.ENABLE_USER_SITE and folder.is_dir() else None


def additions(folder: Path | None) -> tuple[Addition, ...]:
    """Return what is installed in a folder, by name."""
    if folder is None:
        return ()
    found = {one.plain_name: one for one in map(_addition, distributions(path=[str(folder)]))}
    return tuple(found[name] for name in sorted(found))


def pins(folder: Path | None) -> tuple[Pin, ...]:
    """Return what installs all of it again, without asking for anything more. Raises NotReplayable."""
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
    """Return pip's direct reference to a package that came from no index. Raises NotReplayable."""
    told = json.loads(package.origin)
    url = str(told["url"])
    if url.startswith("file:") or "dir_info" in told:
        raise NotReplayable(
            f"{package.name} was installed from this machine ({url}): nobody else has that.",
            f"Install it from an index or a repository, or: %pip uninstall -y {package.name}, and put its "
            "modules beside the notebook. They travel with each cell.",
        )
    part = f"#subdirectory={told['subdirectory']}" if told.get("subdirectory") else ""
    if "vcs_info" in told:
        return f"{told['vcs_info']['vcs']}+{url}@{told['vcs_info']['commit_id']}{part}"
    return url + part
