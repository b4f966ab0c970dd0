"""The registry's address: the effect of options, and messages about invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicluster_hub.images.references import ImageReference
from minicluster_hub.images.settings import RegistryBroken, RegistrySettings, pip_environment


def test_without_an_url_nothing_is_published() -> None:
    registries = RegistrySettings().registries()
    assert not registries.writable
    assert registries.of(ImageReference.of("127.0.0.1:5100/a/b@sha256:1")) is None


def test_images_are_found_by_the_door_that_nodes_use() -> None:
    settings = RegistrySettings(url="https://registry:5000", cache_url="https://cache:5000")
    registries = settings.registries()
    assert registries.writable and registries.own.url == "https://registry:5000"
    cached = registries.of(ImageReference.of("127.0.0.1:5101/lab/notebook@sha256:1"))
    assert cached is not None and cached.url == "https://cache:5000"
    assert registries.of(ImageReference.of("docker.io/lab/notebook@sha256:1")) is None


@pytest.mark.parametrize("name", ["ca_file", "login_file"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, name: str) -> None:
    settings = RegistrySettings(url="https://registry:5000", **{name: str(tmp_path / "gone")})
    with pytest.raises(RegistryBroken, match=f"RegistrySettings.{name}: .*gone cannot be"):
        settings.registries()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("", {}),
        ("https://pypi.lab/simple/", {"PIP_INDEX_URL": "https://pypi.lab/simple/"}),
        (
            "http://ada:secret@pypi.lab:8080/simple/",
            {
                "PIP_INDEX_URL": "http://ada:secret@pypi.lab:8080/simple/",
                "PIP_TRUSTED_HOST": "pypi.lab:8080",
            },
        ),
    ],
)
def test_pip_is_told_its_mirror(url: str, told: dict[str, str]) -> None:
    assert pip_environment(url) == told


@pytest.mark.parametrize(
    ("text", "parts", "name"),
    [
        ("lab/torch:2", ("lab/torch", "2", ""), "torch:2"),
        ("127.0.0.1:5100/a/nb@sha256:1", ("127.0.0.1:5100/a/nb", "", "sha256:1"), "nb"),
        ("127.0.0.1:5100/a/nb:3@sha256:1", ("127.0.0.1:5100/a/nb", "3", "sha256:1"), "nb"),
        ("nb", ("nb", "", ""), "nb"),
    ],
)
def test_a_reference_has_its_parts_and_a_name(text: str, parts: tuple[str, ...], name: str) -> None:
    found = ImageReference.of(text)
    assert (found.repository, found.tag, found.digest) == parts
    assert found.name == name
