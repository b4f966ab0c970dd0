"""What the pods of a gang share: a Secret with their tokens, and the walls of a NetworkPolicy.

Made with the gang's first pod and removed after its last one, also late.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

from minicluster_hub.engines.base import TaskLaunch
from minicluster_hub.engines.kubernetes.api_client.client import ApiConflict, ApiError, KubernetesApi
from minicluster_hub.engines.kubernetes.api_client.paths import Paths
from minicluster_hub.engines.kubernetes.names import GANG, GANG_LABEL, Names
from minicluster_hub.engines.kubernetes.spec import TaskSettings, network_policy_spec, secret_spec

LIGHTHOUSE_USER = -1
"""Holds a gang's walls as a task does; tasks count from 1."""


class GangObjects:
    """Which pods use each gang's objects."""

    def __init__(
        self,
        api: KubernetesApi,
        paths: Paths,
        names: Names,
        settings: Callable[[], TaskSettings],
        log: logging.Logger,
    ) -> None:
        self._api = api
        self._paths = paths
        self._settings = settings
        self._names = names
        self._log = log
        self._users: dict[int, set[int]] = {}
        self._walled: set[int] = set()
        """The gangs whose NetworkPolicy is known to be there."""
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    def add_user(self, gang_id: int, user_id: int) -> None:
        """Register a pod that uses its gang's objects: a task's id, or LIGHTHOUSE_USER."""
        self._users.setdefault(gang_id, set()).add(user_id)

    async def make(self, launch: TaskLaunch) -> None:
        """Put a task's token into its gang's Secret, and have the gang's walls. Raises ApiError."""
        # The walls first: by them, what was left is found, since we may not list Secrets.
        await self.wall(launch.gang_id, serves=launch.serves)
        # Each task is the manager of its own key, so that tasks that start together need not agree.
        path = self._paths.secret(self._names.gang(launch.gang_id))
        await self._api.apply(path, secret_spec(launch, self._names), f"task-{launch.task_id}")

    async def wall(self, gang_id: int, *, serves: bool = False) -> None:
        """Have the gang's NetworkPolicy. serves: the gang answers requests to a model. Raises ApiError."""
        async with self._locks[gang_id]:
            if gang_id in self._walled:
                return
            spec = network_policy_spec(gang_id, self._settings(), serves=serves)
            with suppress(ApiConflict):
                await self._api.create(self._paths.network_policies, spec)
            self._walled.add(gang_id)

    async def release(self, gang_id: int, user_id: int) -> None:
        """Remove the gang's objects if this was the last pod that uses them. Raises ApiError."""
        users = self._users.get(gang_id, set())
        users.discard(user_id)
        if users:
            return
        await self._remove(gang_id)
        if not self._users.get(gang_id):
            self._users.pop(gang_id, None)
            self._locks.pop(gang_id, None)

    async def find_unused(self) -> None:
        """Remove what an earlier job service left without a pod. Raises ApiError."""
        listing = await self._api.list_all(self._paths.network_policies, self._names.selector(GANG))
        found = {int(one["metadata"]["labels"][GANG_LABEL]) for one in listing.items}
        for gang_id in found - self._users.keys():
            try:
                await self._remove(gang_id)
            except ApiError as error:
                self._log.warning("what gang %s left is not removed yet: %s", gang_id, error)

    async def _remove(self, gang_id: int) -> None:
        name = self._names.gang(gang_id)
        async with self._locks[gang_id]:
            self._walled.discard(gang_id)
            await self._api.delete(self._paths.secret(name))
            await self._api.delete(self._paths.network_policy(name))
