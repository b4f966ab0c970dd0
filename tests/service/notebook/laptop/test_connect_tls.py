"""A notebook outside of the hub, over TLS: accepted certificates, and messages about others."""

from __future__ import annotations

import hashlib
import os
import ssl

import pytest

from minicluster.client.certificates import CertificateUnknown
from minicluster.client.credentials import Credentials, SavedCluster

from .... import messages
from .fronts import TlsFront, answering
from .laptops import HEALTH, front, hub_of, kept, laptop, magics, refused

__all__ = ["front", "kept", "laptop"]  # fixtures


def test_http_where_the_hub_sends_to_https(laptop, front):
    path = {HEALTH: (308, {"Location": f"{front.url}{HEALTH[1:]}"}, "")}
    with answering(path) as url:
        laptop.run(f"%distribute connect {url} --ca {ca_file(laptop, front)}")
    assert magics(laptop).service().url.startswith("https:")


def test_http_at_a_port_that_speaks_https(laptop, front):
    laptop.run(f"%distribute connect http://127.0.0.1:{front.port} --ca {ca_file(laptop, front)}")
    assert magics(laptop).service().url.startswith("https:")


@pytest.mark.full("ten seconds of waiting")
def test_https_where_there_is_only_http_is_not_taken_silently(laptop, cluster):
    error = refused(laptop, f"https://127.0.0.1:{cluster.port}/hub/home")
    assert messages.NO_HTTPS in error
    assert f"%distribute connect {hub_of(cluster)}" in error


def ca_file(laptop, front):
    path = Credentials().path.parent.parent / "ca.pem"
    path.parent.mkdir(exist_ok=True)
    path.write_text(front.certificates.ca_pem)
    return path


def fingerprint(front):
    der = ssl.PEM_cert_to_DER_cert(
        front.certificates.cert_pem.partition("-----END CERTIFICATE-----")[0] + END
    )
    return hashlib.sha256(der).hexdigest()


END = "-----END CERTIFICATE-----\n"


def test_a_self_made_certificate_is_refused_with_its_fingerprint(laptop, front):
    error = refused(laptop, front.url, CertificateUnknown)
    assert fingerprint(front) in error.lower().replace(":", "")
    assert "--ca FILE" in error
    assert messages.NOTHING_SENT in error


@pytest.mark.parametrize("how", ["ca", "trust"])
def test_a_self_made_certificate_that_is_trusted(laptop, front, how, monkeypatch):
    option = f"--ca {ca_file(laptop, front)}" if how == "ca" else f"--trust {fingerprint(front)}"
    token = os.environ.pop("MINICLUSTER_TOKEN_FILE")
    monkeypatch.setenv("MINICLUSTER_TOKEN_FILE", token)
    Credentials().keep(SavedCluster(url=front.url, token="ada-token"))
    monkeypatch.delenv("MINICLUSTER_TOKEN_FILE")
    laptop.run(f"%distribute connect {front.url} {option}")
    assert laptop.run("%%distribute --nodes 1\n6 * 7") == 42
    magics(laptop).use(None)
    laptop.run("%distribute nodes")
    assert Credentials().last().pem, "what was trusted once is trusted the next time"


def test_another_fingerprint_is_refused(laptop, front):
    assert "another fingerprint" in refused(laptop, front.url, CertificateUnknown, f"--trust {'ab' * 32}")


def test_a_trusted_certificate_of_another_machine(laptop, front, tmp_path, cluster):
    other = tmp_path / "other"
    other.mkdir()
    stranger = TlsFront(other, cluster.port)
    try:
        refused(laptop, stranger.url, CertificateUnknown, f"--ca {ca_file(laptop, front)}")
    finally:
        stranger.close()


def test_a_certificate_for_another_name(laptop, cluster, tmp_path):
    front = TlsFront(tmp_path, cluster.port, ("lab.example.org",))
    try:
        error = refused(laptop, front.url, CertificateUnknown, f"--ca {ca_file(laptop, front)}")
    finally:
        front.close()
    assert "mismatch" in error


def test_a_file_that_holds_no_certificate(laptop, front, tmp_path):
    (tmp_path / "none.pem").write_text("hello")
    assert "are not certificates" in refused(
        laptop, front.url, CertificateUnknown, f"--ca {tmp_path / 'none.pem'}"
    )
    assert "No such file" in refused(laptop, front.url, CertificateUnknown, "--ca /nowhere.pem")
