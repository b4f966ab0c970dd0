"""Fault-tolerant attempts on real agents: ranks are killed, frozen and added while others train."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from .live import Live, longest_pause_s, lost_steps, next_step_s, now, samples_of, show

pytest.importorskip("torchft")
pytestmark = pytest.mark.alone("on a busy machine the others are taken for lost meanwhile")
OTHERS = pytest.mark.full("half a minute each; in the gate ranks that send bf16 lose one")


async def test_survivors_step_on_when_a_rank_is_killed(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    await live.run(3, epochs=6)
    await live.until_step(1, 20)
    at = now()
    live.lose(0)
    await live.lead(1)
    await live.over()
    for rank in (1, 2):
        steps = live.took(rank)
        after_s, lost = next_step_s(steps, at, (1, 2)), lost_steps(steps)
        show(capsys, f"rank {rank}: next step {after_s:.2f} s after the kill, {lost} steps lost")
        assert lost <= 1
    assert "rank 0 is gone: 2 go on" in live.attempt.text(1)
    assert isinstance(live.result(), float)


@pytest.mark.full("tests/unit/train/test_fault_tolerant has it without ranks")
async def test_each_sample_of_an_epoch_is_seen_once(live: Live) -> None:
    await live.run(3, epochs=2, pause=0.03)
    await live.until_step(1, 8)
    live.lose(2)
    await live.over()
    everything = [one for rank in range(3) for one in live.took(rank)]
    for epoch in range(2):
        samples = samples_of(everything, epoch)
        assert set(samples) == set(range(240))
        assert len(samples) <= 240 + 1, (
            "only the last step may repeat a sample, where the ranks' parts differ"
        )


@pytest.mark.full("half a minute alone; in the gate a rank is lost")
async def test_a_new_rank_joins_live(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    await live.run(3, epochs=30)
    await live.until_step(0, 10)
    live.lose(1)
    await live.join()
    await live.until_step(3, 1)
    await live.lead(3)
    await live.over()
    joined = next(one for one in live.took(3) if one.counted)
    pause_s = longest_pause_s(live.took(0), joined.at - 1.0)
    show(capsys, f"joined at step {joined.step}; a survivor's longest pause then: {pause_s:.2f} s")
    assert joined.step > 10
    assert joined.members == (0, 2, 3)
    assert "rank 3 has joined: 3 go on" in live.attempt.text(0)
    ends = {rank: [one for one in live.took(rank) if one.counted][-1] for rank in (0, 2, 3)}
    assert len({(one.epoch, one.step) for one in ends.values()}) == 1
    # All ranks have the same model, so the new rank's result equals the others'.
    assert live.result() == live.printed_total(0)


@pytest.mark.parametrize(
    "comm",
    ["bf16", pytest.param("localsgd:period=4", marks=OTHERS), pytest.param("diloco:period=4", marks=OTHERS)],
)
async def test_ranks_communicate_less_and_lose_one(live: Live, comm: str) -> None:
    await live.run(3, comm, epochs=6)
    await live.until_step(1, 20)
    live.lose(0)
    await live.lead(1)
    await live.over()
    assert "rank 0 is gone: 2 go on" in live.attempt.text(1)
    assert live.result() == live.printed_total(1) == live.printed_total(2)


@pytest.mark.full("as test_a_new_rank_joins_live")
async def test_a_new_rank_joins_those_that_train_apart(live: Live) -> None:
    await live.run(3, "diloco:period=4,momentum=0.5", epochs=30)
    await live.until_step(0, 10)
    live.lose(1)
    await live.join()
    await live.until_step(3, 1)
    await live.lead(3)
    await live.over()
    assert next(one for one in live.took(3) if one.counted).step > 10
    assert live.result() == live.printed_total(0) == live.printed_total(2)


SLOW_AVERAGES = """
from minicluster.train.comm import first_steps
own = first_steps.FirstSteps.own
first_steps.FirstSteps.own = lambda steps: [0.001, 0.1, 0.1, WAY, 0.0] if any(own(steps)) else own(steps)
"""
"""As measured on a slow network, in which averaging weights (bf16: also halves of gradients) is fast."""
WEIGHTS, HALVES = "0.05, 0.0001", "0.0001, 0.0001"


@pytest.mark.parametrize("way", [WEIGHTS, HALVES])
async def test_auto_chooses_although_a_rank_is_lost(live: Live, way: str) -> None:
    await live.run(3, "auto", epochs=8, begin=SLOW_AVERAGES.replace("WAY", way))
    await live.until_step(1, 5)  # Among the steps that are timed.
    live.lose(0)
    await live.lead(1)
    await live.over()
    said = live.attempt.text(1)
    chosen = "localsgd:period=4,start=12" if way == WEIGHTS else "bf16"
    assert f"--comm {chosen}, which also repeats this run" in said
    assert "behaved otherwise" not in said
    assert live.result() == live.printed_total(1) == live.printed_total(2)


DISTURBED = """
def disturb(loss, step):
    while step == 14 and not os.path.exists(steps_file.name.rpartition("-")[0] + "-3"):
        time.sleep(0.05)
    if 22 <= step < 26:
        loss.data.fill_(float("nan"))
"""
"""The trial goes on when the fourth rank comes; the losses of its last steps are no numbers."""


@pytest.mark.full("as the one before")
@pytest.mark.parametrize("way", [WEIGHTS, HALVES])
async def test_a_rank_joins_a_trial_that_fails(live: Live, way: str) -> None:
    begin = SLOW_AVERAGES.replace("WAY", way) + DISTURBED
    await live.run(3, "auto", epochs=4, begin=begin, before="disturb(loss, session.step)", pause=0.1)
    await live.until_step(0, 4)
    live.lose(1)
    await live.join()
    await live.lead(3)
    await live.over()
    assert next(one for one in live.took(3) if one.counted).step < 22
    assert "The loss behaved otherwise than with plain DDP" in live.attempt.text(0)
    assert live.result() == live.printed_total(0) == live.printed_total(2)


RESUME = """
first = mc.resume(model, optimizer, loader)
start = loader.epoch
print("first", first, start, flush=True)
"""


@pytest.mark.full("as test_a_new_rank_joins_live, and it resumes")
async def test_a_rank_that_joins_resumes_where_the_others_are(live: Live) -> None:
    keep = "mc.checkpoint(model, optimizer, loader, step=session.step, every=5)"
    await live.run(3, epochs=30, begin=RESUME, after=keep)
    await live.until_step(0, 30)
    live.lose(1)
    await live.join()
    await live.until_step(3, 1)
    await live.over()
    first, start = map(int, live.attempt.text(3).split("first ")[1].split()[:2])
    steps = [one for one in live.took(3) if one.counted]
    assert first == steps[0].step
    assert steps[0].epoch in (start, start + 1)  # The epoch may have ended just then.
    assert start > 0
    assert steps[-1].epoch == live.took(0)[-1].epoch == 29


@pytest.mark.full("the same with a fault that is noticed later")
async def test_survivors_step_on_when_a_node_freezes(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    await live.run(3, epochs=12)
    await live.until_step(1, 20)
    at = now()
    frozen = live.cluster.processes(2)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    async with asyncio.timeout(60):
        while not any(one.counted and one.members == (0, 1) for one in live.took(0)):
            await asyncio.sleep(0.02)
    show(capsys, f"next step {next_step_s(live.took(0), at, (0, 1)):.2f} s after the freeze")
    live.lose(2)
    await live.over()
    assert lost_steps(live.took(0)) <= 1
