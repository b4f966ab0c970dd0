"""The required behaviour of every engine: a suite, to be subclassed in the engine's test module.

    class TestSlurm(EngineConformance):
        @pytest.fixture
        def harness(self):
            yield SlurmHarness(...)

A harness creates engine objects for the same machines, and inspects the machines without the engine. Its
methods may block: the suite calls them in threads. Run this suite first for a new engine.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from minicluster_hub.engines.base import Engine, TaskLaunch, TaskRefused
from minicluster_hub.jobs.records import TaskView

from ...patience import WITHIN_S, eventually

GANG = 990_001
FIRST_TASK = 990_001
STEPS = 12
"""Number of initial steps of a start at which the suite interrupts it."""


class EngineHarness(ABC):
    """An engine's machines. Agents need no job service: they only have to keep running."""

    nodes: tuple[str, ...]
    """The names of at least three nodes, each with at least one free slot."""
    service_url = "http://127.0.0.1:1/"
    nodes_go_down = True
    """Whether the engine can tell that a lost node is down."""

    @abstractmethod
    def make(self) -> Engine:
        """Return a new engine that has not been opened."""

    @abstractmethod
    def agents(self, task_id: int) -> int:
        """Return the number of running agents of a task."""

    @abstractmethod
    def kill_agent(self, task_id: int) -> None:
        """Kill a task's agent by SIGKILL, without the engine."""

    @abstractmethod
    def shown(self, task_id: int) -> str:
        """Return what other users can read of a running task: environments, command lines, inspections."""

    @abstractmethod
    def lose(self, node: str) -> None:
        """Take a node away, with all its processes."""

    @abstractmethod
    def bring_back(self, node: str) -> None:
        """Bring a lost node back."""

    @abstractmethod
    def leftovers(self) -> list[str]:
        """Describe everything that exists of tasks or lighthouses."""


class Engines:
    """The engines of a test, one after the other, as with restarted job services."""

    def __init__(self, harness: EngineHarness) -> None:
        self.harness = harness
        self.changes = 0
        self._open: Engine | None = None

    async def opened(self) -> Engine:
        """Close the former engine; return a new one that has found the running tasks."""
        await self.close()
        self._open = engine = self.harness.make()
        engine.on_change = self._changed
        await engine.open()
        return engine

    async def close(self) -> None:
        if self._open is not None:
            await self._open.close()
            self._open = None

    def launch(self, number: int = 0, **changes: Any) -> TaskLaunch:
        """Return the launch of a gang's task; each task has its own node."""
        environment = {
            "task_id": FIRST_TASK + number,
            "gang_id": GANG,
            "owner": "ada",
            "node": self.harness.nodes[number],
            "slots": (0,),
            "token": f"secret-token-{number}",
            "service_urls": (self.harness.service_url,),
            "job_id": 1,
            "attempt_id": 1,
        }
        return TaskLaunch(**{**environment, **changes})

    async def running(self, engine: Engine, *launches: TaskLaunch) -> None:
        """Start tasks at the same time, and wait until their agents run."""
        await asyncio.gather(*(engine.start(launch) for launch in launches))
        for launch in launches:
            await eventually(lambda launch=launch: _runs(engine.tasks()[launch.task_id]))
            await self.look(lambda launch=launch: self.harness.agents(launch.task_id) == 1)

    async def look(self, seen: Callable[[], object]) -> None:
        """Wait until a condition on the machines holds."""
        async with asyncio.timeout(WITHIN_S):
            while not await asyncio.to_thread(seen):
                await asyncio.sleep(0.05)

    async def nothing_left(self, engine: Engine, *launches: TaskLaunch) -> None:
        """End tasks and forget them; check that nothing of them is left."""
        await asyncio.gather(*(engine.end(launch.task_id) for launch in launches))
        for launch in launches:
            assert engine.tasks()[launch.task_id].clean
            engine.forget(launch.task_id)
            assert launch.task_id not in engine.tasks()
        await self.look(lambda: not self.harness.leftovers())

    def _changed(self) -> None:
        self.changes += 1


def _runs(view: TaskView) -> bool:
    assert view.alive, f"the task ended: {view}"
    return not view.starting


class EngineConformance:
    """A subclass has a fixture `harness`."""

    @pytest.fixture
    async def engines(self, harness: EngineHarness) -> AsyncIterator[Engines]:
        """The test's engines; at the end, check that nothing is left."""
        engines = Engines(harness)
        yield engines
        engine = await engines.opened()
        await asyncio.gather(*map(engine.end, engine.tasks()))
        if engine.lighthouses:
            await asyncio.gather(*map(engine.lighthouses.end, engine.lighthouses.views()))
        await engines.look(lambda: not harness.leftovers())
        await engines.close()

    # --- nodes ----------------------------------------------------------------------------------

    async def test_an_open_engine_knows_its_nodes_and_their_slots(self, engines: Engines) -> None:
        engine = await engines.opened()
        known = {node.name: node for node in engine.nodes()}
        assert len(known) == len(engine.nodes()), "two nodes have one name"
        for name in engines.harness.nodes:
            assert known[name].open and known[name].address
            assert engine.task_address(1, name), "nobody reaches a model there"
            assert known[name].slot_kinds and set(known[name].slot_kinds) <= {"cpu", "gpu"}
        assert engine.tasks() == {}

    async def test_an_engine_that_was_never_opened_can_be_closed(self, engines: Engines) -> None:
        await engines.harness.make().close()

    # --- start and end --------------------------------------------------------------------------

    async def test_a_task_runs_from_its_start_to_its_end_and_leaves_nothing(self, engines: Engines) -> None:
        engine, launch = await engines.opened(), engines.launch()
        await engine.start(launch)
        assert engine.tasks()[launch.task_id].alive
        await engines.running(engine, launch)  # A second start of the same task does nothing.
        await engines.nothing_left(engine, launch)

    async def test_what_is_not_there_is_ended_already(self, engines: Engines) -> None:
        engine, launch = await engines.opened(), engines.launch()
        await engine.end(launch.task_id)
        await engines.running(engine, engines.launch(1))
        await engine.end(FIRST_TASK + 1)
        await engines.nothing_left(engine, launch, engines.launch(1))

    async def test_an_agent_that_ends_by_itself_is_told_and_its_task_waits_to_be_ended(
        self, engines: Engines
    ) -> None:
        engine, launch = await engines.opened(), engines.launch()
        await engines.running(engine, launch)
        before = engines.changes
        await asyncio.to_thread(engines.harness.kill_agent, launch.task_id)
        await eventually(lambda: not engine.tasks()[launch.task_id].alive)
        view = engine.tasks()[launch.task_id]
        assert not view.clean and not view.node_lost
        assert engines.changes > before, "the engine did not tell of it"
        await engines.nothing_left(engine, launch)

    async def test_a_node_that_is_not_there_is_a_refusal(self, engines: Engines) -> None:
        engine, launch = await engines.opened(), engines.launch(node="no-such-node")
        with pytest.raises(TaskRefused, match="no-such-node"):
            await engine.start(launch)
        await engines.nothing_left(engine, launch)

    # --- gangs ----------------------------------------------------------------------------------

    async def test_a_gang_starts_at_once_and_its_tasks_end_one_by_one_or_together(
        self, engines: Engines
    ) -> None:
        engine, gang = await engines.opened(), [engines.launch(number) for number in range(3)]
        await engines.running(engine, *gang)
        await engine.end(gang[1].task_id)
        assert [engine.tasks()[one.task_id].alive for one in gang] == [True, False, True]
        assert [await asyncio.to_thread(engines.harness.agents, one.task_id) for one in gang] == [1, 0, 1]
        await engines.nothing_left(engine, *gang)

    # --- a service that ends or is killed -----------------------------------------------------------

    async def test_a_new_engine_finds_what_runs_and_sees_it_end(self, engines: Engines) -> None:
        first, gang = await engines.opened(), [engines.launch(number) for number in range(2)]
        await engines.running(first, *gang)
        second = await engines.opened()
        assert {one.task_id for one in gang} == second.tasks().keys()
        assert all(_runs(view) for view in second.tasks().values())
        await second.start(gang[0])  # Nor does it start what it found.
        assert await asyncio.to_thread(engines.harness.agents, gang[0].task_id) == 1
        await asyncio.to_thread(engines.harness.kill_agent, gang[0].task_id)
        await eventually(lambda: not second.tasks()[gang[0].task_id].alive)
        assert second.tasks()[gang[1].task_id].alive
        await engines.nothing_left(second, *gang)

    async def test_a_start_that_was_cut_off_anywhere_leaves_what_a_new_engine_can_end(
        self, engines: Engines
    ) -> None:
        launch = engines.launch()
        for steps in range(STEPS):
            engine = await engines.opened()
            starting = asyncio.create_task(engine.start(launch))
            for _ in range(steps):
                await asyncio.sleep(0.01)
            over = starting.done()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            again = await engines.opened()
            await engines.running(again, launch)
            await engines.nothing_left(again, launch)
            if over:
                return

    # --- nodes that are lost ------------------------------------------------------------------------

    async def test_the_loss_of_a_node_takes_its_tasks_and_no_others(self, engines: Engines) -> None:
        engine, gang = await engines.opened(), [engines.launch(number) for number in range(3)]
        lost, *others = reversed(gang)
        await engines.running(engine, *gang)
        await asyncio.to_thread(engines.harness.lose, lost.node)
        try:
            await eventually(lambda: _is_lost(engine.tasks()[lost.task_id]))
            if engines.harness.nodes_go_down:
                await eventually(lambda: not _up(engine, lost.node))
            assert all(_runs(engine.tasks()[one.task_id]) for one in others)
            async with asyncio.timeout(WITHIN_S):
                await engine.end(lost.task_id)  # This waits for no node that is down.
            assert engine.tasks()[lost.task_id].clean
        finally:
            await asyncio.to_thread(engines.harness.bring_back, lost.node)
        await eventually(lambda: _up(engine, lost.node))
        await engines.nothing_left(engine, *gang)

    # --- secrets ------------------------------------------------------------------------------------

    async def test_a_token_is_in_no_environment_and_no_command_line(self, engines: Engines) -> None:
        engine, launch = await engines.opened(), engines.launch(token="not-for-other-eyes")
        await engines.running(engine, launch)
        shown = await asyncio.to_thread(engines.harness.shown, launch.task_id)
        assert str(launch.task_id) in shown, "this is not what is shown of the task"
        assert launch.token not in shown
        await engines.nothing_left(engine, launch)

    # --- capabilities -------------------------------------------------------------------------------

    async def test_lighthouses_if_it_has_them_stay_until_they_are_ended(self, engines: Engines) -> None:
        first = await engines.opened()
        if first.lighthouses is None:
            pytest.skip("this engine offers no lighthouses")
        await first.lighthouses.start(GANG)
        await first.lighthouses.start(GANG)
        view = first.lighthouses.views()[GANG]
        assert view.alive and ":" in view.address
        second = await engines.opened()
        assert second.lighthouses is not None
        assert second.lighthouses.views() == {GANG: view}
        await second.lighthouses.end(GANG)
        await second.lighthouses.end(GANG)
        assert second.lighthouses.views() == {}
        await engines.look(lambda: not engines.harness.leftovers())


def _is_lost(view: TaskView) -> bool:
    return view.node_lost or not view.alive


def _up(engine: Engine, name: str) -> bool:
    return any(node.up for node in engine.nodes() if node.name == name)
