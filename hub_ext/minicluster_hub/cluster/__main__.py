"""`python -m minicluster_hub.cluster`: the hub image's entry point."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from minicluster_hub.cluster.commands.options import parse

_WITHOUT_CLUSTER = {
    "run": "cluster.entry",
    "simulate": "simulator.command",
    "policy": "cluster.commands.policy",
}
"""Commands that need no Docker: they start a service, or call a job service over the network."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask for; return the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words and words[0] in _WITHOUT_CLUSTER:
        return import_module(f"minicluster_hub.{_WITHOUT_CLUSTER[words[0]]}").run(words[1:])
    parsed = parse(words)
    from minicluster_hub.cluster.commands.dispatch import run

    return run(parsed)


if __name__ == "__main__":
    sys.exit(main())
