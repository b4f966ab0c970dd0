"""What an attempt needs on its node before its ranks are forked."""

from __future__ import annotations

import asyncio

from minicluster.errors import MiniclusterError
from minicluster.capture.payload import PayloadDamaged
from minicluster.wire import RunOrder

from minicluster.runtime.agent import bundles, data_folders, packages
from minicluster.runtime.agent.link import Link, ServiceRefused
from minicluster.runtime.diagnosis.connectivity import Meeting
from minicluster.runtime.agent.parent import Parent
from minicluster.runtime.rank.parts import PartStore
from minicluster.runtime.paths import AttemptPaths, write_whole
from minicluster.runtime.settings import AgentSettings


class AttemptImpossible(MiniclusterError):
    """The attempt's ranks cannot be started here."""


class Preparation:
    """Lays out the order, the cell, its files, packages and data sets."""

    def __init__(self, order: RunOrder, paths: AttemptPaths, settings: AgentSettings, link: Link) -> None:
        self._order = order
        self._paths = paths
        self._settings = settings
        self._link = link

    async def run(self, parent: Parent, meeting: Meeting) -> None:
        """Prepare all, and wait for the other nodes. Raises AttemptImpossible, OSError."""
        await parent.usable()
        if parent.broken:
            raise AttemptImpossible(f"No rank can start on {self._settings.node}: {parent.broken}.")
        write_whole(self._paths.order, self._order.model_dump_json().encode())
        try:
            await data_folders.show(self._order.data)
        except data_folders.NoDataHere as error:
            raise AttemptImpossible(f"No data sets on {self._settings.node}: {error}.") from error
        await asyncio.gather(meeting.reach_all(), self._fetch_cell())

    async def _fetch_cell(self) -> None:
        link, paths, order = self._link, self._paths, self._order
        try:
            await link.fetch_in_time(order.payload_sha256, paths.payload)
            await PartStore(self._settings.scratch).bring(order.parts, link)
            await packages.install(paths.payload, self._settings.scratch, order.env)
            if order.bundle_sha256:
                await link.fetch_in_time(order.bundle_sha256, paths.bundle)
                await asyncio.to_thread(bundles.lay_out, paths)
        except (ServiceRefused, PayloadDamaged) as error:
            raise AttemptImpossible(f"The cell could not be fetched. {error}") from error
