"""Shows the progress of a push as one line that is updated in place."""

from __future__ import annotations

import threading
import time

from minicluster.datasets.folder import Folder
from minicluster.datasets.push import PushState
from minicluster.wire import DataSet

_EACH_S, _EACH_IN_TERMINAL_S = 0.25, 5.0


def sizes(size_bytes: float) -> str:
    """Format a size in bytes for people."""
    for unit, one in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size_bytes >= one:
            return f"{size_bytes / one:,.1f} {unit}"
    return f"{size_bytes:.0f} bytes"


class UploadProgress:
    """Shows one push: in the cell's output in a notebook, as lines in a terminal."""

    def __init__(self, name: str, folder: Folder) -> None:
        from IPython.core.getipython import get_ipython
        from IPython.display import display

        in_kernel = getattr(get_ipython(), "kernel", None) is not None
        self._each_s = _EACH_S if in_kernel else _EACH_IN_TERMINAL_S
        self._name = name
        self._folder = folder
        self._began = time.monotonic()
        self._shown_at = 0.0
        self._lock = threading.Lock()
        self._line = ""
        self._handle = display(self, display_id=True)

    def __repr__(self) -> str:
        return self._line or f"{self._name}: reading {len(self._folder.files):,} files …"

    def tell(self, now: PushState) -> None:
        """Show the progress, at most a few times a second."""
        with self._lock:
            at = time.monotonic()
            if at - self._shown_at < self._each_s:
                return
            self._shown_at = at
        share = 100 * now.done_bytes / max(1, now.total_bytes)
        rate = now.done_bytes / max(0.1, at - self._began)
        left_s = (now.total_bytes - now.done_bytes) / max(1.0, rate)
        self._show(
            f"{self._name}: {share:.0f} % of {sizes(now.total_bytes)}, {sizes(now.sent_bytes)} sent, "
            f"{sizes(rate)}/s, {left_s:.0f} s left"
        )

    def done(self, now: PushState, kept: DataSet) -> None:
        there = now.total_bytes - now.sent_bytes
        known = f", {sizes(there)} were there already" if there else ""
        pieces = "1 piece" if now.sent_pieces == 1 else f"{now.sent_pieces} pieces"
        files = "1 file" if kept.files == 1 else f"{kept.files:,} files"
        lines = [
            f"{self._name}: {files}, {sizes(kept.size_bytes)} in "
            f"{time.monotonic() - self._began:.1f} s: {sizes(now.sent_bytes)} sent in {pieces}{known}.",
            f"Use it: %%distribute --data {self._name}, and in the cell mc.data({self._name!r})",
        ]
        if kept.shared:
            lines.append(f"It is shared: others name it {kept.owner}/{kept.name}")
        if self._folder.left_out:
            some = ", ".join(self._folder.left_out[:3])
            lines.append(f"Left out, since they are no files: {some} ({len(self._folder.left_out)} in all)")
        self._show("\n".join(lines))

    def broke(self, now: PushState, error: BaseException) -> None:
        why = "stopped" if isinstance(error, KeyboardInterrupt) else "did not get through"
        self._show(
            f"{self._name}: {why} after {sizes(now.done_bytes)} of {sizes(now.total_bytes)}. The same line "
            "again goes on from there."
        )

    def _show(self, line: str) -> None:
        self._line = line
        if self._handle is not None:
            self._handle.update(self)
