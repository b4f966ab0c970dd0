"""An exception at the n-th await of the service's own tasks, as a cancellation or a defect would bring it."""

import asyncio
import types

_SERVICE = ("Reconciler.", "Executor.", "ChaosEngine.")
_ONLY_SLEEPS = "Reconciler._listen"
"""Nothing but a sleep can fail there; without it, silent agents are not noticed any more."""


class Strike:
    """Counts the awaits of the service's tasks on a loop, and raises at one of them, once."""

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
