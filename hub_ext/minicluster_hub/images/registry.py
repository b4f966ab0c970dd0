"""A client of a registry's HTTP API (OCI distribution): manifests, blobs, uploads.

Why no library does this: docs/dependencies.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from minicluster_hub.images.references import ImageReference

if TYPE_CHECKING:
    import httpx

OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker.distribution"
_INDEXES = (f"{OCI}.index.v1+json", f"{DOCKER}.manifest.list.v2+json")
_ACCEPT = ", ".join((f"{OCI}.manifest.v1+json", f"{DOCKER}.manifest.v2+json", *_INDEXES))
_TORCH_LABEL = "org.minicluster.torch"
"""Label of our notebook images: the torch that they were built with; "cpu" is the CPU build."""
_TIMEOUT_S = 60.0
_MAX_MANIFEST_BYTES = 4 << 20
PIECE_BYTES = 1 << 20
ReportProgress = Callable[[str, int, int], None]
"""Called with the present step, the bytes sent, and the total bytes to send."""


class RegistryError(Exception):
    """A request to a registry failed; the message is one sentence."""


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
        """The compressed size of all layers."""
        return sum(int(layer["size"]) for layer in self.document["layers"])

    @property
    def device(self) -> str:
        """ "cpu", "cuda", or "" if the image does not say."""
        torch = (self.config.get("config", {}).get("Labels") or {}).get(_TORCH_LABEL)
        if torch in (None, "base"):
            return ""
        return "cpu" if torch == "cpu" or "+cpu" in torch else "cuda"


class Registry:
    """One registry. login: name and password. ca_file: the authority to trust; "": the system's."""

    def __init__(self, url: str, login: tuple[str, str] | None = None, ca_file: str = "") -> None:
        # Imported here to save memory in a service without a registry.
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
        """Return an image's manifest. From an index, the one for a CPU architecture ("": the first one)."""
        document = await self._document(repository, digest)
        try:
            if document.get("mediaType") in _INDEXES or "manifests" in document:
                chosen = _for_machine(document["manifests"], machine)
                document = await self._document(repository, str(chosen["digest"]))
            config_digest = str(document["config"]["digest"])
            answer = await self._request("GET", f"{repository}/blobs/{config_digest}", follow_redirects=True)
            config = _checked(answer.content, config_digest, f"the config of {repository}")
            found = Manifest(document, config)
            _ = found.size_bytes, found.device, config["rootfs"]["diff_ids"]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise RegistryError(f"{repository}@{digest} is not an image in a known format") from error
        return found

    async def has_blob(self, repository: str, digest: str) -> bool:
        answer = await self._request("HEAD", f"{repository}/blobs/{digest}", passing=(404,))
        return answer.status_code == 200

    async def mount(self, repository: str, digest: str, origin: str) -> bool:
        """Mount a blob of another repository in this one; return whether that was possible."""
        query = {"mount": digest, "from": origin}
        answer = await self._request("POST", f"{repository}/blobs/uploads/", params=query)
        return answer.status_code == 201

    async def upload(
        self, repository: str, digest: str, size_bytes: int, pieces: AsyncIterator[bytes]
    ) -> None:
        """Send a blob in one request."""
        begun = await self._request("POST", f"{repository}/blobs/uploads/")
        place = self._http.build_request("PUT", urljoin(f"{self.url}/", begun.headers["Location"])).url
        url = str(place.copy_merge_params({"digest": digest}))
        headers = {"Content-Length": str(size_bytes), "Content-Type": "application/octet-stream"}
        await self._request("PUT", url, content=pieces, headers=headers)

    @asynccontextmanager
    async def blob(self, repository: str, digest: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a blob's bytes."""
        url = f"{self.url}/v2/{repository}/blobs/{digest}"
        with self._errors():
            async with self._http.stream("GET", url, follow_redirects=True) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise _refused(answer)
                yield answer.aiter_raw(PIECE_BYTES)

    async def put_manifest(self, repository: str, tag: str, text: bytes, media_type: str) -> str:
        """Store a manifest and return its digest."""
        headers = {"Content-Type": media_type}
        await self._request("PUT", f"{repository}/manifests/{tag}", content=text, headers=headers)
        return digest_of(text)

    async def _document(self, repository: str, digest: str) -> dict[str, Any]:
        headers = {"Accept": _ACCEPT}
        answer = await self._request("GET", f"{repository}/manifests/{digest}", headers=headers)
        return _checked(answer.content, digest, f"the manifest of {repository}")

    async def _request(
        self, method: str, path: str, passing: tuple[int, ...] = (), **more: Any
    ) -> httpx.Response:
        url = path if path.startswith("http") else f"{self.url}/v2/{path}"
        with self._errors():
            answer = await self._http.request(method, url, **more)
        if answer.status_code >= 300 and answer.status_code not in passing:
            raise _refused(answer)
        return answer

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._http_error as error:
            why = f"{type(error).__name__}: {error}"
            raise RegistryError(f"the registry at {self.url} does not answer ({why})") from error


@dataclass(frozen=True)
class Registries:
    """The clients of the cluster's registry and of its cache, by the host that nodes use for each.

    name: the host of the registry for published images; "" if there is none.
    """

    by_host: Mapping[str, Registry]
    name: str = ""

    @property
    def writable(self) -> bool:
        return self.name in self.by_host

    @property
    def own(self) -> Registry:
        return self.by_host[self.name]

    def of(self, reference: ImageReference) -> Registry | None:
        """Return the registry of an image; None if it is not one of these."""
        return self.by_host.get(reference.host)

    async def close(self) -> None:
        for registry in self.by_host.values():
            await registry.close()


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _for_machine(manifests: list[dict[str, Any]], machine: str) -> dict[str, Any]:
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    if not architecture:
        return manifests[0]
    manifests_by_architecture = {
        str(one.get("platform", {}).get("architecture")): one for one in reversed(manifests)
    }
    if architecture not in manifests_by_architecture:
        raise RegistryError(
            f"the base image is not for {machine}, only for {', '.join(sorted(manifests_by_architecture))}"
        )
    return manifests_by_architecture[architecture]


def _checked(data: bytes, digest: str, what: str) -> dict[str, Any]:
    """Return a JSON document. Raises RegistryError if its bytes do not match its digest."""
    if digest_of(data) != digest or len(data) > _MAX_MANIFEST_BYTES:
        raise RegistryError(f"{what} is damaged: its digest is not {digest}")
    try:
        found = json.loads(data)
    except ValueError as error:
        raise RegistryError(f"{what} is not JSON") from error
    if not isinstance(found, dict):
        raise RegistryError(f"{what} is not a JSON object")
    return found


def _refused(answer: httpx.Response) -> RegistryError:
    try:
        why = "; ".join(f"{one['code']}: {one['message']}" for one in answer.json()["errors"])
    except (ValueError, KeyError, TypeError):
        why = answer.reason_phrase
    what = f"{answer.request.method} {answer.request.url.path}"
    return RegistryError(f"the registry refused {what} with {answer.status_code} ({why})")
