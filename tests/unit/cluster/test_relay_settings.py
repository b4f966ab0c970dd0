"""A relay's settings and the headers that it passes on; the registry's configuration."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from minicluster_hub.cluster.registry import config as settings
from minicluster_hub.cluster.registry.relay import RelayError, command, frontends, unreachable_answer


def test_frontends_by_the_environment(environ: dict[str, str]) -> None:
    environ |= {"MINICLUSTER_RELAY_REGISTRY": "10.0.0.1:5443", "MINICLUSTER_RELAY_CACHE": "10.0.0.1:5444"}
    assert [(frontend.port, *frontend.upstreams) for frontend in frontends(environ)] == [
        (5100, "10.0.0.1:5443"),
        (5101, "10.0.0.1:5444"),
        (5102, "10.0.0.1:5443"),
    ]
    environ["MINICLUSTER_NODE_ID"] = "node-b"
    del environ["MINICLUSTER_RELAY_CACHE"]
    assert [frontend.port for frontend in frontends(environ)] == [5100]
    assert frontends(environ)[0].only_reads


def test_a_registry_on_any_of_several_managers(environ: dict[str, str]) -> None:
    environ["MINICLUSTER_RELAY_REGISTRY"] = "10.0.0.1:5443,10.0.0.2:5443"
    environ["MINICLUSTER_RELAY_PUBLISH_NODE"] = "node-b,node-a"
    reading, publishing = frontends(environ)
    assert reading.upstreams == publishing.upstreams == ("10.0.0.1:5443", "10.0.0.2:5443")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MINICLUSTER_RELAY_REGISTRY", "", "does not know where the registry is"),
        ("MINICLUSTER_RELAY_REGISTRY", "somewhere", "has to be HOST:PORT"),
        ("MINICLUSTER_RELAY_READER_FILE", "/nowhere", "lacks that secret"),
    ],
)
def test_wrong_settings_are_told(
    environ: dict[str, str], tmp_path: Path, name: str, value: str, words: str
) -> None:
    environ["MINICLUSTER_RELAY_REGISTRY"] = "10.0.0.1:5443"
    with pytest.raises(RelayError, match=words):
        changed = environ | {name: value}
        command(frontends(changed), changed, tmp_path)


def test_no_file_and_no_word_of_the_command_holds_the_password(
    environ: dict[str, str], tmp_path: Path
) -> None:
    environ["MINICLUSTER_RELAY_REGISTRY"] = "10.0.0.1:5443"
    folder = tmp_path / "relay"
    folder.mkdir()
    arguments, environment = command(frontends(environ), environ, folder)
    secret = environment["MINICLUSTER_RELAY_AUTHORIZATION"]
    assert base64.b64decode(secret) == b"reader:reader's word"
    written = [file.read_text() for file in folder.iterdir()]
    assert not [text for text in (*arguments, *written) if secret in text or "reader's word" in text]


def test_a_registry_that_is_away_is_told_in_the_line_that_docker_shows(environ: dict[str, str]) -> None:
    environ["MINICLUSTER_RELAY_REGISTRY"] = "10.0.0.1:5443"
    line = unreachable_answer(frontends(environ)[0]).splitlines()[0]
    assert line.startswith("HTTP/1.1 503 ") and "10.0.0.1:5443" in line and "doctor" in line


def test_the_config_is_json_that_yaml_readers_take() -> None:
    plain, cache = (
        json.loads(settings.registry_config()),
        json.loads(settings.registry_config("https://r.example")),
    )
    assert "proxy" not in plain and plain["storage"]["delete"]["enabled"] is True
    assert cache["proxy"]["remoteurl"] == "https://r.example"
