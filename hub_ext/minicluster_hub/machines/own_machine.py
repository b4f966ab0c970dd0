"""Reads the job service's own machine, if the engine's nodes are that machine: no agent runs there then."""

from __future__ import annotations

import asyncio
import logging

from minicluster.machine.gpus import find_gpus
from minicluster.machine.reader import EACH_S, MachineReader
from minicluster.machine.system import SystemFiles
from minicluster_hub.machines.machines import Machines


async def read_own_machine(machines: Machines, log: logging.Logger) -> None:
    """Read until cancelled. Without such nodes it only waits."""
    if not machines.own_nodes:
        await asyncio.get_running_loop().create_future()
    # In a container with limits of its own, these are the machine.
    gpus = await asyncio.to_thread(find_gpus)
    reader = MachineReader(SystemFiles(own_limits=True), gpus)
    while True:
        try:
            # A GPU's driver may take its time; /proc does not.
            reading = await asyncio.to_thread(reader.read) if gpus else reader.read()
        except Exception:
            log.exception("the job service's machine was not read")
            reading = None
        if reading is not None:
            machines.receive(machines.own_nodes[:1], (reading,))
        await asyncio.sleep(EACH_S)
