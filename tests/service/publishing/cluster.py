"""A job service that publishes images, with an environment in place of its base image."""

from pathlib import Path

from ..notebook.conftest import Cluster
from .bases import BASE, push_base


class ClusterWithImages(Cluster):
    program = (str(Path(__file__).with_name("service.py")),)


def cluster_with_images(folder, hub_url, registry, base, environment):
    """Start a job service whose only image is `base` in the registry; publishing needs no approval."""
    return ClusterWithImages(
        folder,
        hub_url,
        "--engine=__main__.EngineWithImages",
        f"--EngineWithImages.images={base}",
        f"--EngineWithImages.python={environment.python}",
        "--MiniclusterHub.publishing=allow",
        f"--MiniclusterHub.pip_index_url={environment.index_url}",
        f"--RegistrySettings.url=https://{registry.name}",
        f"--RegistrySettings.name={registry.name}",
        f"--RegistrySettings.ca_file={registry.ca_file}",
        f"--RegistrySettings.login_file={registry.folder / 'login'}",
    )


async def pushed_base(registry, more=None):
    """Push the small base image, with `more` files in a layer; return its reference."""
    client = registry.client()
    try:
        return f"{registry.name}/{BASE}@{await push_base(client, more=more)}"
    finally:
        await client.close()
