"""Raises an exception at the n-th await of the service's own tasks, as a cancellation or a bug would."""

import asyncio
import types

_SERVICE = ("Reconciler.", "Executor.", "ChaosEngine.")
_ONLY_SLEEPS = "Reconciler._listen"
"""Only a sleep can fail there; if it fails, silent agents are no longer noticed."""


class Strike:
    """Counts the awaits of the service's tasks on a loop, and raises once, at one of them."""

    def __init__(self, loop, at, error):
        self.awaits = 0
        self.at = at
        self.error = error
        loop.set_task_factory(self._make_task)

    @property
    def struck(self):
        return self.awaits >= self.at

    def _make_task(self, loop, coroutine, **more):
        name = coroutine.__qualname__
        ours = name.startswith(_SERVICE) and name != _ONLY_SLEEPS
        return asyncio.Task(self._counted(coroutine) if ours else coroutine, loop=loop, **more)

    async def _counted(self, coroutine):
        return await self._driven(coroutine)

    @types.coroutine
    def _driven(self, coroutine):
        error = None
        while True:
            try:
                waits = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            error = None
            self.awaits += 1
            if self.awaits == self.at:
                error = self.error()
                continue
            try:
                yield waits
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as raised:
                error = raised
