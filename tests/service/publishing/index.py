"""A package index for tests: it builds wheels and serves them as PyPI does."""

from __future__ import annotations

import base64
import hashlib
import threading
import zipfile
from collections.abc import Mapping
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Index:
    """An index of the wheels in `folder`; it runs during the `with` block."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self._folder = folder
        handler = partial(_Quiet, directory=str(folder))
        self._server = ThreadingHTTPServer((host, 0), handler)
        self.url = f"http://{host}:{self._server.server_address[1]}/simple/"

    def __enter__(self) -> Index:
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add(self, name: str, version: str, files: Mapping[str, str], script: str = "") -> Path:
        """Add a wheel; script: MODULE:FUNCTION of a command with the package's name."""
        wheel = self._folder / "files" / f"{name}-{version}-py3-none-any.whl"
        wheel.parent.mkdir(parents=True, exist_ok=True)
        build_wheel(wheel, name, version, files, script)
        self._list(name)
        return wheel

    def remove(self, name: str, version: str) -> None:
        (self._folder / "files" / f"{name}-{version}-py3-none-any.whl").unlink()
        self._list(name)

    def _list(self, name: str) -> None:
        page = self._folder / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        there = sorted(path.name for path in (self._folder / "files").glob(f"{name}-*.whl"))
        page.write_text("".join(f'<a href="../../files/{file}">{file}</a>\n' for file in there))


def build_wheel(path: Path, name: str, version: str, files: Mapping[str, str], script: str = "") -> None:
    """Write a pure Python wheel."""
    info = f"{name}-{version}.dist-info"
    content = dict(files)
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if script:
        content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name} = {script}\n"
    lines = [f"{file},sha256={_hash(text)},{len(text)}" for file, text in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in content.items():
            archive.writestr(zipfile.ZipInfo(file), text)


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
