"""Answers what the ranks of a trial ask: parameters from the job service, each asked for once per node."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from minicluster.runtime.agent.client import AgentClient, ServiceRefused, ServiceUnavailable, with_retries
from minicluster.wire.sweeps.trials import DrawAhead, DrawnParameter, LeaveTrial, SuggestParameter


class TrialRequests:
    """The questions of one attempt's ranks. All methods run in the agent's loop.

    What the ranks will probably ask for is drawn while they start, so that they need not wait for it.
    """

    def __init__(self, attempt: int, client: AgentClient) -> None:
        self._attempt = attempt
        self._client = client
        self._ahead: asyncio.Future[tuple[DrawnParameter, ...]] | None = None
        self._suggested: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._asking: set[asyncio.Task[None]] = set()

    def draw_ahead(self) -> None:
        """Have the service draw what it expects the ranks to ask for."""
        self._ahead = asyncio.ensure_future(self._draw_ahead())

    async def settle(self) -> None:
        """Wait until the service knows all that the ranks asked for."""
        await asyncio.gather(*self._suggested.values(), return_exceptions=True)

    def ask(self, question: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        """Call `answer` once the service has answered a rank's question."""
        task = asyncio.create_task(self._ask(question, answer))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    def close(self) -> None:
        for task in (*self._asking, *self._suggested.values(), *filter(None, [self._ahead])):
            task.cancel()

    async def _ask(self, question: dict[str, Any], answer: Callable[[dict[str, Any]], None]) -> None:
        try:
            body = {**question["body"], "attempt": self._attempt}
            found = await (self._leave(body) if question["what"] == "leave" else self._suggest(body))
        except (KeyError, TypeError, ValidationError) as error:
            found = {"error": f"The question was not understood: {error}"}
        except ServiceRefused as error:
            found = {"error": error.message}
        answer({"id": question.get("id"), **found})

    async def _suggest(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a parameter; the ranks of this node that ask for the same share one answer."""
        asked = SuggestParameter.model_validate(body)
        key = asked.model_dump_json()
        ahead = await asyncio.shield(self._ahead) if self._ahead else ()
        # The service is asked in any case: only what was asked for counts.
        if key not in self._suggested:
            self._suggested[key] = asyncio.ensure_future(self._from_service(asked))
        for one in ahead:
            if (one.name, one.among) == (asked.name, asked.among):
                return {"value": one.value}
        return await asyncio.shield(self._suggested[key])

    async def _draw_ahead(self) -> tuple[DrawnParameter, ...]:
        with suppress(ServiceRefused, ServiceUnavailable):
            return (await self._client.draw_ahead(DrawAhead(attempt=self._attempt))).drawn
        return ()

    async def _from_service(self, asked: SuggestParameter) -> dict[str, Any]:
        found = await with_retries(lambda: self._client.suggest(asked))
        return {"value": found.value}

    async def _leave(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = LeaveTrial.model_validate(body)
        await with_retries(lambda: self._client.leave(asked))
        return {}


class AnswerPipe:
    """The pipe on which a rank reads answers. read_fd: for the rank."""

    def __init__(self) -> None:
        self.read_fd, self._fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)

    def start(self) -> None:
        """Close our copy of the rank's end, after it went to the rank."""
        os.close(self.read_fd)
        self.read_fd = -1

    def send(self, message: dict[str, Any]) -> None:
        """Write a line. A rank that is gone, or that never reads, loses it."""
        with suppress(OSError):
            if self._fd >= 0:
                os.write(self._fd, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        for fd in (self._fd, self.read_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self.read_fd = -1
