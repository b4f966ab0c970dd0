"""Builds the layer of an image: pip's files for a user's packages, placed in the image's environment.

The same packages always give the same bytes: files are sorted, and times, owners and compiled modules are
left out.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import platform
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from minicluster.publishing.pip import install
from minicluster.wire import LAYER_FILE, LAYER_ROOT, RECIPE_FILE, Pin, Recipe
from minicluster.wire.images import plain_name

OUTPUT = "MINICLUSTER_OUTPUT"
_COMPILED = "__pycache__"


class _Hashed:
    """Hashes bytes while it writes them to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        return self._file.write(data)


def cell_source(pins: Sequence[Pin]) -> str:
    """Return the cell of a publishing job."""
    text = json.dumps([pin.model_dump(exclude_defaults=True) for pin in pins])
    return f"from minicluster.publishing.layer import run\n\nrun({text!r})\n"


def run(text: str) -> None:
    """Make layer and recipe in the job's output folder."""
    make([Pin.model_validate(one) for one in json.loads(text)], Path(os.environ[OUTPUT]))


def make(pins: Sequence[Pin], output: Path) -> Recipe:
    """Install packages into a separate folder; write a layer and its recipe. Raises PipFailed."""
    with tempfile.TemporaryDirectory(prefix="minicluster-layer-") as scratch:
        base, report = Path(scratch, "base"), Path(scratch, "report.json")
        install(pins, base, report)
        diff_sha256 = write_layer(base, output / LAYER_FILE)
        packages = installed(json.loads(report.read_text()), pins)
    with (output / LAYER_FILE).open("rb") as file:
        layer_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    recipe = Recipe(
        packages=packages,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        machine=platform.machine(),
        layer_sha256=layer_sha256,
        layer_bytes=(output / LAYER_FILE).stat().st_size,
        diff_sha256=diff_sha256,
    )
    (output / RECIPE_FILE).write_text(recipe.model_dump_json(indent=1))
    return recipe


def write_layer(base: Path, target: Path) -> str:
    """Write all files below a folder as a layer; return the SHA-256 of the uncompressed layer."""
    with (
        target.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed,
    ):
        hashed = _Hashed(cast(BinaryIO, packed))
        with tarfile.open(fileobj=cast(BinaryIO, hashed), mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for path in _sorted(base):
                _add(archive, path, f"{LAYER_ROOT}/{path.relative_to(base).as_posix()}")
    return hashed.sha256.hexdigest()


def installed(report: dict[str, list[dict[str, dict[str, object]]]], pins: Sequence[Pin]) -> tuple[Pin, ...]:
    """Return the pins, with the hashes that pip reports for its downloads."""
    hashes: dict[str, str] = {}
    for one in report["install"]:
        archive = cast(dict[str, dict[str, str]], one["download_info"].get("archive_info") or {})
        hashes[plain_name(str(one["metadata"]["name"]))] = archive.get("hashes", {}).get("sha256", "")
    return tuple(pin.model_copy(update={"sha256": hashes.get(pin.plain_name, "")}) for pin in pins)


def _sorted(base: Path) -> Iterator[Path]:
    return iter(sorted((path for path in base.rglob("*") if _COMPILED not in path.parts), key=str))


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    if path.is_symlink():
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        archive.addfile(entry)
    elif path.is_dir():
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(entry)
    else:
        status = path.stat()
        entry.mode, entry.size = (0o755 if status.st_mode & 0o100 else 0o644), status.st_size
        with path.open("rb") as file:
            archive.addfile(entry, file)
