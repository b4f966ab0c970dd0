"""What `%pip install` must not replace where notebooks and the hub share one Python: what they all run on.

`pip install torchvision` brings the torch that it was built for: everybody on this cluster would then have
another torch. pip reads the file as constraints: it takes what fits, or says what does not.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

PACKAGE = "minicluster"
EXTRAS = ("hub", "notebook", "train", "fault-tolerant")
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra == ['\"]([^'\"]+)['\"]")


def pins() -> Iterator[str]:
    """Yield the installed version of each package that Minicluster itself asks for."""
    for requirement in metadata.requires(PACKAGE) or ():
        extra, name = _EXTRA.search(requirement), _NAME.match(requirement)
        if name is None or (extra is not None and extra[1] not in EXTRAS):
            continue
        try:
            yield f"{name[0]}=={metadata.version(name[0])}"
        except metadata.PackageNotFoundError:
            continue


def write_constraints(file: Path) -> None:
    """Write them for pip. The file is replaced at once: a pip that reads it meanwhile sees a whole one."""
    # Of this call alone: a whole class starts its servers in the same second.
    new = file.with_suffix(f".{secrets.token_hex(8)}")
    new.write_text("\n".join(["# What the cluster itself runs on.", *sorted(set(pins())), ""]))
    new.replace(file)


def for_pip(file: Path, others: str = "") -> str:
    """Return PIP_CONSTRAINT: pip splits it at spaces, so that a path with one has to be a URL."""
    return f"{others} {file.absolute().as_uri()}".strip()
