"""Internal certificates reach a notebook server on another node as Docker secrets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .spawner_hub import WITHIN_S, SpawnerHub, running_hub, wait

pytestmark = pytest.mark.apart("it wants machines without a cluster")


@pytest.fixture(scope="module")
def hub(request: pytest.FixtureRequest) -> Iterator[SpawnerHub]:
    with running_hub(request, internal_ssl=True) as made:
        yield made


def test_certificates_are_secrets_of_the_server(hub: SpawnerHub) -> None:
    hub.add_user("tess")
    hub.run_server("tess", node="node2")
    files = hub.inside("minicluster-server-tess", "ls", "/run/secrets").split()
    assert {"server.json", "internal-ssl.key", "internal-ssl.crt", "internal-ssl.ca"} == set(files)
    assert hub.ask_server("tess", "GET", "api/status").status_code == 200
    hub.stop_server("tess")
    wait(lambda: not any(hub.remains().values()), WITHIN_S, f"nothing is left: {hub.remains()}")
