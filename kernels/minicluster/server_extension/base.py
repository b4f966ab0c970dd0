"""What the extension's handlers share: requests to a job service, and where notebooks are on this server."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import ensure_async

from minicluster.errors import MiniclusterError
from minicluster.server_extension.clusters import Clusters
from minicluster.wire import NotebookCell


@dataclass(frozen=True)
class Place:
    """The notebooks of this server. paths: current notebook path by kernel id."""

    root: Path
    paths: Mapping[str, str]

    def path_of(self, origin: NotebookCell) -> str:
        """Return the current path of a cell's notebook on this server."""
        return self.paths.get(origin.kernel) or self._relative(origin.notebook)

    def _relative(self, notebook: str) -> str:
        path = Path(notebook)
        if path.is_absolute() and path.is_relative_to(self.root):
            return path.relative_to(self.root).as_posix()
        return posixpath.normpath(notebook.lstrip("/")) if notebook else ""

    def has(self, path: str) -> bool:
        return bool(path) and (self.root / path).is_file()


def kernels_paths(sessions: list[dict[str, Any]]) -> dict[str, str]:
    """Return each kernel's notebook path, from the session manager's list."""
    found = ((session.get("kernel") or {}, session.get("path") or "") for session in sessions)
    return {kernel["id"]: path for kernel, path in found if "id" in kernel}


class ClusterRequestHandler(APIHandler):
    """Base of handlers that call a job service; it passes the service's errors on."""

    auth_resource = "kernels"

    def initialize(self, clusters: Clusters) -> None:
        super().initialize()
        self._clusters = clusters

    def refuse(self, error: MiniclusterError) -> None:
        code = getattr(error, "code", "")
        self.set_status(404 if code in ("unknown_job", "unknown_cluster") else 502)
        self.finish(json.dumps({"message": str(error), "code": code}))

    async def place(self) -> Place:
        """Return where the notebooks of this server are now."""
        sessions = await ensure_async(self.session_manager.list_sessions())
        return Place(Path(getattr(self.contents_manager, "root_dir", "")), kernels_paths(sessions))
