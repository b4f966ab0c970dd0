"""Simulated machines: processes that start and die, and an engine that sees them as a Swarm does.

The service under test is real; the machines are not, so that a thousand lives of a cluster take a minute.
tests/lab has real engines with real faults.
"""

import asyncio
from dataclasses import dataclass, field, replace

from minicluster_hub.engines.base import Engine, EngineError, TaskRefused
from minicluster_hub.engines.capabilities import Lighthouses
from minicluster_hub.jobs.records import LighthouseView, NodeView, TaskView

SEEN_AFTER_S = 11.0
"""How long an engine shows a node as up that does not answer."""


@dataclass
class Machine:
    """power: it is on. link: its cable is plugged in. frozen: its processes are frozen."""

    name: str
    slots: int = 2
    power: bool = True
    link: bool = True
    frozen: bool = False
    unreached_since: float | None = None

    @property
    def reached(self):
        return self.power and self.link and not self.frozen


@dataclass
class Process:
    """A task's container. `doomed`: the engine ends it once its machine can be reached."""

    launch: object
    machine: Machine
    waiting: bool = False
    alive: bool = True
    doomed: bool = False
    forgotten: bool = False
    lost_with_node: bool = False
    agent: object = None
    ranks: dict = field(default_factory=dict)

    @property
    def runs(self):
        return self.alive and not self.waiting


class Machines:
    """The state that outlives the service. `ever`: how often each task was started."""

    def __init__(self, loop, make_agent, count=3):
        self.loop = loop
        self.make_agent = make_agent
        self.nodes = {f"node-{i}": Machine(f"node-{i}") for i in range(1, count + 1)}
        self.processes = {}
        self.lighthouses = {}
        self.ever = {}
        self.engine = None
        self.refusals = 0
        self.failures = 0
        self.slow_s = 0.05

    def living(self):
        return [one for one in self.processes.values() if one.runs]

    def launch(self, launch):
        machine = self.nodes[launch.node]
        process = Process(launch, machine)
        self.processes[launch.task_id] = process
        self.ever[launch.task_id] = self.ever.get(launch.task_id, 0) + 1
        process.waiting = not machine.reached
        if not process.waiting:
            self._begin(process)

    def _begin(self, process):
        process.waiting = False
        process.agent = self.make_agent(process)

    def end_process(self, process, *, with_node=False):
        process.alive = False
        process.lost_with_node = with_node
        process.ranks.clear()
        self.changed()

    def power_off(self, name):
        machine = self.nodes[name]
        machine.power = False
        for process in self.processes.values():
            if process.machine is machine and process.runs:
                self.end_process(process, with_node=True)
        self._unreached(machine)

    def cut(self, name):
        self.nodes[name].link = False
        self._unreached(self.nodes[name])

    def freeze(self, name):
        self.nodes[name].frozen = True
        self._unreached(self.nodes[name])

    def heal(self, name):
        """Bring a machine back: first, processes that the engine gave up meanwhile are ended."""
        machine = self.nodes[name]
        machine.power = machine.link = True
        machine.frozen = False
        machine.unreached_since = None
        for process in [one for one in self.processes.values() if one.machine is machine]:
            process.lost_with_node = False  # its engine reports it now
            if process.doomed and process.alive:
                self.end_process(process)
            elif process.waiting and process.alive:
                self._begin(process)
        self.changed()

    def _unreached(self, machine):
        if machine.unreached_since is None:
            machine.unreached_since = self.loop.time()
        self.loop.call_later(SEEN_AFTER_S + 0.1, self.changed)
        self.changed()

    def counts_as_up(self, machine):
        since = machine.unreached_since
        return since is None or self.loop.time() - since < SEEN_AFTER_S

    def kill_lighthouses(self):
        for gang_id, view in self.lighthouses.items():
            self.lighthouses[gang_id] = replace(view, alive=False)
        self.changed()

    def changed(self):
        if self.engine is not None:
            self.engine.on_change()


class ChaosEngine(Engine):
    """An engine that sees the machines late, is slow, and fails at times."""

    def __init__(self, machines):
        super().__init__()
        self.machines = machines
        self.lighthouses = ChaosLighthouses(self)

    async def open(self):
        await asyncio.sleep(self.machines.slow_s)

    async def start(self, launch):
        await asyncio.sleep(self.machines.slow_s)
        if self.machines.refusals:
            self.machines.refusals -= 1
            raise TaskRefused(f"no image on {launch.node}")
        self.fail_now_and_then()
        if launch.task_id not in self.machines.processes:
            self.machines.launch(launch)
        # The answer may come after the service has ended.
        await asyncio.sleep(self.machines.slow_s)
        self.on_change()

    async def end(self, task_id):
        await asyncio.sleep(self.machines.slow_s)
        self.fail_now_and_then()
        process = self.machines.processes.get(task_id)
        if process is not None:
            process.doomed = True
            if process.machine.reached or process.waiting:
                self.machines.end_process(process)
        self.on_change()

    def fail_now_and_then(self):
        if self.machines.failures:
            self.machines.failures -= 1
            raise EngineError("the engine does not answer")

    def tasks(self):
        known = self.machines.processes.items()
        return {task_id: self._view(task_id, one) for task_id, one in known if not one.forgotten}

    def _view(self, task_id, process):
        up = self.machines.counts_as_up(process.machine)
        if process.doomed and (not process.alive or not up):
            return TaskView(task_id, alive=False, clean=True, node_lost=not up)
        if not up and not process.waiting:
            return TaskView(task_id, alive=False, node_lost=True)
        seen_alive = process.alive or process.lost_with_node  # a dead machine does not report deaths
        return TaskView(task_id, alive=seen_alive, starting=process.waiting and seen_alive)

    def forget(self, task_id):
        self.machines.processes[task_id].forgotten = True

    def nodes(self):
        return tuple(
            NodeView(node.name, self.machines.counts_as_up(node), "127.0.0.1", ("cpu",) * node.slots)
            for node in self.machines.nodes.values()
        )

    async def close(self):
        pass


class ChaosLighthouses(Lighthouses):
    """Lighthouses that are as slow and unreliable as their engine."""

    def __init__(self, engine):
        self.engine = engine

    async def start(self, gang_id):
        machines = self.engine.machines
        await asyncio.sleep(machines.slow_s)
        self.engine.fail_now_and_then()
        machines.lighthouses[gang_id] = LighthouseView(gang_id, f"127.0.0.1:{20000 + gang_id}", True)
        self.engine.on_change()

    async def end(self, gang_id):
        await asyncio.sleep(self.engine.machines.slow_s)
        self.engine.machines.lighthouses.pop(gang_id, None)
        self.engine.on_change()

    def views(self):
        return self.engine.machines.lighthouses
