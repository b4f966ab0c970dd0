"""Finds the running cell and its notebook, if the front end reports them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from minicluster.wire import NotebookCell

SERVER_VARIABLE = "MINICLUSTER_PANELS"
"""Our Jupyter server extension sets it for its kernels: the server's pages can draw panels."""

_SESSION_VARIABLE = "JPY_SESSION_NAME"
_KERNEL_ID = re.compile(r"kernel-([\w-]+)\.json$")
_IN_VS_CODE = "vscode-"


def running_cell(kernel: Any, environ: Mapping[str, str] = os.environ) -> NotebookCell | None:
    """Return the cell that an ipykernel kernel runs; None outside of a notebook."""
    if kernel is None:
        return None
    cell = _cell_id(kernel)
    notebook = environ.get(_SESSION_VARIABLE, "")[:4096]
    return NotebookCell(cell=cell, notebook=notebook, kernel=_kernel_id(kernel)) if cell or notebook else None


def page_draws_panels(kernel: Any, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the page that ran the cell draws panels without widgets.

    VS Code may use the same Jupyter server, but without JupyterLab's extensions.
    """
    cell = _cell_id(kernel)
    return bool(environ.get(SERVER_VARIABLE)) and bool(cell) and not cell.startswith(_IN_VS_CODE)


def _cell_id(kernel: Any) -> str:
    """Return the cell id that front ends such as JupyterLab add to the execute request."""
    request = kernel.get_parent() if kernel is not None else None
    cell_id = ((request or {}).get("metadata") or {}).get("cellId")
    return cell_id[:256] if isinstance(cell_id, str) else ""


def _kernel_id(kernel: Any) -> str:
    path = str(getattr(getattr(kernel, "parent", None), "connection_file", "") or "")
    found = _KERNEL_ID.search(path)
    return found.group(1)[:128] if found else ""


# The default name of a job: the notebook's name and the cell's execution number.


_LONGEST = 80


def cell_name(number: int, names: Mapping[str, Any]) -> str:
    """Return `quickstart [3]`; "" in a terminal. names: the notebook's variables.

    Jupyter passes the notebook's path in the environment, VS Code in a variable of the notebook.
    """
    text = os.environ.get("JPY_SESSION_NAME") or names.get("__vsc_ipynb_file__") or ""
    notebook = PurePath(str(text))
    return f"{notebook.stem[:_LONGEST]} [{number}]" if notebook.suffix == ".ipynb" else ""
