"""A rank that is a replica of a model: LitServe answers requests until the agent lets it leave."""

from __future__ import annotations

import os
from collections.abc import Callable

from minicluster.runtime.paths import AttemptPaths
from minicluster.serving.calling import NotServable
from minicluster.wire import RunOrder


def serve(order: RunOrder, paths: AttemptPaths, commands_fd: int, report: Callable[..., None]) -> None:
    """Answer requests until the agent has the replica leave. Raises NotServable.

    commands_fd: where the agent's lines come. report: called with an event for the agent.
    """
    assert order.serve is not None  # noqa: S101 - the caller looked
    if not order.serve_secret:
        raise NotServable("The order has no secret for the replica, so anybody could ask it.")
    try:
        from minicluster.runtime.serving.model_api import ModelAPI, ReplicaFiles
        from minicluster.runtime.serving.server import ReplicaServer
    except ImportError as error:
        raise NotServable(
            f"this image cannot serve models: {error}",
            "It lacks the package litserve: an admin installs minicluster[serve] in the image.",
        ) from error
    # What the model prints is in its log at once, and not when some KB have come together.
    os.environ["PYTHONUNBUFFERED"] = "1"
    files = ReplicaFiles(paths.payload, paths.folder.parent, paths.folder / "model-trouble")
    server = ReplicaServer(
        ModelAPI(order.serve, files),
        order.serve_secret,
        commands_fd,
        lambda port: report("replica", port=port, ready=True),
    )
    # The gang is this one task, so the address is its own.
    server.answer("127.0.0.1" if order.master_addr.startswith("127.") else "0.0.0.0")  # noqa: S104
