"""The chart: what it renders is valid for Kubernetes, and a real API server takes all of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from .lab.cluster import KubernetesCluster, path_of

CHART = Path(__file__).resolve().parents[2] / "hub_ext/minicluster_hub/engines/kubernetes/chart"
VALUES = {
    "image.hub": "registry.lab/hub@sha256:1",
    "image.notebook": "registry.lab/notebook@sha256:2",
}
VARIANTS: dict[str, dict[str, str]] = {
    "plain": {},
    "all": {
        "jobs.quota.pods": "100",
        "jobs.runtimeClass": "nvidia",
        "jobs.nodeSelector": "lab=ours",
        "jobs.queue": "kueue",
        "data.storageClass": "local-path",
        "database.secret": "postgres",
        "image.pullSecrets[0]": "registry",
    },
    "volcano": {"jobs.queue": "volcano", "data.claim": "data-sets", "networkPolicy.enabled": "false"},
}


def rendered(**more: str) -> list[dict[str, Any]]:
    """Return what `helm template` makes of the chart."""
    sets = [word for key, value in {**VALUES, **more}.items() for word in ("--set", f"{key}={value}")]
    command = ["helm", "template", "minicluster", str(CHART), "--namespace", "minicluster", *sets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


@pytest.fixture(autouse=True)
def helm(needs: Callable[[object, str], None]) -> None:
    needs(
        shutil.which("helm"), "helm is missing: no package registry of ours has it; install it from helm.sh"
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_is_valid_for_the_oldest_and_a_new_kubernetes(variant: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    for document in rendered(**VARIANTS[variant]):
        for version in ("1.20", "1.34"):
            validate.validate(document, version, strict=True)


@pytest.mark.parametrize("variant", ["plain", "all"])
def test_a_real_api_server_takes_all_of_it(cluster: KubernetesCluster, variant: str) -> None:
    for name in ("minicluster", "minicluster-jobs"):
        cluster.post("/api/v1/namespaces", {"metadata": {"name": name}})
    for document in rendered(**VARIANTS[variant]):
        cluster.post(f"{path_of(document)}?dryRun=All", document)


def test_a_value_that_is_missing_or_misspelled_is_named() -> None:
    command = ["helm", "template", str(CHART)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode and "image" in done.stderr
    done = subprocess.run(
        [*command, *(f"--set={key}={value}" for key, value in VALUES.items()), "--set=jobs.gpuResorce=x"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode and "gpuResorce" in done.stderr


def test_the_pods_of_the_job_service_keep_the_restricted_standard() -> None:
    (made,) = (one for one in rendered() if one["kind"] == "StatefulSet")
    pod = made["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]
    for container in pod["containers"]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "token" not in json.dumps([one.get("value") for one in pod["containers"][0]["env"]]).lower()
