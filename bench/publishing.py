"""The cost of publishing an image with one more package: time, and bytes sent to the registry.

All is real except Docker: a notebook's shell, the job service, an agent in an environment that stands for the
image, pip with an index on loopback, docker-registry with TLS and a password. The peer is pip alone.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import site
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from parts.targets import Target, close

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

BYTES_BOUND = 1.05
"""Bytes sent relative to the new layer: the base's layers must not be sent again."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-mb", type=int, default=100, help="size of the base")
    parser.add_argument("--package-mb", type=int, default=10, help="size of the package")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="minicluster-bench-") as folder:
        close(measure(Path(folder), given))


def measure(folder: Path, given: argparse.Namespace) -> Iterator[Target]:
    from tests.service.notebook.conftest import HubUser
    from tests.service.publishing.cluster import cluster_with_images, pushed_base
    from tests.service.publishing.conftest import make_environment
    from tests.service.publishing.index import Index
    from tests.service.publishing.registries import RealRegistry

    registry, hub = RealRegistry(folder / "registry"), ThreadingHTTPServer(("127.0.0.1", 0), HubUser)
    registry.start()
    threading.Thread(target=hub.serve_forever, daemon=True).start()
    (folder / "cluster").mkdir()
    with Index(folder / "index") as index:
        package = base64.b64encode(os.urandom(given.package_mb * 750_000)).decode()
        index.add("tinylarge", "1.0", {"tinylarge.py": f"DATA = '{package}'\n"})
        environment = make_environment(folder / "image", index.url)
        base = asyncio.run(pushed_base(registry, {"large": os.urandom(given.base_mb * 10**6)}))
        url = f"http://127.0.0.1:{hub.server_port}/hub/api"
        cluster = cluster_with_images(folder / "cluster", url, registry, base, environment)
        try:
            yield published(folder, registry, environment, cluster.url, base)
        finally:
            cluster.end()
            hub.shutdown()
            registry.stop()


def published(folder: Path, registry: Any, environment: Any, url: str, base: str) -> Target:
    """Install the package as a user, publish it, and publish it again."""
    pip_s, _ = timed(lambda: environment.pip_install(folder / "local", "tinylarge"))
    (site.USER_SITE,) = map(str, (folder / "local").glob("lib/python*/site-packages"))
    site.ENABLE_USER_SITE = True
    run = notebook(folder, url, base)
    before = stored_bytes(registry)
    cold_s, made = timed(lambda: run("%distribute publish large"))
    sent = stored_bytes(registry) - before
    warm_s, _ = timed(lambda: run("%distribute publish large"))
    print(
        f"pip alone {pip_s:.2f} s; publish {cold_s:.2f} s, {warm_s:.2f} s on a warm gang; "
        f"{sent / 1e6:.2f} MB sent for an image of {made.image.size_bytes / 1e6:.2f} MB"
    )
    return Target("publish-bytes", sent / layer_bytes(made.image, url), BYTES_BOUND)


def notebook(folder: Path, url: str, base: str) -> Callable[[str], Any]:
    """Return a function that runs a cell in a shell with the extension, as in a terminal."""
    from IPython.core.interactiveshell import InteractiveShell

    os.environ |= {
        "MINICLUSTER_URL": url,
        "MINICLUSTER_IMAGE": base,
        "JUPYTERHUB_API_TOKEN": "ada-token",
        "JUPYTERHUB_USER": "ada",
        "IPYTHONDIR": str(folder / "ipython"),
    }
    shell = InteractiveShell.instance(colors="nocolor")
    shell.run_line_magic("load_ext", "minicluster")

    def run(source: str) -> Any:
        result = shell.run_cell(source)
        result.raise_error()
        return result.result

    return run


def layer_bytes(image: Any, url: str) -> int:
    """Return the compressed size of an image's layers beyond its base."""
    from minicluster.client.client import JobServiceClient

    service = JobServiceClient(url, "ada-token")
    (base,) = (one for one in service.images().images if one.digest == image.base_digest)
    service.close()
    return image.size_bytes - base.size_bytes


def stored_bytes(registry: Any) -> int:
    blobs = (registry.folder / "data").rglob("blobs/sha256/*/*/data")
    return sum(path.stat().st_size for path in blobs)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


if __name__ == "__main__":
    main()
