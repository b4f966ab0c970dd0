"""Delays of login attempts, threads for hashing, and the source address of a request."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace

import pytest
from tornado.httputil import HTTPHeaders

from minicluster_hub.login.origin import OriginFinder, block_of, client_address
from minicluster_hub.login.password_check import FairWorkers, LoginThrottle, TooManyAttempts, WorkersBusy


def turns(throttle: LoginThrottle, key: str, count: int, now: float) -> list[float]:
    """Return the waiting times of simultaneous tries, up to the first refusal."""
    waits = []
    for _ in range(count):
        try:
            waits.append(throttle.schedule(key, now))
        except TooManyAttempts:
            break
    return waits


def test_tries_at_the_same_moment_wait_one_after_the_other() -> None:
    throttle = LoginThrottle(free_attempts=3, longest_delay_s=10, longest_wait_s=30)
    assert turns(throttle, "ada", 200, now=100.0) == [0, 0, 0, 1, 3, 7, 15, 25]
    assert throttle.schedule("grace", now=100.0) == 0


def test_a_refusal_says_when_there_is_room_and_costs_nothing() -> None:
    throttle = LoginThrottle()
    turns(throttle, "ada", 200, now=0.0)
    with pytest.raises(TooManyAttempts) as first:
        throttle.schedule("ada", now=0.0)
    with pytest.raises(TooManyAttempts) as second:
        throttle.schedule("ada", now=0.0)
    assert first.value.retry_s == second.value.retry_s > 0
    assert throttle.schedule("ada", now=first.value.retry_s) <= 30.0


def test_whoever_waits_is_through_after_half_a_minute_at_most() -> None:
    throttle = LoginThrottle()
    for now in range(1000):
        assert all(wait <= 30.0 for wait in turns(throttle, "ada", 5, now=float(now)))


def test_a_right_password_and_an_hours_rest_end_the_waiting() -> None:
    throttle = LoginThrottle()
    for rest, key in ((throttle.succeeded, "ada"), (lambda _: None, "grace")):
        turns(throttle, key, 200, now=0.0)
        rest(key)
    assert throttle.schedule("ada", now=0.0) == 0
    assert turns(throttle, "grace", 4, now=5000.0) == [0, 0, 0, 0]


def test_many_made_up_names_take_no_memory_for_ever() -> None:
    throttle = LoginThrottle(most_keys=100)
    for number in range(10_000):
        throttle.schedule(f"name{number}", now=0.0)
    assert len(throttle) == 100


async def test_who_floods_pushes_out_only_himself_and_others_have_their_turn() -> None:
    workers, go_on, order = FairWorkers(at_once=1, longest_queue=8), threading.Event(), []

    def work(who: str) -> None:
        assert go_on.wait(30)
        order.append(who)

    async def ask(who: str) -> bool:
        try:
            await workers.run(who, lambda: work(who))
        except WorkersBusy:
            return False
        return True

    flood = [asyncio.ensure_future(ask("stranger")) for _ in range(50)]
    await asyncio.sleep(0)
    people = [asyncio.ensure_future(ask(name)) for name in ("ada", "grace", "hedy")]
    await asyncio.sleep(0)
    go_on.set()
    assert all(await asyncio.gather(*people))
    assert sum(await asyncio.gather(*flood)) == 1 + 8 - 3
    assert order.index("hedy") <= 4, "each waits for one of the stranger's at most"
    assert await ask("ada"), "the thread was given back"


async def test_no_more_than_a_few_are_hashed_at_once() -> None:
    workers, lock, inside, most = FairWorkers(at_once=2), threading.Lock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.002)
        with lock:
            inside -= 1

    await asyncio.gather(*(workers.run(f"place{n % 7}", work) for n in range(100)))
    assert most == 2


async def test_a_call_that_raises_or_is_cancelled_gives_its_thread_back() -> None:
    workers, go_on = FairWorkers(at_once=1), threading.Event()
    with pytest.raises(ZeroDivisionError):
        await workers.run("ada", lambda: 1 / 0)
    first = asyncio.ensure_future(workers.run("ada", lambda: go_on.wait(30)))
    second = asyncio.ensure_future(workers.run("ada", lambda: None))
    await asyncio.sleep(0)
    second.cancel()
    go_on.set()
    assert await first
    assert await workers.run("ada", lambda: "free") == "free"


@pytest.mark.parametrize(
    ("forwarded", "trusted", "address"),
    [
        (["10.1.1.1"], (), "10.1.1.1"),
        (["1.2.3.4, 10.1.1.1"], (), "10.1.1.1"),
        (["1.2.3.4", "10.1.1.1"], (), "10.1.1.1"),
        (["1.2.3.4,10.1.1.1,192.0.2.7"], ("192.0.2.7",), "10.1.1.1"),
        (["::ffff:10.1.1.1"], (), "10.1.1.1"),
        (["1.2.3.4, nonsense"], (), "127.0.0.1"),
        ([], (), "127.0.0.1"),
    ],
)
def test_the_address_is_the_one_that_our_proxy_saw(
    forwarded: list[str], trusted: tuple[str, ...], address: str
) -> None:
    assert client_address("127.0.0.1", forwarded, trusted) == address


def test_an_ipv6_client_is_its_network() -> None:
    assert block_of("2001:db8:1:2::1") == block_of("2001:db8:1:2:ffff::9") != block_of("2001:db8:1:3::1")
    assert block_of("::ffff:10.0.0.1") == block_of("10.0.0.1") != block_of("10.0.0.2")
    assert block_of("fe80::1%eth0") == "fe80::/64"


async def test_only_our_proxy_is_believed_about_addresses() -> None:
    """For a request from a notebook server directly to the hub, the server is the client."""
    finder = OriginFinder("http://127.0.0.1:8001")
    assert (await finder.of(request("127.0.0.1", "10.1.1.1"), "ada")).block == "10.1.1.1"
    for peer in ("10.9.9.9", "::ffff:10.9.9.9"):
        assert (await finder.of(request(peer, "10.1.1.1"), "ada")).block == "10.9.9.9"
    named = OriginFinder("http://localhost:8001", trusted=("10.1.1.1",))
    assert (await named.of(request("127.0.0.1", "10.2.2.2, 10.1.1.1"), "ada")).block == "10.2.2.2"
    nowhere = OriginFinder("http://no-such-host.invalid:8001")
    assert (await nowhere.of(request("10.9.9.9", "10.1.1.1"), "ada")).block == "10.9.9.9"


def request(peer: str, forwarded: str) -> SimpleNamespace:
    """A fake handler without a cookie, for the finder."""
    context = SimpleNamespace(address=(peer, 50000))
    headers = HTTPHeaders({"X-Forwarded-For": forwarded, "X-Real-Ip": "1.2.3.4"})
    asked = SimpleNamespace(connection=SimpleNamespace(context=context), headers=headers)
    return SimpleNamespace(request=asked, get_secure_cookie=lambda name, max_age_days: None)
