"""The searches of open sweeps, each made from the store when it is first needed. One thread runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from minicluster.wire.sweeps.sweeps import TrialState
from minicluster.wire.sweeps.trials import Among
from minicluster_hub.store import Store
from minicluster_hub.store.jobs.sweeps import ParameterRecord, SweepRecord, TrialRecord

if TYPE_CHECKING:
    from minicluster_hub.sweeps.search import Search

T = TypeVar("T")


class Searches:
    """Calls searches in a thread of their own: Optuna computes for milliseconds, and so the loop goes on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: ThreadPoolExecutor | None = None
        self._made: dict[int, Search] = {}

    async def draw_ahead(self, sweep: SweepRecord, trial: TrialRecord) -> TrialRecord:
        """Draw what a trial will probably ask for, and store it before anybody sees it."""

        def work(search: Search) -> TrialRecord:
            return self._store.sweeps.draw_ahead(trial, search.draw_ahead(trial.number))

        return await self._in_thread(sweep, work)

    async def suggest(
        self, sweep: SweepRecord, trial: TrialRecord, name: str, among: Among
    ) -> ParameterRecord:
        """Draw a parameter, and store it before anybody sees it. Raises SuggestRefused."""
        ahead = next((one for one in trial.ahead or () if (one.name, one.among) == (name, among)), None)

        def work(search: Search) -> ParameterRecord:
            value = search.suggest(trial.number, name, among, ahead and ahead.value)
            return self._store.sweeps.draw(trial, ParameterRecord(name, among, value))

        return await self._in_thread(sweep, work)

    async def report(
        self, sweep: SweepRecord, trial: TrialRecord, values: Sequence[tuple[float, float]]
    ) -> bool:
        """Take a trial's values; return whether it should end early."""
        return await self._in_thread(sweep, lambda search: search.report(trial.number, values))

    async def tell(self, sweep: SweepRecord, number: int, state: TrialState, value: float | None) -> None:
        """Take how a trial ended, after that was stored."""
        await self._in_thread(sweep, lambda search: search.tell(number, state, value))

    async def has_more(self, sweep: SweepRecord) -> bool:
        return await self._in_thread(sweep, lambda search: search.has_more())

    async def start(self, sweep: SweepRecord, number: int) -> None:
        await self._in_thread(sweep, lambda search: search.start(number))

    async def importance(self, sweep: SweepRecord) -> dict[str, float]:
        found = await self._in_thread(sweep, lambda search: search.importance())
        if sweep.state.over:
            self.forget(sweep.id)
        return found

    def forget(self, sweep_id: int) -> None:
        """Drop the search of a sweep that is over."""
        self._made.pop(sweep_id, None)

    def forget_all(self) -> None:
        """Have all searches made anew: another service may have led in between."""
        self._made.clear()

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

    async def _in_thread(self, sweep: SweepRecord, work: Callable[[Search], T]) -> T:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="minicluster-sweeps")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, lambda: work(self._search(sweep)))

    def _search(self, sweep: SweepRecord) -> Search:
        """Return a sweep's search; runs in the thread, where the first call imports Optuna."""
        if sweep.id not in self._made:
            from minicluster_hub.sweeps.search import History, Search

            queries = self._store.sweeps
            history = History(
                queries.trials(sweep.id), queries.parameters(sweep.id), queries.values(sweep.id)
            )
            self._made[sweep.id] = Search(sweep.settings, history)
        return self._made[sweep.id]
