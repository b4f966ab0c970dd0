"""The proxy reaches the job service by a few connections, which all users share: nobody ends them unsaid."""

import asyncio
from urllib.parse import urlsplit

import pytest

from ..service.api.client import PREFIX

REQUESTS = [
    ("GET", "health", 0),
    ("GET", "nodes", 0),
    ("GET", "nowhere", 0),
    ("POST", "nowhere", 9),
    ("POST", "api/jobs", 9),
    ("PUT", "nodes", 9),
    ("PROPFIND", "nodes", 0),
    ("GET", "jobs/" + "9" * 20, 0),
]


@pytest.mark.parametrize(("method", "path", "length"), REQUESTS)
async def test_a_connection_that_the_service_ends_was_told_to_end(api, method, path, length):
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(api.url).port)
    head = f"{method} {PREFIX}{path} HTTP/1.1\r\nHost: hub\r\nContent-Length: {length}\r\n\r\n"
    for _ in range(2):
        writer.write(head.encode() + b"x" * length)
        told = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(told.split("content-length:")[1].split("\r")[0])
        await reader.readexactly(size)
        if "connection: close" in told:
            assert await reader.read() == b""
            break
    writer.close()
