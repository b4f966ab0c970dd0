"""A job service that publishes, over an environment that stands for its image."""

from pathlib import Path

from ..notebook.conftest import Cluster
from .bases import BASE, push_base


class ClusterWithImages(Cluster):
    program = (str(Path(__file__).with_name("service.py")),)


def cluster_with_images(folder, hub_url, registry, base, environment):
    """Start one whose only image is `base`, in the registry; users publish without being asked."""
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
    """Push the small base, with files of another layer; return its reference."""
    client = registry.client()
    try:
        return f"{registry.name}/{BASE}@{await push_base(client, more=more)}"
    finally:
        await client.close()
