"""Pushes an image of a base and a layer to a real registry."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from minicluster.wire import LAYER_FILE, LAYER_ROOT, Recipe
from minicluster_hub.images.pushing import BASE_LABEL, RECIPE_LABEL, DerivedImage, push
from minicluster_hub.images.references import ImageReference
from minicluster_hub.images.registry import DOCKER, OCI, Registries, Registry, RegistryError, digest_of

from ...conftest import Needs
from .bases import BASE, one, push_base, tiny
from .registries import RealRegistry, running


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, needs: Needs) -> Iterator[RealRegistry]:
    """A registry with images from outside, in place of the cache."""
    with running(tmp_path_factory.mktemp("registry") / "cache", needs) as made:
        yield made


def added(folder: Path) -> tuple[Path, Recipe]:
    """Make a layer as a publishing job does."""
    packed, recipe = tiny()
    path = folder / LAYER_FILE
    path.write_bytes(packed)
    return path, recipe


def child(host: str, digest: str, folder: Path, repository: str) -> DerivedImage:
    path, recipe = added(folder)
    return DerivedImage(ImageReference.of(f"{host}/{BASE}@{digest}"), path, recipe, repository, "v1")


def silent(doing: str, sent: int, total: int) -> None:
    pass


async def unpacked(client: Registry, repository: str, digest: str) -> dict[str, bytes]:
    """Pull an image as an engine does: check each layer's digest and diff id."""
    manifest = await client.manifest(repository, digest)
    files: dict[str, bytes] = {}
    pairs = zip(manifest.document["layers"], manifest.config["rootfs"]["diff_ids"], strict=True)
    for layer, diff_id in pairs:
        async with client.blob(repository, layer["digest"]) as pieces:
            data = b"".join([piece async for piece in pieces])
        assert (digest_of(data), len(data)) == (layer["digest"], layer["size"])
        plain = gzip.decompress(data)
        assert digest_of(plain) == diff_id
        with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member)
                files[member.name] = file.read() if file else b""
    return files


@pytest.mark.parametrize("family", [OCI, DOCKER])
async def test_the_child_is_the_base_and_one_layer(
    registry: RealRegistry, tmp_path: Path, family: str
) -> None:
    client = registry.client()
    registries = Registries({registry.name: client}, registry.name)
    digest = await push_base(client, family)
    calls: list[tuple[str, int, int]] = []
    repository = f"minicluster/published/ada/{'oci' if family == OCI else 'docker'}"
    made = child(registry.name, digest, tmp_path, repository)
    pushed = await push(made, registries, lambda *progress: calls.append(progress))
    files = await unpacked(client, repository, pushed.digest)
    assert files[f"{LAYER_ROOT}/lib/tiny.py"] == b"RED = 1\n"
    assert files["etc/os-release"] == b"lab"
    manifest = await client.manifest(repository, pushed.digest)
    assert manifest.media_type.startswith(family)
    config = manifest.config
    assert config["config"]["Env"] == ["A=b"]
    assert config["config"]["Labels"][BASE_LABEL] == digest
    assert Recipe.model_validate_json(config["config"]["Labels"][RECIPE_LABEL]) == made.recipe
    assert [step["created_by"] for step in config["history"]] == ["base", "more", "%distribute publish"]
    assert (pushed.size_bytes, pushed.device) == (manifest.size_bytes, "cpu")
    assert calls[-1] == ("done", pushed.size_bytes, pushed.size_bytes)
    again = await push(made, registries, lambda *_: None)
    assert again == pushed
    await registries.close()


async def test_a_base_from_elsewhere_comes_along_once(
    registry: RealRegistry, other: RealRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, own = other.client(), registry.client()
    registries = Registries({other.name: cache, registry.name: own}, registry.name)
    digest = await push_base(cache, created="2020-02-02T02:02:02Z")
    made = child(other.name, digest, tmp_path, "minicluster/published/ada/elsewhere")
    pushed = await push(made, registries, lambda *_: None)
    files = await unpacked(own, made.repository, pushed.digest)
    assert {"etc/os-release", f"{LAYER_ROOT}/lib/tiny.py"} <= set(files)
    second = child(other.name, digest, tmp_path, "minicluster/published/ada/second")
    await cache.close()  # layers are not requested again, only the manifest
    asked = other.client()
    monkeypatch.setattr(asked, "blob", None)
    again = await push(second, Registries({other.name: asked, registry.name: own}, registry.name), silent)
    assert again.digest == pushed.digest
    assert await unpacked(own, second.repository, again.digest) == files
    for client in (asked, own):
        await client.close()


async def test_of_an_index_the_machines_own_is_taken(registry: RealRegistry, tmp_path: Path) -> None:
    client = registry.client()
    registries = Registries({registry.name: client}, registry.name)
    places = []
    for machine in ("arm64", "amd64"):
        digest = await push_base(client, architecture=machine)
        document = await client._document(BASE, digest)
        places.append(
            {
                "mediaType": document["mediaType"],
                "digest": digest,
                "size": len(json.dumps(document)),
                "platform": {"architecture": machine, "os": "linux"},
            }
        )
    kind = f"{OCI}.index.v1+json"
    index = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": places}).encode()
    digest = await client.put_manifest(BASE, "all", index, kind)
    made = child(registry.name, digest, tmp_path, "minicluster/published/ada/index")
    pushed = await push(made, registries, lambda *_: None)
    found = await client.manifest(made.repository, pushed.digest)
    assert found.config["architecture"] == "amd64"
    assert found.config["config"]["Labels"][BASE_LABEL] == digest
    await registries.close()


async def test_what_a_registry_refuses_is_told_in_its_words(registry: RealRegistry, tmp_path: Path) -> None:
    stranger = registry.client(("publisher", "wrong"))
    with pytest.raises(RegistryError, match="with 401"):
        await stranger.has_blob(BASE, digest_of(b"x"))
    client = registry.client()
    with pytest.raises(RegistryError, match="MANIFEST_UNKNOWN"):
        await client.manifest(BASE, digest_of(b"nothing"))
    with pytest.raises(RegistryError, match="DIGEST_INVALID"):
        await client.upload(BASE, digest_of(b"x"), 1, one(b"y"))
    unknown = child("docker.io", digest_of(b"x"), tmp_path, "minicluster/published/ada/none")
    with pytest.raises(RegistryError, match="in no registry of this cluster"):
        await push(unknown, Registries({registry.name: client}, registry.name), lambda *_: None)
    await stranger.close()
    await client.close()


@pytest.mark.parametrize(
    "document", [{}, {"config": {}}, {"manifests": []}, {"config": {"digest": "sha256:" + "0" * 64}}]
)
async def test_what_is_no_image_is_told(registry: RealRegistry, document: dict[str, object]) -> None:
    client = registry.client()
    # No registry accepts such a manifest, but an image from outside may have one.
    digest = digest_of(json.dumps(document).encode())

    async def fixed_document(repository: str, wanted: str) -> dict[str, object]:
        return document

    client._document = fixed_document  # type: ignore[method-assign]
    with pytest.raises(RegistryError):
        await client.manifest(BASE, digest)
    await client.close()


async def test_a_registry_that_is_away_is_told_by_its_address(registry: RealRegistry) -> None:
    client = Registry("https://127.0.0.1:9", None, registry.ca_file)
    with pytest.raises(RegistryError, match=r"https://127\.0\.0\.1:9 does not answer"):
        await client.has_blob(BASE, digest_of(b"x"))
    await client.close()


async def test_a_certificate_of_another_authority_is_not_taken(
    registry: RealRegistry, other: RealRegistry
) -> None:
    client = Registry(f"https://{registry.name}", None, other.ca_file)
    with pytest.raises(RegistryError, match="CERTIFICATE_VERIFY_FAILED"):
        await client.has_blob(BASE, digest_of(b"x"))
    await client.close()
