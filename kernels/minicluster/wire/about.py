"""What both sides of a connection run, so that what does not fit is told before anything is sent."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from minicluster.wire.base import Message
from minicluster.wire.bounds import VersionText


class Versions(Message):
    """Of one Python environment; "" is a package that it does not have."""

    python: VersionText = ""
    minicluster: VersionText = ""
    cloudpickle: VersionText = ""
    torch: VersionText = ""

    @classmethod
    def here(cls) -> Versions:
        """Return those of this environment, read from its files: nothing is imported."""
        packages = ("minicluster", "cloudpickle", "torch")
        return cls(python=platform.python_version(), **{name: _installed(name) for name in packages})

    @property
    def python_minor(self) -> str:
        """Return 3.12 of 3.12.1: functions and classes by value do not cross it."""
        return ".".join(self.python.split(".")[:2])


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


class About(Message):
    """GET api/about?image=: whom the token is for, and what is on the other side.

    scopes: of the token, as the hub resolves them. release: of minicluster, where the hub is.
    ranks: what ranks have in that image (the cluster's own if none is named); None as long as no task
        ran in it. (The engine `local` knows it from the start.)
    """

    user: str
    scopes: tuple[str, ...] = ()
    wire_version: int
    release: str
    ranks: Versions | None = None
