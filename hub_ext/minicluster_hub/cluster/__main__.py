"""`python -m minicluster_hub.cluster`: the hub image's entry point."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from minicluster_hub.cluster.commands.options import parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the arguments ask for; return the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["run"]:
        # A service starts: nothing that only commands need is imported.
        return import_module("minicluster_hub.cluster.entry").run(words[1:])
    if words[:1] == ["simulate"]:
        # Needs no cluster, not even Docker.
        return import_module("minicluster_hub.simulator.command").run(words[1:])
    if words[:1] == ["policy"]:
        # Speaks to the job service, wherever that is.
        return import_module("minicluster_hub.cluster.commands.policy").run(words[1:])
    given = parse(words)
    from minicluster_hub.cluster.commands.dispatch import do

    return do(given)


if __name__ == "__main__":
    sys.exit(main())
