"""Three Docker hosts on one machine: real engines, a switch between them, and faults."""

from __future__ import annotations

from .lab import Lab, LabBusy
from .node import Node
from .processes import LabError

__all__ = ["Lab", "LabBusy", "LabError", "Node"]
