"""For tests of the relay: a cluster's certificates, and a relay's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from minicluster_hub.cluster.plan.certificates import Certificates, make_ca_and_cert


@pytest.fixture(scope="module")
def certificates() -> Certificates:
    return make_ca_and_cert(["127.0.0.1", "registry"])


@pytest.fixture
def environ(tmp_path: Path, certificates: Certificates) -> dict[str, str]:
    """A relay's environment variables."""
    (tmp_path / "ca").write_text(certificates.ca_pem)
    (tmp_path / "reader").write_text("reader:reader's word\n")
    return {
        "MINICLUSTER_RELAY_CA_FILE": str(tmp_path / "ca"),
        "MINICLUSTER_RELAY_READER_FILE": str(tmp_path / "reader"),
        "MINICLUSTER_RELAY_PUBLISH_NODE": "node-a",
        "MINICLUSTER_NODE_ID": "node-a",
    }
