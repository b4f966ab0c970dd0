"""Leaving out imports that the programs of the hub do not need.

JupyterHub and Jupyter Server read their event schemas with jsonschema. That looks for `rfc3987_syntax`,
which compiles a grammar when it is imported (0.9 s and 16 MB), only to check strings of the format "iri";
no schema of theirs has one. jsonschema does without it when the import fails.

JupyterHub's tables bring Alembic, and that Mako, which brings the lexers of Pygments (6 MB) for the HTML
pages of its errors; nobody asks for one here. Mako does without them when the import fails.
"""

from __future__ import annotations

import sys
from typing import Any


def import_quickly(modules: dict[str, Any] = sys.modules) -> None:
    """Make those imports fail in this process (None is Python's mark for that)."""
    for name in ("rfc3987_syntax", "mako.ext.pygmentplugin"):
        modules.setdefault(name, None)
