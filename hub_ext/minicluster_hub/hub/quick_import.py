"""Skips imports that the programs of the hub do not need.

JupyterHub and Jupyter Server read their event schemas with jsonschema. It imports `rfc3987_syntax`, which
compiles a grammar (0.9 s and 16 MB) to check strings of the format "iri". None of these schemas has such a
string. If the import fails, jsonschema works without it.

JupyterHub imports Alembic, Alembic imports Mako, and Mako the lexers of Pygments (6 MB), for error pages in
HTML that nobody here requests. If the import fails, Mako works without them.
"""

from __future__ import annotations

import sys
from typing import Any


def import_quickly(modules: dict[str, Any] = sys.modules) -> None:
    """Make these imports fail in this process: Python refuses a module whose entry is None."""
    for name in ("rfc3987_syntax", "mako.ext.pygmentplugin"):
        modules.setdefault(name, None)
