"""The images that a cluster offers, by the REST API; and a tag in the outside registry that tests move."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import httpx

from minicluster_hub.launch.demo import SERVICE_PATH

from ..cluster import LabCluster, Person
from ..jobs import administrator
from ..machines import Lab
from ..machines.builder import build_engine
from ..machines.images import NOTEBOOK_IMAGE, build

MOVING = "moving/notebook:1"
_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def move(lab: Lab, mark: str) -> str:
    """Move the tag to the notebook image with a file /mark of this text; return the digest."""
    engine, reference = build_engine(), f"{lab.registry.host}/{MOVING}"
    with tempfile.TemporaryDirectory() as folder:
        dockerfile = Path(folder, "Dockerfile")
        dockerfile.write_text(f"FROM {NOTEBOOK_IMAGE}\nUSER root\nRUN echo {mark} >/mark\nUSER 1000:1000\n")
        build(dockerfile, reference, Path(folder), {})
    engine.docker("push", "--quiet", reference)
    engine.docker("rmi", reference)
    repository, _, tag = MOVING.rpartition(":")
    address = f"http://{lab.registry.host}/v2/{repository}/manifests/{tag}"
    answer = httpx.head(address, headers={"Accept": _MANIFEST}, trust_env=False)
    return answer.headers["Docker-Content-Digest"]


async def listed(person: Person) -> dict[str, dict[str, Any]]:
    """Return the images that a user sees, by name."""
    return {image["name"]: image for image in (await person.ask("api/images"))["images"]}


async def judge(admin: Person, digest: str, verb: str) -> dict[str, Any]:
    """Allow or retire an image."""
    await admin.visitor.http.get(SERVICE_PATH)
    return await admin.visitor.call("POST", f"{SERVICE_PATH}api/images/{digest}/{verb}", SERVICE_PATH)


def retire_published(cluster: LabCluster) -> None:
    """Retire published images, so that the catalogue is as in a new cluster."""
    with administrator(cluster) as jobs:
        for image in jobs.http.get("api/images").json()["images"]:
            if image["owner"] and image["state"] != "retired":
                jobs.http.post(f"api/images/{image['digest']}/retire").raise_for_status()
