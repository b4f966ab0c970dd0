"""Strangers and users who try to fill the hub's memory or database by requests."""

from __future__ import annotations

import asyncio

import pytest

from minicluster_hub.configure import MOST_BYTES
from minicluster_hub.launch.visitor import Visitor
from minicluster_hub.login.pages import LONGEST_NOTE, MOST_TOKENS

from ...patience import WITHIN_S

PATH = "/hub/api/users/hedy/tokens"


async def answer_to(lab, *lines, body=b""):
    """Send a request with an endless body; return the first line of the answer."""
    host, _, port = lab.cluster.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = ["POST /hub/login HTTP/1.1", f"Host: {host}", *lines]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        async with asyncio.timeout(WITHIN_S):
            return (await reader.readline()).decode()
    finally:
        writer.close()


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_form_without_end_is_refused_before_it_takes_memory(lab, chunked):
    if chunked:
        body = f"{2 * MOST_BYTES:x}\r\n".encode() + b"a" * (MOST_BYTES + 1)
        text = await answer_to(lab, "Transfer-Encoding: chunked", body=body)
    else:
        text = await answer_to(lab, f"Content-Length: {MOST_BYTES + 1}", body=b"the begin")
    assert " 400 " in text


@pytest.fixture
async def hedy(lab):
    async with Visitor(lab.cluster.url, "hedy") as visitor:
        await visitor.log_in(lab.passwords["hedy"])
        yield visitor


async def made(hedy, **body):
    return await hedy.http.post(PATH, json=body, headers={"X-XSRFToken": hedy.xsrf("/hub/")})


@pytest.mark.parametrize("note", ["n" * (LONGEST_NOTE + 1), ["n"] * 10])
async def test_a_token_has_no_long_note(hedy, note):
    answer = await made(hedy, note=note)
    assert (answer.status_code, str(LONGEST_NOTE) in answer.text) == (400, True)


async def test_a_password_in_the_body_makes_no_token(lab, hedy):
    auth = {"username": "hedy", "password": lab.passwords["hedy"]}
    async with Visitor(lab.cluster.url, "nobody") as stranger:
        answer = await stranger.http.post(PATH, json={"auth": auth})
    assert answer.status_code == 403


@pytest.mark.full("many requests to the hub for one number")
async def test_a_user_has_so_many_tokens_and_gets_more_after_some_went(hedy):
    answers = [await made(hedy, note="one of many") for _ in range(MOST_TOKENS + 1)]
    tokens = [answer.json() for answer in answers if answer.status_code == 201]
    assert answers[-1].status_code == 409
    assert "Revoke" in answers[-1].text
    for token in tokens:
        gone = await hedy.http.delete(f"{PATH}/{token['id']}", headers={"X-XSRFToken": hedy.xsrf("/hub/")})
        assert gone.status_code == 204
    assert (await made(hedy, note="again")).status_code == 201
