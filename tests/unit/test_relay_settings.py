"""What a relay is told, and the heads that it passes on; the registry's configuration."""

from __future__ import annotations

import json
import socket
from contextlib import closing

import pytest

from minicluster_hub.cluster import registry as settings
from minicluster_hub.cluster.relay import Relay
from minicluster_hub.cluster.relay_doors import Door, RelayError, doors, trust
from minicluster_hub.cluster.relay_http import HeadReader, RequestBroken, reading_head


def test_doors_by_the_environment(environ: dict[str, str]) -> None:
    environ |= {"MINICLUSTER_RELAY_REGISTRY": "10.0.0.1:5443", "MINICLUSTER_RELAY_CACHE": "10.0.0.1:5444"}
    assert [(door.port, door.upstream) for door in doors(environ)] == [
        (5100, "10.0.0.1:5443"),
        (5101, "10.0.0.1:5444"),
        (5102, "10.0.0.1:5443"),
    ]
    environ["MINICLUSTER_NODE_ID"] = "node-b"
    del environ["MINICLUSTER_RELAY_CACHE"]
    assert [door.port for door in doors(environ)] == [5100]
    assert doors(environ)[0].authorization is not None


def test_a_registry_on_any_of_several_managers(environ: dict[str, str]) -> None:
    environ["MINICLUSTER_RELAY_REGISTRY"] = "10.0.0.1:5443,10.0.0.2:5443"
    environ["MINICLUSTER_RELAY_PUBLISH_NODE"] = "node-b,node-a"
    reading, publishing = doors(environ)
    assert reading.places == publishing.places == (("10.0.0.1", 5443), ("10.0.0.2", 5443))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MINICLUSTER_RELAY_REGISTRY", "", "not told where the registry is"),
        ("MINICLUSTER_RELAY_REGISTRY", "somewhere", "has to be HOST:PORT"),
        ("MINICLUSTER_RELAY_READER_FILE", "/nowhere", "lacks that secret"),
    ],
)
def test_wrong_settings_are_told(environ: dict[str, str], name: str, value: str, words: str) -> None:
    environ["MINICLUSTER_RELAY_REGISTRY"] = "10.0.0.1:5443"
    with pytest.raises(RelayError, match=words):
        doors(environ | {name: value})


async def test_a_taken_port_is_told(environ: dict[str, str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(RelayError, match=f"Port {port} on 127.0.0.1"):
            await Relay([Door(port, "registry", "10.0.0.1", 1, None)], trust(environ)).open()


def test_a_reading_head_holds_our_credentials_only() -> None:
    text = b"GET /v2/ HTTP/1.1\r\nHost: 127.0.0.1:5100\r\nAuthorization: Basic mine\r\n"
    more = b"Accept: a\r\naccept: b\r\nTransfer-Encoding: chunked\r\nConnection: x\r\n\r\n"
    head = HeadReader()
    assert head.feed(text) is None
    request = head.feed(more)
    assert request is not None
    assert reading_head(request, "reg:5443", b"Basic ours") == (
        b"GET /v2/ HTTP/1.1\r\nhost: reg:5443\r\naccept: a\r\naccept: b\r\n"
        b"authorization: Basic ours\r\nconnection: close\r\n\r\n"
    )


def test_an_endless_head_is_refused() -> None:
    head = HeadReader()
    with pytest.raises(RequestBroken):
        for _ in range(200):
            head.feed(b"GET / HTTP/1.1\r\nX: " + b"x" * 1000)


def test_the_config_is_json_that_yaml_readers_take() -> None:
    plain, cache = (
        json.loads(settings.registry_config()),
        json.loads(settings.registry_config("https://r.example")),
    )
    assert "proxy" not in plain and plain["storage"]["delete"]["enabled"] is True
    assert cache["proxy"]["remoteurl"] == "https://r.example"
