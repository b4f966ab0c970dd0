"""Leaving the hub's database layer out of the job service: 20 MB and 0.3 s that it never uses."""

from __future__ import annotations

import sys
from types import ModuleType


def without_hub_database() -> None:
    """Make `jupyterhub.orm` an empty module in this process, before `jupyterhub.services.auth` comes.

    HubAuth compares scopes with functions that live beside the hub's own database code; only the
    hub itself ever calls those that read it.
    """
    sys.modules.setdefault("jupyterhub.orm", ModuleType("jupyterhub.orm"))
