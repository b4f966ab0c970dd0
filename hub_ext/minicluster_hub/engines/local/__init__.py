"""The engine `local`: this machine seen as several nodes, each task a process group of its own."""

from minicluster_hub.engines.local.engine import LocalEngine

__all__ = ["LocalEngine"]
