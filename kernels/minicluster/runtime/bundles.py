"""Files from beside the notebook, laid out as the ranks' working folder: see minicluster.bundle."""

from __future__ import annotations

from pathlib import Path

from minicluster.payload import PayloadDamaged, unpack
from minicluster.wire import relative_path


def unpack_bundle(bundle: Path, folder: Path) -> None:
    """Write a bundle's files, none of them elsewhere, and drop it. Raises PayloadDamaged, OSError."""
    head, files = unpack(bundle.read_bytes())
    bundle.unlink()
    folder.mkdir(parents=True)
    for name, data in files.items():
        try:
            path = folder / relative_path(name)
        except ValueError as error:
            raise PayloadDamaged(f"a bundle with the path {name!r}: {error}") from error
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if name in head["runnable"] else 0o644)
