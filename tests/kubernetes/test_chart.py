"""The chart: what Helm makes of it is valid, a real API server takes it, and its words are our options."""

from __future__ import annotations

import json
from typing import Any

import pytest

from minicluster_hub.app import MiniclusterHub
from minicluster_hub.engines.kubernetes.engine import KubernetesEngine
from minicluster_hub.images.settings import RegistrySettings

from ..lab.machines.builder import build_engine
from .chart import IMAGES, helm, rendered
from .lab.cluster import KubernetesCluster, path_of

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="the extra `charts` has the schemas")

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all": {
        "image": {**IMAGES, "pullSecrets": ["registry"], "further": ["registry.lab/other@sha256:3"]},
        "jobs": {
            "quota": {"pods": "100"},
            "runtimeClass": "nvidia",
            "nodeSelector": "lab=ours",
            "toleratedTaints": ["lab=jobs:NoSchedule"],
            "queue": "kueue",
        },
        "data": {"storageClass": "local-path"},
        "database": {"secret": "postgres"},
        "registry": {"url": "https://registry.lab:5000", "secret": "registry-login", "caKey": "ca.crt"},
    },
    "volcano": {
        "jobs": {"queue": "volcano"},
        "data": {"claim": "data-sets"},
        "networkPolicy": {"enabled": False},
    },
}
OLDEST, NEWEST = "1.25", "1.37"
"""Of which there are schemas. The API server of the tests is older than these."""


def stateful_set(values: dict[str, Any]) -> dict[str, Any]:
    (made,) = (one for one in rendered(values) if one["kind"] == "StatefulSet")
    return made["spec"]["template"]["spec"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_it_is_valid_for_old_and_new_ones(variant: str, version: str) -> None:
    documents = rendered(VARIANTS[variant])
    assert {one["kind"] for one in documents} >= {"StatefulSet", "Service", "Role", "Secret", "Namespace"}
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("variant", ["plain", "all"])
def test_a_real_api_server_takes_all_of_it(cluster: KubernetesCluster, variant: str) -> None:
    for name in ("minicluster", "minicluster-jobs"):
        cluster.post("/api/v1/namespaces", {"metadata": {"name": name}})
    for document in rendered(VARIANTS[variant]):
        cluster.post(f"{path_of(document)}?dryRun=All", document)


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_words_are_options_of_the_job_service(variant: str) -> None:
    (container,) = stateful_set(VARIANTS[variant])["containers"]
    app = MiniclusterHub()
    app.parse_command_line([one for one in container["args"] if "service_ca_file" not in one])
    given = set(app.config["KubernetesEngine"])
    assert given <= set(KubernetesEngine.class_trait_names(config=True)), given
    engine = KubernetesEngine(parent=app)
    assert engine.image == IMAGES["notebook"] and engine.namespace == "minicluster-jobs"
    if variant == "all":
        assert engine.tolerated_taints == ["lab=jobs:NoSchedule"] and engine.queue == "kueue"
        assert engine.own_images == (IMAGES["notebook"], "registry.lab/other@sha256:3")
        registry = RegistrySettings(parent=app)
        assert (registry.url, registry.name) == ("https://registry.lab:5000", "registry.lab:5000")
        assert registry.login_file and registry.ca_file


@pytest.mark.parametrize(
    ("values", "named"), [({"image": {}}, "image"), ({"jobs": {"gpuResorce": "x"}}, "gpuResorce")]
)
def test_a_value_that_is_missing_or_misspelled_is_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmError, match=named):
        rendered(values)


def test_the_pod_of_the_job_service_keeps_the_restricted_standard() -> None:
    pod = stateful_set({})
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]
    for container in pod["containers"]:
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "token" not in json.dumps([one.get("value") for one in pod["containers"][0]["env"]]).lower()


def test_the_hub_image_has_what_jupyterhubs_own_chart_takes_for_granted(product: tuple[str, str]) -> None:
    """Its configuration makes pycurl tornado's HTTP client, and has python3 run the idle culler."""
    wanted = "import tornado.curl_httpclient, jupyterhub_idle_culler, kubespawner, yaml"
    words = ["--rm", "--network=none", "--entrypoint=python3", product[0], "-P", "-c", wanted]
    build_engine().docker("run", *words)
