"""Which contexts of `with` are known to swallow no error; behind any other a cell may go on half done."""

from __future__ import annotations

import ast

_MODULES = frozenset({"torch", "warnings", "tempfile", "tqdm"})
_FILES = ("open", "File", "ZipFile", "TemporaryDirectory", "NamedTemporaryFile")
_WAITING = ("Lock", "Pool", "ThreadPoolExecutor", "ProcessPoolExecutor", "tqdm", "catch_warnings")
_TRAINING = (
    *("no_grad", "enable_grad", "set_grad_enabled", "inference_mode", "autocast", "detect_anomaly"),
    *("device", "profile", "record_function", "no_sync", "accumulate"),
)
_NAMES = frozenset([*_FILES, *_WAITING, *_TRAINING])
"""By the last part of what is called: `file.open()`, `model.no_sync()`."""


def lets_errors_through(context: ast.expr) -> bool:
    """Say whether an error inside of the context surely leaves it."""
    called = context.func if isinstance(context, ast.Call) else context
    path = ast.unparse(called).split(".")
    return path[0] in _MODULES or path[-1] in _NAMES
