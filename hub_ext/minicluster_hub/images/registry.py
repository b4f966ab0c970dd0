"""The registry as its HTTP API has it (OCI distribution): manifests, blobs, uploads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from minicluster_hub.images.references import Reference

if TYPE_CHECKING:
    import httpx

OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker.distribution"
_INDEXES = (f"{OCI}.index.v1+json", f"{DOCKER}.manifest.list.v2+json")
_ACCEPT = ", ".join((f"{OCI}.manifest.v1+json", f"{DOCKER}.manifest.v2+json", *_INDEXES))
_LABEL = "org.minicluster.torch"
"""Of our notebook images: the torch that they were built with; "cpu" is the CPU build."""
_TIMEOUT_S = 60.0
_MOST_MANIFEST_BYTES = 4 << 20
PIECE_BYTES = 1 << 20


class RegistryError(Exception):
    """A registry did not do what was asked; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest with the config that it names."""

    document: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def media_type(self) -> str:
        return str(self.document.get("mediaType") or f"{OCI}.manifest.v1+json")

    @property
    def size_bytes(self) -> int:
        """Bytes as they are sent."""
        return sum(int(layer["size"]) for layer in self.document["layers"])

    @property
    def device(self) -> str:
        """ "cpu", "cuda", or "" where the image does not say."""
        told = (self.config.get("config", {}).get("Labels") or {}).get(_LABEL)
        if told in (None, "base"):
            return ""
        return "cpu" if told == "cpu" or "+cpu" in told else "cuda"


class Registry:
    """One registry. login: name and password; tls: a file with the authority to trust, "" the system's."""

    def __init__(self, url: str, login: tuple[str, str] | None = None, ca_file: str = "") -> None:
        # Imported here: a service that publishes nothing need not hold it in memory.
        import ssl

        import httpx

        self.url = url.rstrip("/")
        self._http_error = httpx.HTTPError
        self._http = httpx.AsyncClient(
            auth=login,
            verify=ssl.create_default_context(cafile=ca_file) if ca_file else True,
            timeout=_TIMEOUT_S,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def manifest(self, repository: str, digest: str, machine: str = "") -> Manifest:
        """Return an image's manifest; of an index the one for a machine ("" takes the first)."""
        document = await self._document(repository, digest)
        try:
            if document.get("mediaType") in _INDEXES or "manifests" in document:
                chosen = _of_machine(document["manifests"], machine)
                document = await self._document(repository, str(chosen["digest"]))
            config = await self._json_blob(repository, str(document["config"]["digest"]))
            found = Manifest(document, config)
            _ = found.size_bytes, found.device, config["rootfs"]["diff_ids"]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise RegistryError(f"{repository}@{digest} is no image as we know them") from error
        return found

    async def has_blob(self, repository: str, digest: str) -> bool:
        answer = await self._ask("HEAD", f"{repository}/blobs/{digest}", passing=(404,))
        return answer.status_code == 200

    async def mount(self, repository: str, digest: str, origin: str) -> bool:
        """Have a blob of another repository here too; False: it is not there, or not to be had so."""
        query = {"mount": digest, "from": origin}
        answer = await self._ask("POST", f"{repository}/blobs/uploads/", params=query)
        return answer.status_code == 201

    async def upload(
        self, repository: str, digest: str, size_bytes: int, pieces: AsyncIterator[bytes]
    ) -> None:
        """Send a blob in one go."""
        begun = await self._ask("POST", f"{repository}/blobs/uploads/")
        place = self._http.build_request("PUT", urljoin(f"{self.url}/", begun.headers["Location"])).url
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        await self._ask(
            "PUT", str(place.copy_merge_params({"digest": digest})), content=pieces, headers=headers
        )

    @asynccontextmanager
    async def blob(self, repository: str, digest: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a blob's bytes."""
        url = f"{self.url}/v2/{repository}/blobs/{digest}"
        try:
            async with self._http.stream("GET", url, follow_redirects=True) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise _refused(answer)
                yield answer.aiter_raw(PIECE_BYTES)
        except self._http_error as error:
            raise self._away(error) from error

    async def put_manifest(self, repository: str, tag: str, text: bytes, media_type: str) -> str:
        """Keep a manifest and return its digest."""
        headers = {"Content-Type": media_type}
        await self._ask("PUT", f"{repository}/manifests/{tag}", content=text, headers=headers)
        return digest_of(text)

    async def _document(self, repository: str, digest: str) -> dict[str, Any]:
        path = f"{repository}/manifests/{digest}"
        answer = await self._ask("GET", path, headers={"Accept": _ACCEPT})
        return _checked(answer.content, digest, f"the manifest of {repository}")

    async def _json_blob(self, repository: str, digest: str) -> dict[str, Any]:
        answer = await self._ask("GET", f"{repository}/blobs/{digest}", follow_redirects=True)
        return _checked(answer.content, digest, f"the config of {repository}")

    async def _ask(
        self, method: str, path: str, passing: tuple[int, ...] = (), **more: Any
    ) -> httpx.Response:
        url = path if path.startswith("http") else f"{self.url}/v2/{path}"
        try:
            answer = await self._http.request(method, url, **more)
        except self._http_error as error:
            raise self._away(error) from error
        if answer.status_code >= 300 and answer.status_code not in passing:
            raise _refused(answer)
        return answer

    def _away(self, error: Exception) -> RegistryError:
        return RegistryError(f"the registry at {self.url} does not answer ({type(error).__name__}: {error})")


@dataclass(frozen=True)
class Registries:
    """The cluster's registry and its cache, by the host that nodes reach each under.

    name: the host of the one that takes new images, "" if none does.
    """

    by_host: Mapping[str, Registry]
    name: str = ""

    @property
    def writable(self) -> bool:
        return self.name in self.by_host

    @property
    def own(self) -> Registry:
        return self.by_host[self.name]

    def holding(self, reference: Reference) -> Registry | None:
        return self.by_host.get(reference.host)

    async def look(self, reference: Reference) -> Manifest | None:
        """Return what a registry says of an image; None where we know no such registry."""
        registry = self.holding(reference)
        return await registry.manifest(reference.path, reference.digest) if registry else None

    async def close(self) -> None:
        for registry in self.by_host.values():
            await registry.close()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _of_machine(manifests: list[dict[str, Any]], machine: str) -> dict[str, Any]:
    wanted = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    there = {str(one.get("platform", {}).get("architecture")): one for one in reversed(manifests)}
    if not wanted:
        return manifests[0]
    if wanted not in there:
        raise RegistryError(f"the base image is not there for {machine}, only for {', '.join(sorted(there))}")
    return there[wanted]


def _checked(data: bytes, digest: str, what: str) -> dict[str, Any]:
    """Return a document whose bytes are those that its digest promises."""
    if digest_of(data) != digest or len(data) > _MOST_MANIFEST_BYTES:
        raise RegistryError(f"{what} came damaged: it is not {digest}")
    try:
        found = json.loads(data)
    except ValueError as error:
        raise RegistryError(f"{what} is no JSON") from error
    if not isinstance(found, dict):
        raise RegistryError(f"{what} is no JSON object")
    return found


def _refused(answer: httpx.Response) -> RegistryError:
    try:
        said = "; ".join(f"{one['code']}: {one['message']}" for one in answer.json()["errors"])
    except (ValueError, KeyError, TypeError):
        said = answer.reason_phrase
    what = f"{answer.request.method} {answer.request.url.path}"
    return RegistryError(f"the registry refused {what} with {answer.status_code} ({said})")


Told = Callable[[str, int, int], None]
"""Hears what is being done, and how many bytes of how many are there."""
