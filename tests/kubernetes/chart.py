"""What Helm makes of the chart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

helm = pytest.importorskip("helm_python", reason="the extra `charts` has Helm")

CHART = Path(__file__).resolve().parents[2] / "hub_ext/minicluster_hub/engines/kubernetes/chart"
IMAGES = {"hub": "registry.lab/hub@sha256:1", "notebook": "registry.lab/notebook@sha256:2"}


def rendered(values: dict[str, Any], namespace: str = "minicluster") -> list[dict[str, Any]]:
    """Return what `helm template` makes of the chart, with these values, for a release of that namespace."""
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render({"image": IMAGES, **values}, name="minicluster", namespace=namespace)
    texts = (text for name, text in files.items() if name.endswith(".yaml"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]
