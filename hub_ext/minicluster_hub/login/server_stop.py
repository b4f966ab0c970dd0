"""Stopping the notebook servers of a person who may no longer come in."""

from __future__ import annotations

from typing import Any


async def stop_servers(handler: Any, user: Any) -> None:
    """Stop a user's notebook servers; one that is just starting or stopping is left to the next call."""
    for name, spawner in list(user.spawners.items()):
        if not spawner.active or spawner.pending:
            continue
        try:
            await handler.stop_single_user(user, name)
        except Exception:
            handler.log.exception(
                "The notebook server of %s, who was removed, could not be stopped", user.name
            )
