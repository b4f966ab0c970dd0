"""The pipes between a replica's HTTP server and the process of its model, with a thread at the other end."""

from __future__ import annotations

import asyncio
import threading
from queue import Empty
from typing import Any

import pytest

pytest.importorskip("litserve")

from minicluster.runtime.serving.pipes import AnswerPipe, RequestPipe, pipes

LARGE = b"x" * (3 << 20)
"""More than a pipe holds."""
WITHIN_S = 60


def echo(requests: RequestPipe, answers: AnswerPipe) -> None:
    """Send each request back, until one is None."""
    while (request := requests.get()) is not None:
        answers.send(request, consumer_id=0)


async def test_each_request_comes_back_whole_and_in_order() -> None:
    requests, answers = pipes()
    sent: list[Any] = [("short", 1), LARGE, ("short", 2), LARGE + b"y", *range(100)]
    for one in sent:
        requests.put(one)  # Nobody reads yet, and it does not wait.
    model = threading.Thread(target=echo, args=(requests, answers), daemon=True)
    model.start()
    async with asyncio.timeout(WITHIN_S):
        assert [await answers.areceive(0) for _ in sent] == sent
    requests.put(None)
    await asyncio.to_thread(model.join, WITHIN_S)
    assert not model.is_alive()


async def test_an_empty_pipe_says_so() -> None:
    requests, _ = pipes()
    with pytest.raises(Empty):
        requests.get_nowait()
    with pytest.raises(Empty):
        requests.get(timeout=0.001)
    requests.put("one")
    assert requests.get(timeout=WITHIN_S) == "one"


async def test_what_cannot_be_sent_does_no_harm_to_the_next_request() -> None:
    requests, _ = pipes()
    with pytest.raises(TypeError):
        requests.put(threading.Lock())
    requests.put("next")
    assert requests.get(timeout=WITHIN_S) == "next"
