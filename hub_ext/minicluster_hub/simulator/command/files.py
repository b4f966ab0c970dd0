"""Traces and policies on disk."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from minicluster_hub.scheduling.own import CustomPlan, PolicyFailed, policy_in


def policy_file(path: Path) -> CustomPlan:
    """Return the policy in a file, which runs in this process. Raises PolicyFailed."""
    name = f"policy_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PolicyFailed(f"{path} is no Python file; a policy's name ends with .py")
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return policy_in(module, {})
    except PolicyFailed as failed:
        raise PolicyFailed(f"{path}: {failed}") from failed


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace by its path; see scheduling.traces.Trace."""

    path: Path

    def text(self) -> str:
        return self.path.read_text()

    def beside(self, path: str) -> str:
        return (self.path.parent / path).read_text()

    def names(self, path: str) -> list[str]:
        return sorted(entry.name for entry in (self.path.parent / path).iterdir())
