"""Leaving out an import that JupyterHub and Jupyter Server do not need: 0.9 s and 16 MB each time.

Both read their event schemas with jsonschema. That looks for `rfc3987_syntax`, which compiles a grammar
when it is imported, only to check strings of the format "iri"; no schema of theirs has one.
jsonschema does without it when the import fails.
"""

from __future__ import annotations

import sys
from typing import Any


def without_grammar(modules: dict[str, Any] = sys.modules) -> None:
    """Make `import rfc3987_syntax` fail in this process (None is Python's mark for that)."""
    modules.setdefault("rfc3987_syntax", None)
